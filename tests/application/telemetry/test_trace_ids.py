"""The ids of traces: derived from the response, so that all servers know them."""

from __future__ import annotations

import pytest

from antiphon.application.telemetry.trace_ids import SpanContext, TraceIds, parse_traceparent

TRACE, SPAN = "a" * 32, "b" * 16
HEADER = f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(
    "header",
    [
        "",
        "00",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01\n",
        f"00-{TRACE}-{SPAN}-0x",
    ],
)
def test_a_malformed_header_is_no_trace(header: str) -> None:
    assert parse_traceparent(header) is None


def test_a_header_of_a_later_version_is_read() -> None:
    assert parse_traceparent(f"01-{TRACE}-{SPAN}-03-more") == SpanContext(TRACE, SPAN)
    assert parse_traceparent(f"00-{TRACE}-{SPAN}-00") == SpanContext(TRACE, SPAN, is_sampled=False)


def test_a_response_joins_the_trace_of_its_client() -> None:
    ids = TraceIds.of("resp_1", HEADER, is_linked=False, sample_ratio=0)
    assert (ids.trace_id, ids.parent, ids.link) == (TRACE, SpanContext(TRACE, SPAN), None)
    assert ids.is_sampled


def test_a_response_that_outlives_its_request_only_links() -> None:
    ids = TraceIds.of("resp_1", HEADER, is_linked=True)
    assert ids.trace_id != TRACE
    assert (ids.parent, ids.link) == (None, SpanContext(TRACE, SPAN))


def test_each_part_has_a_span_that_stays_the_same() -> None:
    ids = TraceIds.of("resp_1", "", is_linked=False)
    parts = [(), (1,), (2,), (1, 1), (1, 2), (2, 1)]
    spans = [ids.span(*part) for part in parts]
    assert len({span.span_id for span in spans}) == len(parts)
    assert spans == [TraceIds.of("resp_1", "", is_linked=True).span(*part) for part in parts]
    assert ids.span() != TraceIds.of("resp_2", "", is_linked=False).span()
    assert parse_traceparent(spans[0].traceparent) == spans[0]


def test_the_ratio_is_the_share_of_traces() -> None:
    def share(ratio: float) -> float:
        names = [f"resp_{number}" for number in range(2000)]
        traced = [TraceIds.of(n, "", is_linked=False, sample_ratio=ratio).is_sampled for n in names]
        return sum(traced) / len(traced)

    assert share(0) == 0
    assert share(1) == 1
    assert 0.2 < share(0.25) < 0.3
