"""Bodies of requests in each of which one field is as long as it may be.

for path, value in LongValues(size=2_000_000).of(type_of(CreateResponse)): ...

The other fields have the smallest values of their types. What may be any JSON gets schemas of
several shapes, since most of such fields are schemas.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

from msgspec import inspect as mi

Json = Any
Found = tuple[str, Json]
"""The path of the long field, and the value that contains it."""

TEXTS: Mapping[str, str] = {
    "newlines": "\n",
    "spaces": " ",
    "slashes": "/",
    "words": "word ",
    "markers": "<|start|>",
    "escapes": '\\"',
}
"""What has been slow: each is repeated until the field is full."""

MAX_DEPTH = 7
SHORT_CHARS = 2000
"""A text that may not be longer is filled once."""


class LongValues:
    """`size` is the most characters of a field; the texts for it take turns, from `start` on."""

    def __init__(self, size: int, *, start: int = 0) -> None:
        self._size = size
        self._turns = count(start)

    def of(
        self, kind: mi.Type, depth: int = 0, outside: frozenset[type] = frozenset()
    ) -> Iterator[Found]:
        """Yield the values of a type in each of which one field is long."""
        for each in alternatives(kind):
            match each:
                case mi.StrType():
                    yield self._text(each)
                case mi.StructType() if each.cls not in outside and depth < MAX_DEPTH:
                    base = smallest(each)
                    for field in each.fields:
                        found = self.of(field.type, depth + 1, outside | {each.cls})
                        for path, value in found:
                            yield f".{field.encode_name}{path}", {**base, field.encode_name: value}
                case mi.ListType() | mi.VarTupleType() if depth < MAX_DEPTH:
                    yield self._list(each)
                    for path, value in self.of(each.item_type, depth + 1, outside):
                        yield f"[]{path}", [value]
                case mi.DictType() if depth < MAX_DEPTH:
                    for path, value in self.of(each.value_type, depth + 1, outside):
                        yield f"{{}}{path}", {"k": value}
                case mi.AnyType() | mi.RawType():
                    yield from self._schemas()

    def _text(self, kind: mi.StrType) -> Found:
        size = min(kind.max_length or self._size, self._size)
        if size <= SHORT_CHARS:
            return " short", "a" * size
        name, text = list(TEXTS.items())[next(self._turns) % len(TEXTS)]
        return f" {name}", (text * (size // len(text) + 1))[:size]

    def _list(self, kind: mi.ListType | mi.VarTupleType) -> Found:
        value = smallest(kind.item_type)
        room = self._size // (len(json.dumps(value)) + 1)
        length = min(kind.max_length or room, room)
        return f"[{length}]", [value] * length

    def _schemas(self) -> Iterator[Found]:
        size = self._size
        for name, schema in {
            "many properties": {f"p{n}": {"type": "string"} for n in range(size // 30)},
            "deep properties": {f"p{n}": _nested(10) for n in range(size // 350)},
            "long enum": {"e": {"enum": [f"value {n}\n" for n in range(size // 15)]}},
            "long description": {"e": {"type": "string", "description": "\n" * size}},
        }.items():
            yield f" {name}", {"type": "object", "properties": schema}


def _nested(levels: int) -> Json:
    return {"type": "object", "properties": {"a": _nested(levels - 1)}} if levels else {}


def alternatives(kind: mi.Type) -> list[mi.Type]:
    """Return the types that a value may have."""
    if isinstance(kind, mi.Metadata):
        return alternatives(kind.type)
    if isinstance(kind, mi.UnionType):
        return [each for part in kind.types for each in alternatives(part)]
    return [kind]


def smallest(kind: mi.Type) -> Json:
    """Return a small value of the type."""
    match next(each for each in alternatives(kind) if not isinstance(each, mi.NoneType)):
        case mi.StrType(min_length=length):
            return "a" * max(length or 0, 1)
        case mi.IntType() | mi.FloatType():
            return 1
        case mi.BoolType():
            return True
        case mi.LiteralType(values=values):
            return values[0]
        case mi.StructType(tag_field=tag_field, tag=tag, fields=fields):
            value = {each.encode_name: smallest(each.type) for each in fields if each.required}
            return value if tag_field is None else {tag_field: tag, **value}
        case (
            mi.ListType(item_type=item, min_length=length)
            | mi.VarTupleType(item_type=item, min_length=length)
        ):
            return [smallest(item)] * (length or 0)
        case _:
            return {}
