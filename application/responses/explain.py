"""Explain a response: gather everything that the server has of it in one bundle."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import aclosing

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from antiphon.application.ports import Store
from antiphon.application.responses.follow import FollowResponse
from antiphon.application.responses.get import GetResponse
from antiphon.application.support.threads import compute_in_thread
from antiphon.application.telemetry.run_trace import KeepTraces
from antiphon.domain.errors import NotFound, RequestError
from antiphon.domain.events import Event
from antiphon.domain.responses.response import TERMINAL, Response
from antiphon.domain.responses.traces import (
    Bundle,
    PrefixComparison,
    TimedEvent,
    Trace,
    TracedBatch,
    compare_prefix,
)

NO_EVENTS = (
    "The events are not here: the server no longer has them, or never stored them. The log of a "
    "finished response is kept for `keep_events_s` seconds."
)
NOT_ENDED = "The response has not ended: its events and its trace are written at its end."
NO_TRACE = (
    "The prompts, the raw text of the model and the request are not here: this server keeps no "
    "trace of such a response. Set `keep_traces` to `all`, or to `failed` for responses that do "
    "not complete, and run the request again."
)
UNREADABLE_TRACE = (
    "The trace of this response cannot be read: another `seal_key_file` has sealed it."
)
CUT = (
    "Parts of the trace were left out, because it is larger than `keep_trace_bytes`: see `cut` in "
    "the turns."
)


class ExplainResponse:
    """Makes the bundle of a response, which it never changes."""

    def __init__(
        self, get: GetResponse, follow: FollowResponse, store: Store, traces: KeepTraces
    ) -> None:
        self._get = get
        self._follow = follow
        self._store = store
        self._traces = traces

    async def __call__(self, tenant: str, response_id: str) -> bytes:
        """Return the bundle as JSON. Raises: NotFound, StoreError."""
        response = await self._get(tenant, response_id)
        has_ended = response.status in TERMINAL
        items = await self._store.list_input_items(tenant, response_id)
        sealed = await self._store.get_trace(tenant, response_id) is not None
        trace = await self._traces.load(tenant, response_id) if sealed else None
        events = await self._events(tenant, response_id) if has_ended else ()
        missing = _missing(trace, events, has_ended=has_ended, is_sealed=sealed)
        prefix = await self._prefix(tenant, response, trace)
        bundle = Bundle(
            response_id=response_id,
            exported_at=round(time.time(), 6),
            server=trace.server if trace else self._traces.server(),
            request=trace.request if trace else None,
            response=Raw(b"null"),
            input_items=tuple(item.raw for item in items),
            turns=trace.turns if trace else (),
            prefix=prefix,
            missing=missing,
        )
        return await compute_in_thread(_encode, bundle, response, trace, events)

    async def _events(self, tenant: str, response_id: str) -> Sequence[Event]:
        """Return the events of an ended response; none if the log is gone."""
        try:
            reader = await self._follow(tenant, response_id)
        except RequestError:
            return ()
        async with aclosing(reader):
            return [event async for batch in reader for event in batch]

    async def _prefix(
        self, tenant: str, response: Response, trace: Trace | None
    ) -> PrefixComparison | None:
        """Compare the first prompt with the last one of the previous response, if both exist."""
        previous_id = response.previous_response_id
        if previous_id is None or trace is None:
            return None
        try:
            parent = await self._traces.load(tenant, previous_id)
        except NotFound:
            return None
        before = [turn for turn in parent.turns if turn.prompt_token_ids] if parent else []
        after = [turn for turn in trace.turns if turn.prompt_token_ids]
        if not before or not after:
            return None
        written = (*before[-1].prompt_token_ids, *before[-1].output_token_ids)
        return compare_prefix(previous_id, written, after[0].prompt_token_ids)


def _missing(
    trace: Trace | None, events: Sequence[Event], *, has_ended: bool, is_sealed: bool
) -> tuple[str, ...]:
    if not has_ended:
        return (NOT_ENDED,)
    is_cut = trace is not None and (trace.cut or any(turn.cut for turn in trace.turns))
    reasons = {
        NO_EVENTS: not events,
        NO_TRACE: not is_sealed,
        UNREADABLE_TRACE: is_sealed and trace is None,
        CUT: bool(is_cut),
    }
    return tuple(reason for reason, holds in reasons.items() if holds)


def _encode(
    bundle: Bundle, response: Response, trace: Trace | None, events: Sequence[Event]
) -> bytes:
    batches = [batch for turn in trace.turns for batch in turn.batches] if trace else []
    marks = [batch for batch in batches if batch.last_event >= 0]
    timed = tuple(
        TimedEvent(at=_time_of(event, trace, marks), event=Raw(msgspec.json.encode(event)))
        for event in events
    )
    whole = replace(bundle, response=Raw(msgspec.json.encode(response)), events=timed)
    return msgspec.json.encode(whole)


def _time_of(event: Event, trace: Trace | None, marks: Sequence[TracedBatch]) -> float | None:
    """Return when an event was written; those after the last batch have no time."""
    if trace is None:
        return None
    index = bisect_left(marks, event.sequence_number, key=lambda batch: batch.last_event)
    return round(trace.started_at + marks[index].at, 6) if index < len(marks) else None
