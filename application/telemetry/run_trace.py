"""Keep what the models of a run read and wrote, to explain the run and to replay it.

TurnTranscript  what a model's turn has read and written; the model makes it
StepLog         the steps of a turn, while it runs
RunTrace        the trace of one run
KeepTraces      decides which runs are traced, and seals and stores their traces
"""

from __future__ import annotations

import logging
import time
import zlib
from base64 import b85decode, b85encode
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.application.ports import (
    Lease,
    ModelTurn,
    Seal,
    TraceStore,
    TurnTranscript,
    Unseal,
    json_of_sampling,
)
from antiphon.application.support.threads import compute_in_thread
from antiphon.domain import deltas as d
from antiphon.domain.access.redaction import without_secrets
from antiphon.domain.errors import StoreError
from antiphon.domain.json import Json
from antiphon.domain.requests.request import CreateResponse
from antiphon.domain.responses.response import Response
from antiphon.domain.responses.traces import (
    Trace,
    TracedBatch,
    TracedCall,
    TracedStep,
    TurnTrace,
    to_traced,
)

logger = logging.getLogger("antiphon.runs")

Keep = Literal["off", "failed", "all"]

BATCH_BYTES = 64
"""About what a batch of deltas takes in a trace, at least."""

ENDS_TO_KEEP = 2000
"""Characters of a long text that are kept at its start, and as many at its end."""


class _OpenCall:
    """A call while it runs: its output is recorded as it passes through."""

    def __init__(self, written: d.CallStart, start: d.CallStart, opening: d.Delta) -> None:
        self.written = written
        self.start = start
        self.opening = opening
        self.arguments = ""
        self.step = ""
        self.output: list[Sequence[d.Delta]] = []

    def to_traced(self) -> TracedCall:
        return TracedCall(
            written_kind=self.written.kind,
            written_name=self.written.name,
            kind=self.start.kind,
            name=self.start.name,
            namespace=self.start.namespace,
            arguments=self.arguments,
            step=self.step,
            opening=to_traced(self.opening),
            output=tuple(tuple(map(to_traced, batch)) for batch in self.output),
        )


class _Turn:
    """A turn while it runs."""

    def __init__(self) -> None:
        self.batches: list[tuple[float, int, Sequence[d.Delta]]] = []
        self.calls: list[_OpenCall] = []
        self.is_cut = False
        self.model_turn: ModelTurn | None = None
        self.reason = ""
        self.kind = ""
        self.transcript: TurnTranscript | None = None
        self.unmarked_calls = 0


class RunTrace:
    """The trace of one run while it runs. `max_bytes` bounds it, roughly."""

    def __init__(self, keeper: KeepTraces, request: CreateResponse, *, max_bytes: int) -> None:
        self._keeper = keeper
        self._request = request
        self._max_batches = max_bytes // BATCH_BYTES
        self.max_steps = self._max_batches
        self._batch_count = 0
        self._monotonic_start = monotonic()
        self._started_at = time.time()
        self._turns: list[_Turn] = []
        self._open = _Turn()

    def add_batch(self, deltas: Sequence[d.Delta], last_event: int) -> None:
        """Record deltas that were written together; see TracedBatch."""
        if self._batch_count < self._max_batches:
            self._batch_count += 1
            self._open.batches.append((monotonic(), last_event, deltas))
        else:
            self._open.is_cut = True

    def open_call(self, written: d.CallStart, start: d.CallStart, opening: d.Delta) -> None:
        """Record that the model has written a call, which this server runs as `start`."""
        self._open.calls.append(_OpenCall(written, start, opening))

    def run_call(self, start: d.CallStart, arguments: str, step: str) -> list[Sequence[d.Delta]]:
        """Record what is called; return the list for the batches of its output."""
        for call in self._open.calls:
            if call.start is start:
                call.arguments, call.step = arguments, step
                return call.output
        return []

    def close_turn(self, turn: ModelTurn, reason: str) -> None:
        """Record the end of a turn; `reason` is "" if it failed or was cancelled."""
        ended, self._open = self._open, _Turn()
        facts = turn.facts()
        ended.transcript, ended.kind, ended.reason = turn.transcript(), facts.kind, reason
        ended.unmarked_calls = facts.unmarked_calls
        self._turns.append(ended)

    async def save(self, lease: Lease, response: Response) -> None:
        """Store the trace if it is one to keep. Never raises: the response matters more."""
        await self._keeper.save(self, lease, response)

    def to_trace(self, server: Json, max_bytes: int) -> Trace:
        """Return the trace, cut to `max_bytes`. It computes for long."""
        turns = [self._to_turn_trace(turn) for turn in self._turns]
        request = without_secrets(msgspec.json.decode(msgspec.json.encode(self._request)))
        request = {
            name: value for name, value in request.items() if name != "input" and value is not None
        }
        trace = Trace(
            started_at=round(self._started_at, 6),
            request=request,
            server=server,
            turns=tuple(turns),
        )
        return cut_to_fit(trace, max_bytes)

    def _to_turn_trace(self, turn: _Turn) -> TurnTrace:
        batches = tuple(
            TracedBatch(self._offset(at), last_event, tuple(map(to_traced, deltas)))
            for at, last_event, deltas in turn.batches
        )
        trace = TurnTrace(
            kind=turn.kind,
            reason=turn.reason,
            batches=batches,
            calls=tuple(call.to_traced() for call in turn.calls),
            cut=("batches",) if turn.is_cut else (),
        )
        transcript = turn.transcript
        if transcript is None:
            return trace
        log, asked = transcript.steps, transcript.turn
        return replace(
            trace,
            model=asked.model,
            format=transcript.format,
            prompt=transcript.text_of(transcript.prompt_token_ids),
            prompt_token_ids=tuple(transcript.prompt_token_ids),
            prompt_tokens=len(transcript.prompt_token_ids),
            output="".join(text for _, _, text in log.steps)
            or transcript.text_of(transcript.output_token_ids),
            output_token_ids=tuple(transcript.output_token_ids),
            output_tokens=len(transcript.output_token_ids),
            sampling=json_of_sampling(asked.sampling),
            text_format=dict(asked.text.format),
            tools=tuple(asked.tools),
            choice=asked.choice,
            parallel_tool_calls=asked.parallel_tool_calls,
            unmarked_calls=turn.unmarked_calls,
            upstream_request=transcript.upstream_request,
            steps=tuple(
                TracedStep(tokens, len(text), self._offset(at)) for at, tokens, text in log.steps
            ),
            cut=(*trace.cut, *(("steps",) if log.is_full else ())),
        )

    def _offset(self, at: float) -> float:
        return round(at - self._monotonic_start, 6)


class TraceLimits(Struct, frozen=True, kw_only=True):
    """Which runs are kept, and how many bytes of each."""

    keep: Keep = "off"
    max_bytes: int = 4 * 2**20


class KeepTraces:
    """Traces runs as the settings say. `server` tells versions and settings, without secrets."""

    def __init__(
        self,
        store: TraceStore,
        seal: Seal,
        unseal: Unseal,
        *,
        limits: TraceLimits = TraceLimits(),  # noqa: B008 - frozen
        server: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        self._store = store
        self._seal = seal
        self._unseal = unseal
        self._limits = limits
        self._server = server

    @property
    def keep(self) -> Keep:
        return self._limits.keep

    def server(self) -> Json:
        """Return the versions and the settings that matter."""
        return dict(self._server())

    def open(self, request: CreateResponse) -> RunTrace | None:
        """Return the trace of a new run, or None if it is not kept."""
        if self._limits.keep == "off" or request.store is False:
            return None
        return RunTrace(self, request, max_bytes=self._limits.max_bytes)

    async def save(self, trace: RunTrace, lease: Lease, response: Response) -> None:
        if self._limits.keep == "failed" and response.status == "completed":
            return
        try:
            sealed = await compute_in_thread(self._seal_trace, lease.tenant, trace)
            await self._store.save_trace(lease, sealed)
        except StoreError as error:
            logger.warning("response %s: its trace is not kept: %s", lease.response_id, error)
        except Exception:  # a bug in a trace must not fail the response
            logger.exception("response %s: its trace is not kept", lease.response_id)

    async def load(self, tenant: str, response_id: str) -> Trace | None:
        """Return the trace, or None if none was kept or another key sealed it.

        Raises: NotFound, StoreError.
        """
        sealed = await self._store.get_trace(tenant, response_id)
        if sealed is None:
            return None
        return await compute_in_thread(self._unseal_trace, tenant, sealed)

    def _seal_trace(self, tenant: str, trace: RunTrace) -> bytes:
        kept = trace.to_trace(self.server(), self._limits.max_bytes)
        packed = zlib.compress(msgspec.json.encode(kept), 1)
        return self._seal(tenant, b85encode(packed).decode()).encode()

    def _unseal_trace(self, tenant: str, sealed: bytes) -> Trace | None:
        text = self._unseal(tenant, sealed.decode())
        if text is None:
            return None
        return msgspec.json.decode(zlib.decompress(b85decode(text)), type=Trace)


# --- keeping a trace within its bytes -------------------------------------------------------------


def cut_to_fit(trace: Trace, max_bytes: int) -> Trace:
    """Return the trace with as much left out as is needed, what matters least first."""
    turns = list(trace.turns)
    sizes = [_size(turn) for turn in turns]
    rest = _size(replace(trace, turns=()))
    for cut in CUTS:
        # A prompt repeats those before it: the first turn and the last one are cut last.
        for index in [*range(1, len(turns) - 1), *{0, len(turns) - 1}]:
            if rest + sum(sizes) <= max_bytes or not turns:
                return replace(trace, turns=tuple(turns))
            turns[index] = cut(turns[index])
            sizes[index] = _size(turns[index])
    if rest + sum(sizes) <= max_bytes:
        return replace(trace, turns=tuple(turns))
    trace = replace(trace, request={}, cut=("request",))
    rest = _size(replace(trace, turns=()))
    while turns and rest + sum(sizes) > max_bytes:
        del turns[0], sizes[0]
        trace = replace(trace, cut=("request", "turns"))
    return replace(trace, turns=tuple(turns))


def _cut_prompt_ids(turn: TurnTrace) -> TurnTrace:
    return _leave_out(turn, prompt_token_ids=())


def _cut_prompt(turn: TurnTrace) -> TurnTrace:
    return _leave_out(turn, prompt=_shorten(turn.prompt))


def _cut_batches(turn: TurnTrace) -> TurnTrace:
    return _leave_out(turn, batches=(), steps=(), calls=())


def _cut_output(turn: TurnTrace) -> TurnTrace:
    return _leave_out(
        turn, output=_shorten(turn.output), output_token_ids=(), upstream_request=None, tools=()
    )


CUTS: Sequence[Callable[[TurnTrace], TurnTrace]] = (
    _cut_prompt_ids,
    _cut_prompt,
    _cut_batches,
    _cut_output,
)
"""The functions that shorten a turn, in this order."""


def _leave_out(turn: TurnTrace, **changes: Any) -> TurnTrace:
    names = [name for name, value in changes.items() if getattr(turn, name) != value]
    return replace(turn, cut=tuple(dict.fromkeys((*turn.cut, *names))), **changes)


def _shorten(text: str | None) -> str | None:
    if text is None or len(text) <= 3 * ENDS_TO_KEEP:
        return text
    left_out = len(text) - 2 * ENDS_TO_KEEP
    start, end = text[:ENDS_TO_KEEP], text[-ENDS_TO_KEEP:]
    return f"{start}\n… {left_out:,} characters were left out …\n{end}"


def _size(value: Struct) -> int:
    return len(msgspec.json.encode(value))
