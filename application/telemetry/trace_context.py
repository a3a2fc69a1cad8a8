"""The trace headers that requests to tool servers carry while a response runs."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar

from msgspec import Struct

from antiphon.application.telemetry.recorder import RunRecorder
from antiphon.application.telemetry.trace_ids import RESPONSE, TraceIds, turn_part

NO_HEADERS: Mapping[str, str] = {}

TRACE_HEADERS: ContextVar[Mapping[str, str]] = ContextVar("trace_headers", default=NO_HEADERS)
"""Of the response that the current task works for; empty without tracing."""


class Propagation(Struct, frozen=True, kw_only=True):
    """Hands the trace of responses on to model servers and tool servers."""

    sample_ratio: float = 1.0

    def ids_of(self, response_id: str, recorder: RunRecorder) -> TraceIds:
        return TraceIds.of(
            response_id,
            recorder.traceparent,
            is_linked=recorder.links_trace,
            sample_ratio=self.sample_ratio,
        )

    def ids_in_background(self, response_id: str) -> TraceIds:
        """Return the ids of a background response without its record: its trace is its own."""
        return TraceIds.of(response_id, "", is_linked=True, sample_ratio=self.sample_ratio)


def headers_of_response(ids: TraceIds) -> dict[str, str]:
    """Return the headers of what is done for the response as a whole."""
    return {"traceparent": ids.span(RESPONSE).traceparent}


def headers_of_turn(ids: TraceIds, turn: int, given: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of a turn's requests; `given` are the client's."""
    headers = {"traceparent": ids.span(turn_part(turn)).traceparent}
    if ids.parent is not None and "tracestate" in given:
        headers["tracestate"] = given["tracestate"]
    return headers
