"""What is put together from remembered bytes is what the library of OTLP encodes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1 import trace_pb2 as otlp

from antiphon.adapters.telemetry import wire

NAMES = st.text(st.characters(codec="utf-8"), max_size=200)
MICROSECONDS = st.integers(0, 2**53)
VALUES = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8"), max_size=300)
    | st.tuples(st.text(st.characters(codec="utf-8")))
)


def nanoseconds(microseconds: int) -> int:
    return int(microseconds / 1e6 * 1e9)


@given(NAMES, VALUES)
def test_an_attribute_is_as_the_library_encodes_it(name: str, value: wire.Value) -> None:
    read = otlp.Span.FromString(wire.encode_attributes([(name, value)]))
    assert read == otlp.Span(attributes=wire.attribute_fields([(name, value)]))


@given(NAMES, MICROSECONDS)
def test_an_event_is_as_the_library_encodes_it(name: str, time: int) -> None:
    read = otlp.Span.FromString(wire.encode_events([(name, time / 1e6), ("later", None)]))
    assert read == otlp.Span(events=[otlp.Span.Event(name=name, time_unix_nano=nanoseconds(time))])


@given(
    st.binary(min_size=16, max_size=16),
    st.binary(min_size=8, max_size=8),
    MICROSECONDS,
    MICROSECONDS,
    st.integers(0, 2**32 - 1),
)
def test_the_head_of_a_span_is_as_the_library_encodes_it(
    trace_id: bytes, span_id: bytes, start: int, end: int, flags: int
) -> None:
    times = start / 1e6, end / 1e6
    encoded = wire.encode_head(trace_id, span_id, times, flags) + wire.encode_parent(span_id)
    assert otlp.Span.FromString(encoded) == otlp.Span(
        trace_id=trace_id,
        span_id=span_id,
        parent_span_id=span_id,
        start_time_unix_nano=nanoseconds(start),
        end_time_unix_nano=nanoseconds(max(start, end)),
        flags=flags,
    )


@given(st.integers(0, 300) | st.just(100_000))
def test_a_field_of_any_length_is_read_again(length: int) -> None:
    encoded = wire.encode_field(otlp.Span.TRACE_STATE_FIELD_NUMBER, b"a" * length)
    assert otlp.Span.FromString(encoded).trace_state == "a" * length


def test_half_a_character_becomes_a_question_mark() -> None:
    read = otlp.Span.FromString(wire.encode_attributes([("name", "a\ud800")]))
    assert read.attributes[0].value.string_value == "a?"


def test_a_number_and_a_truth_are_different_attributes() -> None:
    one, true = (
        otlp.Span.FromString(wire.encode_attributes([("name", value)])).attributes[0].value
        for value in (1, True)
    )
    assert (one.WhichOneof("value"), true.WhichOneof("value")) == ("int_value", "bool_value")
