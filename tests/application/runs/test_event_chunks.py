"""Event chunks are decoded to the same bytes, or rejected as corrupt."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import msgspec.inspect as mi
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import force_setattr, replace

from antiphon.application.runs.event_chunks import (
    CHECKSUM_BYTES,
    decode_chunk,
    encode_chunk,
    make_chunk,
)
from antiphon.domain import events as e
from antiphon.domain.errors import CorruptLog, StoreError
from antiphon.domain.events import EVENT_TYPES, Event
from antiphon.domain.items import ITEM_TYPES, AnyItem
from antiphon.domain.responses.response import Response

STREAMS = Path(__file__).parents[2] / "golden" / "streams"

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
NUMBERS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
ANYTHING = st.recursive(
    st.none() | st.booleans() | NUMBERS | FLOATS | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=3,
)


@cache
def structs(cls: type[Any]) -> st.SearchStrategy[Any]:
    fields = mi.type_info(cls).fields  # type: ignore[attr-defined]
    values = {field.name: values_of(field.type) for field in fields}
    required = {field.name: values.pop(field.name) for field in fields if field.required}
    return st.fixed_dictionaries(required, optional=values).map(lambda values: cls(**values))


def values_of(kind: mi.Type) -> st.SearchStrategy[Any]:
    """Return a strategy for the values of a type."""
    match kind:
        case mi.StructType(cls=cls):
            return structs(cls)
        case mi.UnionType(types=types):
            return st.one_of(*map(values_of, types))
        case mi.VarTupleType(item_type=item):
            return st.lists(values_of(item), max_size=2).map(tuple)
        case mi.DictType(key_type=key, value_type=value):
            return st.dictionaries(values_of(key), values_of(value), max_size=2)
        case mi.LiteralType(values=values):
            return st.sampled_from(values)
        case mi.StrType(pattern=str()):
            return st.just("name-1")
        case mi.StrType(min_length=int(length)) if length:
            return st.text("aé\n", min_size=length, max_size=length + 2)
        case mi.StrType():
            return TEXTS
        case mi.RawType():
            return ANYTHING.map(lambda value: msgspec.Raw(msgspec.json.encode(value)))
    simple: dict[type[Any], st.SearchStrategy[Any]] = {
        mi.AnyType: ANYTHING,
        mi.NoneType: st.none(),
        mi.BoolType: st.booleans(),
        mi.IntType: NUMBERS,
        mi.FloatType: FLOATS,
    }
    return simple[type(kind)]


def numbered(event: Event, number: int) -> Event:
    force_setattr(event, "sequence_number", number)
    return event


def assert_same_bytes(events: list[Event]) -> None:
    chunk = encode_chunk(events)
    decoded = decode_chunk(chunk)
    assert [type(event) for event in decoded] == [type(event) for event in events]
    lines = [msgspec.json.encode(event) for event in events]
    assert [msgspec.json.encode(event) for event in decoded] == lines
    assert chunk.body[CHECKSUM_BYTES:] == b"".join(line + b"\n" for line in lines)
    assert encode_chunk(decoded) == chunk


def text(number: int, delta: str = "x") -> Event:
    return e.TextDelta(
        sequence_number=number, item_id="msg_1", output_index=0, content_index=0, delta=delta
    )


@pytest.mark.parametrize("name", sorted(folder.name for folder in STREAMS.iterdir()))
def test_recorded_streams_are_decoded_to_the_same_bytes(name: str) -> None:
    lines = (STREAMS / name / "stream.sse").read_text().split("\n")
    payloads = [line[6:].encode() for line in lines if line.startswith("data: {")]
    kinds = [EVENT_TYPES[msgspec.json.decode(line)["type"]] for line in payloads]
    assert_same_bytes(
        [msgspec.json.decode(line, type=kind) for line, kind in zip(payloads, kinds, strict=True)]
    )


@pytest.mark.parametrize("name", sorted(EVENT_TYPES))
@settings(max_examples=10)
@given(data=st.data())
def test_every_type_of_event_is_decoded_to_the_same_bytes(name: str, data: st.DataObject) -> None:
    strategy = structs(EVENT_TYPES[name])
    events = data.draw(st.lists(strategy, min_size=1, max_size=2))
    first = data.draw(st.integers(0, 2**40))
    assert_same_bytes([numbered(event, number) for number, event in enumerate(events, first)])


@pytest.mark.parametrize("name", sorted(ITEM_TYPES))
@settings(max_examples=20)
@given(data=st.data())
def test_every_type_of_item_is_decoded_to_the_same_bytes(name: str, data: st.DataObject) -> None:
    item: AnyItem = data.draw(structs(ITEM_TYPES[name]))
    response = Response(id="resp_1", created_at=1, model="m", output=(item,))
    assert_same_bytes(
        [
            e.ItemAdded(sequence_number=0, output_index=0, item=item),
            e.ItemDone(sequence_number=1, output_index=0, item=item),
            e.Completed(sequence_number=2, response=response),
        ]
    )


def test_an_unknown_tool_keeps_all_its_fields() -> None:
    tools = (msgspec.Raw(b'{"type":"later_tool","x":[1.50,{"y":null}]}'),)
    response = Response(id="resp_1", created_at=1, model="m", tools=tools)
    assert_same_bytes([e.Created(sequence_number=0, response=response)])


@pytest.mark.parametrize("delta", ["\n", "\r\n", "\u2028", "\x00", "😀", '"\\'])
def test_no_text_breaks_a_line(delta: str) -> None:
    assert_same_bytes([text(0, delta), text(1)])


def test_a_corrupt_log_is_a_store_error() -> None:
    assert issubclass(CorruptLog, StoreError)


def test_every_flipped_bit_is_detected() -> None:
    chunk = encode_chunk([text(5), text(6)])
    for place in range(len(chunk.body)):
        body = bytearray(chunk.body)
        body[place] ^= 1
        with pytest.raises(CorruptLog):
            decode_chunk(replace(chunk, body=bytes(body)))


def test_every_truncation_is_detected() -> None:
    chunk = encode_chunk([text(5), text(6)])
    for length in range(len(chunk.body)):
        with pytest.raises(CorruptLog):
            decode_chunk(replace(chunk, body=chunk.body[:length]))


@pytest.mark.parametrize("changed", [{"first": 4}, {"count": 1}, {"count": 3}])
def test_a_chunk_with_wrong_numbers_is_rejected(changed: dict[str, int]) -> None:
    with pytest.raises(CorruptLog, match="other numbers"):
        decode_chunk(replace(encode_chunk([text(5), text(6)]), **changed))


def test_events_with_a_gap_in_their_numbers_are_rejected() -> None:
    with pytest.raises(CorruptLog):
        decode_chunk(encode_chunk([text(5), text(7)]))


def test_an_unknown_event_is_rejected() -> None:
    lines = b'{"type":"response.from_a_later_release","sequence_number":0}\n'
    with pytest.raises(CorruptLog, match="cannot be decoded"):
        decode_chunk(make_chunk(0, 1, [lines]))
