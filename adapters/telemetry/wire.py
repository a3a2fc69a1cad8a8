"""Messages of OTLP as bytes of Protocol Buffers, made from parts that are remembered.

Most bytes of a span are those of other spans: only ids, times and values differ. The library
encodes the rest once, and what differs follows it: the fields of a message may come in any order
("Encoding" of Protocol Buffers). That takes two thirds of the time of filling in the library's
messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from struct import Struct
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1 import trace_pb2 as otlp

Value = str | bool | int | float | Sequence[str]
Attributes = Iterable[tuple[str, Value | None]]
"""Names and values; what is None is left out."""

NANOSECONDS = 1_000_000_000
MAX_PARTS = 4096
"""Heads of attributes and numbers that are remembered."""
MAX_INTEGER = 2**63 - 1

_NUMBER = Struct("<d")
_TIME = Struct("<Q")
_HEAD = Struct("<2s16s 2s8s cQ cQ 2sI")
"""A span's trace, id, start, end and flags, each after its tag, which includes a length."""


def encode_head(trace_id: bytes, span_id: bytes, times: tuple[float, float], flags: int) -> bytes:
    """Return the fields of a span that each one has; times are in seconds."""
    start, end = int(times[0] * NANOSECONDS), int(max(times) * NANOSECONDS)
    return _HEAD.pack(
        b"\x0a\x10",
        trace_id,
        b"\x12\x08",
        span_id,
        b"\x39",
        start,
        b"\x41",
        end,
        b"\x85\x01",
        flags,
    )


def encode_parent(span_id: bytes) -> bytes:
    return b"\x22\x08" + span_id


def encode_attributes(attributes: Attributes) -> bytes:
    """Return attributes as fields of a span."""
    parts: list[bytes] = []
    for name, value in attributes:
        if isinstance(value, str):
            text = value.encode("utf-8", "replace")
            parts += (_head_of_text(name, len(text)), text)
        elif isinstance(value, float):
            parts += (_head_of_number(name), _NUMBER.pack(value))
        elif isinstance(value, int) and value >= 0:
            number = _varint(value)
            parts += (_head_of_integer(name, len(number), isinstance(value, bool)), number)
        elif value is not None:
            parts.append(_encode_attribute(name, value))
    return b"".join(parts)


def encode_events(events: Iterable[tuple[str, float | None]]) -> bytes:
    """Return events as fields of a span: names, and times in seconds; None is left out."""
    parts: list[bytes] = []
    for name, time in events:
        if time is not None:
            before, after = _around_time(name)
            parts += (before, _TIME.pack(int(time * NANOSECONDS)), after)
    return b"".join(parts)


def _encode_attribute(name: str, value: Value) -> bytes:
    attribute = KeyValue(**_attribute(name, value)).SerializeToString()
    return encode_field(otlp.Span.ATTRIBUTES_FIELD_NUMBER, attribute)


@lru_cache(MAX_PARTS)
def _head_of_text(name: str, length: int) -> bytes:
    return _encode_attribute(name, "x" * length).removesuffix(b"x" * length)


@lru_cache(MAX_PARTS)
def _head_of_number(name: str) -> bytes:
    return _encode_attribute(name, 0.0)[: -_NUMBER.size]


@lru_cache(MAX_PARTS)
def _head_of_integer(name: str, length: int, is_bool: bool) -> bytes:
    largest = min((1 << 7 * length) - 1, MAX_INTEGER)
    return _encode_attribute(name, is_bool or largest)[:-length]


@lru_cache(MAX_PARTS)
def _around_time(name: str) -> tuple[bytes, bytes]:
    marker = b"\xff" * _TIME.size  # no byte of UTF-8
    event = otlp.Span.Event(name=name, time_unix_nano=_TIME.unpack(marker)[0])
    encoded = encode_field(otlp.Span.EVENTS_FIELD_NUMBER, event.SerializeToString())
    before, _, after = encoded.partition(marker)
    return before, after


def encode_field(number: int, message: bytes) -> bytes:
    """Return an encoded message as a field of another one.

    So what is encoded is not decoded again to be put into a larger message.
    """
    return encode_field_head(number, len(message)) + message


@lru_cache(MAX_PARTS)
def encode_field_head(number: int, length: int) -> bytes:
    """Return what is before an encoded message that is a field of another one."""
    return _varint(number << 3 | 2) + _varint(length)


@lru_cache(MAX_PARTS)
def _varint(value: int) -> bytes:
    """Return a number that is not negative, seven bits in each byte."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def attribute_fields(attributes: Attributes) -> list[Any]:
    """Return attributes as their messages are made from them."""
    return [_attribute(name, value) for name, value in attributes if value is not None]


def _attribute(name: str, value: Value) -> Mapping[str, Any]:
    return {"key": name, "value": _value(value)}


def _value(value: Value) -> Mapping[str, Any]:
    if isinstance(value, str):
        return {"string_value": to_utf8(value)}
    if isinstance(value, bool):  # before int, which it is, too
        return {"bool_value": value}
    if isinstance(value, int):
        return {"int_value": value}
    if isinstance(value, float):
        return {"double_value": value}
    return {"array_value": {"values": [{"string_value": to_utf8(each)} for each in value]}}


def to_utf8(text: str) -> str:
    """Return a text that is valid UTF-8: a tool server may name a tool with half a character."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
