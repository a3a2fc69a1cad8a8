"""Record the times and facts of one run.

Everything that shows what happened reads this record: logs, metrics, traces, the console. It is
written per turn and per call, never per token.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from antiphon.application.ports import Clock, ModelTurn
from antiphon.application.progress.run_progress import RunProgress
from antiphon.application.telemetry.request_context import RequestContext
from antiphon.application.telemetry.run_trace import RunTrace
from antiphon.domain.access.callers import Caller
from antiphon.domain.deltas import Delta, TextDelta
from antiphon.domain.responses.cache_diagnostics import PromptComparison
from antiphon.domain.responses.guards import GuardPlace, VerdictName
from antiphon.domain.responses.metrics import (
    AgentMetrics,
    CallResult,
    GuardMetrics,
    Phase,
    ProgramMetrics,
    ResponseMetrics,
    ToolCallMetrics,
    TurnMetrics,
)
from antiphon.domain.responses.preview import ResponsePreview, with_output
from antiphon.domain.responses.response import TERMINAL, Response
from antiphon.domain.responses.usage import TurnUsage, sum_of


def in_microseconds(seconds: float) -> float:
    """Return whole microseconds, so that a record is short; `round` takes five times as long."""
    return int(seconds * 1e6) / 1e6


class RecordedCall:
    """A call of a tool, until it has ended."""

    def __init__(self, call: ToolCallMetrics, now: Clock) -> None:
        self.metrics = call
        self._now = now

    def end(self, result: CallResult, *, seconds: float, output_bytes: int) -> None:
        """Record the end of a call that took `seconds` without its wait for a slot."""
        # The loop's clock, which measures them, may be a millisecond off.
        started_at = max(in_microseconds(self._now() - seconds), self.metrics.started_at)
        self.metrics = replace(
            self.metrics,
            started_at=started_at,
            seconds=in_microseconds(seconds),
            result=result,
            output_bytes=output_bytes,
        )


_VerdictKey = tuple[str, GuardPlace, VerdictName]


class RunRecorder:
    """The record of one run, which `before` begins; times never go back."""

    def __init__(
        self,
        before: ResponseMetrics | None = None,
        *,
        now: Clock = time.time,
        monotonic: Clock = time.monotonic,
    ) -> None:
        self._monotonic = monotonic
        self._offset = now() - monotonic()
        self._metrics = before or ResponseMetrics(received_at=self._now())
        self._turn: _OpenTurn | None = None
        self._ended = False
        self._store_seconds = 0.0
        self._store_failures = 0
        self._verdicts: dict[_VerdictKey, tuple[int, float]] = {}
        self.trace: RunTrace | None = None
        """The trace that is kept of the run to explain it, if any."""
        self.preview: ResponsePreview | None = None
        """The preview of a response that is stored, so far."""
        self.progress: RunProgress | None = None
        """The progress with which another server can go on with the run, if one may."""

    @classmethod
    def of_request(
        cls, context: RequestContext, caller: Caller, *, server: str, background: bool = False
    ) -> RunRecorder:
        """Return the recorder of a new run, whose turn to run it is now."""
        received_at = context.received_at or time.time()
        recorder = cls(
            ResponseMetrics(
                key_id=caller.key_id,
                key_name=caller.key_name,
                request_id=context.request_id,
                door=context.door,
                traceparent=context.trace_headers.get("traceparent", ""),
                links_trace=background or context.shares_connection,
                server=server,
                received_at=in_microseconds(received_at),
            )
        )
        admitted_at = max(recorder._now(), received_at)
        recorder._metrics = replace(recorder._metrics, admitted_at=admitted_at)
        return recorder

    @classmethod
    def resumed(
        cls,
        before: ResponseMetrics | UnsetType,
        *,
        server: str,
        epoch: int,
        progress: RunProgress | None = None,
    ) -> RunRecorder:
        """Return the recorder of a stored run that this server leases now.

        `before` is UNSET for a response that was stored without a record.
        """
        recorder = cls(None if before is UNSET else before)
        recorder.progress = progress
        recorder._metrics = replace(
            recorder._metrics,
            server=server,
            epoch=epoch,
            phase=None,
            admitted_at=recorder._now(),
            started_at=None if progress is None else progress.started_at,
            turns=(),
            guards=(),
            programs=(),
        )
        return recorder

    @property
    def request_id(self) -> str:
        return self._metrics.request_id

    @property
    def traceparent(self) -> str:
        return self._metrics.traceparent

    @property
    def links_trace(self) -> bool:
        return self._metrics.links_trace

    @property
    def turn_number(self) -> int:
        """The number of the turn that is open, or would be next, from 1 on."""
        return len(self._metrics.turns) + 1

    @property
    def trace_headers(self) -> dict[str, str]:
        """The headers of the client's trace that a store keeps."""
        traceparent = self._metrics.traceparent
        return {"traceparent": traceparent} if traceparent else {}

    def queue(self) -> None:
        """Record that the run waits in the store for a server with a free slot."""
        self._metrics = replace(self._metrics, admitted_at=None, server="")

    def start(self) -> None:
        """Record that the run starts; only the first time counts."""
        if self._metrics.started_at is None:
            self._metrics = replace(self._metrics, started_at=self._now())
        if self.progress is not None:
            self.progress.start(self._metrics.started_at or 0.0)

    @property
    def running_s(self) -> float:
        """The seconds that the run has been running, on all its servers; 0 before its start."""
        started_at = self._metrics.started_at
        return 0.0 if started_at is None else max(0.0, self._now() - started_at)

    def ignore(self, fields: Sequence[str]) -> None:
        """Record which fields of the request have no effect."""
        self._metrics = replace(self._metrics, ignored=tuple(fields))

    def digest_prompt(self, *, salt: str, extras: str) -> None:
        """Record digests of what changes the prompt, or its cache, and is not echoed."""
        if salt or extras:
            self._metrics = replace(self._metrics, cache_salt=salt, prompt_extras=extras)

    def compare_prompts(self, comparison: PromptComparison) -> None:
        """Record how the response's prompt compares with another's."""
        self._metrics = replace(self._metrics, prompt_comparison=comparison)

    @contextmanager
    def time_store_write(self) -> Iterator[None]:
        """Record how long the block takes, which writes to the store."""
        started_at = self._monotonic()
        try:
            yield
        finally:
            self._store_seconds += self._monotonic() - started_at

    def note_store_failure(self) -> None:
        """Record that a write to the store has failed, and may be tried again."""
        self._store_failures += 1

    def count_verdict(
        self, guard: str, place: GuardPlace, verdict: VerdictName, *, seconds: float
    ) -> None:
        """Record that a guard has given a verdict, which took so long."""
        key = guard, place, verdict
        count, total = self._verdicts.get(key, (0, 0.0))
        self._verdicts[key] = count + 1, total + seconds

    @property
    def _guards(self) -> tuple[GuardMetrics, ...]:
        return tuple(
            [
                GuardMetrics(
                    guard=guard,
                    place=place,
                    verdict=verdict,
                    count=count,
                    seconds=in_microseconds(seconds),
                )
                for (guard, place, verdict), (count, seconds) in self._verdicts.items()
            ]
        )

    def open_turn(self) -> None:
        """Record that the next turn is being prepared, unless one is already."""
        if self._turn is None:
            self._turn = _OpenTurn(self._now)

    def admit_turn(self, turn: ModelTurn) -> None:
        """Record that the model has accepted the open turn; only the first time counts."""
        if self._turn is None:
            self.open_turn()
        assert self._turn is not None
        self._turn.admit(turn)

    def watch_batch(self, deltas: Sequence[Delta]) -> bool:
        """Record a turn's first deltas. Return whether the next ones must be recorded, too."""
        return self._turn is not None and self._turn.watch_batch(deltas)

    def end_output(self) -> None:
        """Record that the model has written the last token of the turn; the first time counts."""
        if self._turn is not None:
            self._turn.end_output()

    def start_call(self, *, type: str, name: str, server: str = "") -> RecordedCall:
        """Record a call of a tool in the open turn, and return it to be ended."""
        metrics = ToolCallMetrics(type=type, server=server, name=name, started_at=self._now())
        call = RecordedCall(metrics, self._now)
        if self._turn is not None:
            self._turn.calls.append(call)
        return call

    def close_turn(self, reason: str, usages: Sequence[TurnUsage]) -> None:
        """Record the end of the open turn; `reason` is "" for a turn that failed."""
        if self._turn is None:
            return
        self._turn.end_output()
        turn = self._turn.to_metrics(usages, reason=reason, ended_at=self._now())
        if self.progress is not None:
            turn = self.progress.close_turns(turn)
        self._metrics = replace(self._metrics, turns=(*self._metrics.turns, turn))
        self._turn = None

    def snapshot(self) -> ResponseMetrics:
        """Return the record so far, with the phase of a run that has not ended."""
        if self._ended:
            return self._metrics
        metrics = replace(
            self._metrics,
            phase=self.phase,
            store_seconds=in_microseconds(self._store_seconds),
            store_failures=self._store_failures,
            guards=self._guards if self._verdicts else (),
        )
        if self._turn is None or not self._turn.is_admitted:
            return metrics
        turn = self._turn.to_metrics(self._turn.tokens_used())
        return replace(metrics, turns=(*metrics.turns, turn))

    def end(self, response: Response) -> Response:
        """Record the end, and return the response with the record."""
        if self._turn is not None and (self._turn.is_admitted or response.status == "failed"):
            self.close_turn("", self._turn.tokens_used())
        self._turn = (
            None  # it refers to this recorder: the garbage collector would have to see both
        )
        self._ended = response.status in TERMINAL
        self._metrics = replace(
            self._metrics,
            ended_at=self._now(),
            store_seconds=in_microseconds(self._store_seconds),
            store_failures=self._store_failures,
            guards=self._guards if self._verdicts else (),
        )
        return self.recorded(response)

    def recorded(self, response: Response) -> Response:
        """Return the response as it is stored: with its record, and its preview if it has one."""
        metrics = self.snapshot()
        if self.preview is None:
            return replace(response, metrics=metrics)
        self.preview = with_output(self.preview, response.output)
        return replace(response, metrics=metrics, preview=self.preview)

    def note_place(self, agent: str, parent_response_id: str) -> None:
        """Record which agent of a tree the response is of."""
        self._metrics = replace(self._metrics, agent=agent, parent_response_id=parent_response_id)

    @property
    def is_of_sub_agent(self) -> bool:
        """Whether another response has started this one."""
        return bool(self._metrics.parent_response_id)

    def note_agents(self, agents: tuple[AgentMetrics, ...]) -> None:
        """Record the sub-agents that the response has started."""
        self._metrics = replace(self._metrics, agents=agents)

    def note_program(self, program: ProgramMetrics) -> None:
        """Record that a program has ended."""
        self._metrics = replace(self._metrics, programs=(*self._metrics.programs, program))

    @property
    def received_at(self) -> float:
        return self._metrics.received_at

    @property
    def phase(self) -> Phase:
        """The phase that the run is in now."""
        if self._metrics.admitted_at is None:
            return "queued"
        return "starting" if self._turn is None else self._turn.phase

    def _now(self) -> float:
        # As `in_microseconds`, without the call: it is asked a dozen times in each run.
        return int((self._offset + self._monotonic()) * 1e6) / 1e6


class _OpenTurn:
    """The turn that runs now, or is being prepared."""

    def __init__(self, now: Clock) -> None:
        self._now = now
        self._started_at = now()
        self._admitted_at: float | None = None
        self._first_token_at: float | None = None
        self._first_text_at: float | None = None
        self._last_token_at: float | None = None
        self._model_turn: ModelTurn | None = None
        self.is_admitted = False
        self.calls: list[RecordedCall] = []

    @property
    def phase(self) -> Phase:
        if any(call.metrics.result is None for call in self.calls):
            return "tool"
        if self._first_text_at is not None:
            return "writing"
        return "starting" if self._first_token_at is None else "thinking"

    def admit(self, turn: ModelTurn) -> None:
        if self._model_turn is None:
            self._model_turn, self._admitted_at = turn, self._now()
            self.is_admitted = True

    def watch_batch(self, deltas: Sequence[Delta]) -> bool:
        if self._first_token_at is None:
            self._first_token_at = self._now()
        for delta in deltas:
            if isinstance(delta, TextDelta):
                self._first_text_at = self._now()
                return False
        return True

    def end_output(self) -> None:
        if self._last_token_at is None:
            self._last_token_at = self._now()

    def tokens_used(self) -> Sequence[TurnUsage]:
        return () if self._model_turn is None else self._model_turn.tokens_used()

    def to_metrics(
        self, usages: Sequence[TurnUsage], *, reason: str = "", ended_at: float | None = None
    ) -> TurnMetrics:
        written = usages[0] if usages else TurnUsage()  # the others are of its summaries
        sums = sum_of(usages)
        has_output = written.output > 0
        first_token_at = self._first_token_at if has_output else None
        last_token_at = self._last_token_at if has_output else None
        turn = TurnMetrics(
            started_at=self._started_at,
            admitted_at=self._admitted_at,
            first_token_at=first_token_at,
            first_text_at=self._first_text_at,
            last_token_at=last_token_at,
            ended_at=ended_at,
            reason=reason,
            input_tokens=sums.input,
            cached_tokens=sums.cached,
            output_tokens=sums.output,
            reasoning_tokens=sums.reasoning,
            tool_output_tokens=sums.tool_output,
            tokens_per_second=_tokens_per_second(
                written, first_token_at, last_token_at or self._now()
            ),
            tool_calls=tuple([call.metrics for call in self.calls]) if self.calls else (),
        )
        if self._model_turn is None:
            return turn
        facts = self._model_turn.facts()
        if facts.came_at_once:
            turn = _as_generated(turn, written, facts.generation_s)
        return replace(
            turn,
            kind=facts.kind,
            model=facts.model,
            engine=facts.engine,
            attempts=facts.attempts,
            is_repaired=facts.is_repaired,
            repairs=tuple(facts.repairs),
            unmarked_calls=facts.unmarked_calls,
            fittings=tuple(facts.fittings),
            resumed_tokens=facts.resumed_tokens,
        )


def _as_generated(turn: TurnMetrics, usage: TurnUsage, generation_s: float | None) -> TurnMetrics:
    """Return a turn whose tokens came at once: that says nothing of when the first one was there,
    but the engine may."""
    first_token_at = None
    if generation_s is not None and turn.last_token_at is not None:
        first_token_at = max(turn.started_at, in_microseconds(turn.last_token_at - generation_s))
    return replace(
        turn,
        first_token_at=first_token_at,
        first_text_at=None,
        tokens_per_second=_tokens_per_second(usage, first_token_at, turn.last_token_at),
    )


def _tokens_per_second(
    usage: TurnUsage, first_token_at: float | None, last_token_at: float | None
) -> float | None:
    """Return the speed after the first token, or None if it cannot be known.

    >>> _tokens_per_second(TurnUsage(input=3, output=11), 100.0, 102.0)
    5.0
    """
    if first_token_at is None or last_token_at is None or usage.output < 2:
        return None
    seconds = last_token_at - first_token_at
    return round((usage.output - 1) / seconds, 3) if seconds > 0 else None
