"""The trace headers that requests to tool servers and model servers carry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from functools import cached_property

from msgspec import Struct

from antiphon.application.telemetry.trace_ids import TraceIds

NO_HEADERS: Mapping[str, str] = {}

TRACE_HEADERS: ContextVar[Mapping[str, str]] = ContextVar("trace_headers", default=NO_HEADERS)
"""Of the response that the current task works for; empty without tracing."""


class Propagation(Struct, frozen=True, kw_only=True):
    """Hands the trace of responses on to model servers and tool servers."""

    sample_ratio: float = 1.0

    def trace_of(self, response_id: str, traceparent: str, *, is_linked: bool) -> PropagatedTrace:
        return PropagatedTrace(response_id, traceparent, is_linked, self.sample_ratio)

    def trace_in_background(self, response_id: str) -> PropagatedTrace:
        """Return the trace of a background response without its record: it is its own."""
        return self.trace_of(response_id, "", is_linked=True)


class PropagatedTrace:
    """The headers for what is done for one response, each computed when it is sent, if ever."""

    def __init__(
        self, response_id: str, traceparent: str, is_linked: bool, sample_ratio: float
    ) -> None:
        self._of = response_id, traceparent, is_linked, sample_ratio

    @cached_property
    def ids(self) -> TraceIds:
        response_id, traceparent, is_linked, sample_ratio = self._of
        return TraceIds.of(response_id, traceparent, is_linked=is_linked, sample_ratio=sample_ratio)

    def headers_of_response(self) -> Mapping[str, str]:
        """Return the headers of what is done for the response as a whole."""
        return _LazyHeaders(self)

    def headers_of_turn(self, turn: int, given: Mapping[str, str]) -> Mapping[str, str]:
        """Return the headers of a turn's requests; `given` are the client's."""
        return _LazyHeaders(self, turn, given)


class _LazyHeaders(Mapping[str, str]):
    def __init__(
        self, trace: PropagatedTrace, turn: int = 0, given: Mapping[str, str] = NO_HEADERS
    ) -> None:
        self._of = trace, turn, given

    @cached_property
    def _headers(self) -> Mapping[str, str]:
        trace, turn, given = self._of
        headers = {"traceparent": trace.ids.span(turn).traceparent}
        if trace.ids.parent is not None and "tracestate" in given:
            headers["tracestate"] = given["tracestate"]
        return headers

    def __getitem__(self, name: str) -> str:
        return self._headers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._headers)

    def __len__(self) -> int:
        return len(self._headers)
