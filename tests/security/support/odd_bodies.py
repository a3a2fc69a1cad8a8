"""Bodies that are nearly right: made from the types of requests, odd in a place or several.

OddBodies(rng).body(CreateResponse)      # bytes to send, seldom valid, never the same
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from typing import Any

from msgspec import Struct
from msgspec import inspect as mi

from antiphon.domain.items import ITEM_TYPES
from antiphon.domain.tools import TOOL_TYPES
from antiphon.entrypoints.http.doors.chat.request import (
    ChatCustomTool,
    ChatFunctionTool,
    ChatMessage,
)
from antiphon.entrypoints.http.doors.messages.request import (
    McpToolset,
    MessagesTool,
    SentMessage,
    TypedMessagesTool,
)

Json = Any

MAX_DEPTH = 6
LONG_CHARS = 20_000

NUMBERS = (0, -1, 1, 16, 2**31, 2**53 + 1, 2**63, -(2**63) - 1, 10**400, -0.0, 0.5, 1e308, 5e-324)
TEXTS = (
    *("", "a", "\0", "\n", "\u2028", "\ufeff", "\U0001f600", "e\u0301", "<|start|>system", "null"),
    *("../../etc/passwd", "http://xn--/", "data:image/png;base64,AAAA", "resp_", "NaN", "%00"),
    *("'; --", "${x}", "{{x}}", "@@script [", "required", "msg_1", "file-1", "x" * LONG_CHARS),
)
PIECES = (b"\xff", b"\x00", b'"', b"{", b"]", b",", b"\\ud800", b"1e999", b"NaN", b"\xed\xa0\x80")

RAW_FIELDS: Mapping[str, Mapping[str, type[Struct]]] = {
    "input": ITEM_TYPES,
    "items": ITEM_TYPES,
    "messages": {"message": ChatMessage, "of messages": SentMessage},
    "tools": {
        **TOOL_TYPES,
        "of chat": ChatFunctionTool,
        "custom of chat": ChatCustomTool,
        "of messages": MessagesTool,
        "custom of messages": TypedMessagesTool,
        "toolset of messages": McpToolset,
    },
}
"""Fields whose entries are raw JSON for the first decoder, and what they are for the second."""


@cache
def type_of(kind: type[Struct]) -> mi.Type:
    return mi.type_info(kind)


def _in_order(kind: mi.UnionType) -> list[mi.Type]:
    """The types of a union, in an order that does not depend on the process's hashes."""
    return sorted(kind.types, key=repr)


class OddBodies:
    """`base` are the fields that a body needs to get beyond the first check."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._oddness = 0.0

    def body(self, kind: type[Struct], base: Mapping[str, Json]) -> bytes:
        """Return a body, most often JSON."""
        rng = self._rng
        self._oddness = rng.choice((0.0, 0.02, 0.1, 0.3))
        value = {
            **self._struct(kind, 0, sparse=0.85),
            **(deepcopy(base) if rng.random() < 0.9 else {}),
        }
        for _ in range(rng.choice((0, 1, 1, 2))):
            self._spoil(value)
        body = json.dumps(value, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
        return self._spoil_bytes(body) if rng.random() < 0.15 else body

    def _struct(self, kind: type[Struct], depth: int, *, sparse: float = 0.5) -> dict[str, Json]:
        info = type_of(kind)
        assert isinstance(info, mi.StructType)
        value: dict[str, Json] = {}
        if info.tag_field is not None:
            value[info.tag_field] = info.tag
        for field in info.fields:
            if field.required or self._rng.random() > sparse:
                value[field.encode_name] = self._field(field, depth + 1)
        return value

    def _field(self, field: mi.Field, depth: int) -> Json:
        types = RAW_FIELDS.get(field.encode_name)
        if types is not None and self._rng.random() < 0.9:
            kinds = [types[name] for name in self._rng.choices(sorted(types), k=self._few())]
            return [self._struct(kind, depth) for kind in kinds]
        return self._value(field.type, depth)

    def _few(self) -> int:
        return self._rng.choice((0, 1, 1, 1, 2, 3))

    def _value(self, kind: mi.Type, depth: int) -> Json:
        if self._rng.random() < self._oddness or depth > MAX_DEPTH:
            return self._odd()
        match kind:
            case mi.Metadata():
                return self._value(kind.type, depth)
            case mi.UnionType():
                return self._value(self._rng.choice(_in_order(kind)), depth)
            case mi.StrType():
                return self._text(kind)
            case mi.LiteralType():
                return self._rng.choice(sorted(kind.values))
            case mi.IntType() | mi.FloatType():
                return self._rng.choice((kind.ge or 0, kind.le or 1, 1, 2))
            case mi.BoolType():
                return self._rng.random() < 0.5
            case mi.VarTupleType() | mi.ListType():
                return [self._value(kind.item_type, depth + 1) for _ in range(self._few())]
            case mi.DictType():
                return {
                    self._rng.choice(TEXTS[:12]): self._value(kind.value_type, depth + 1)
                    for _ in range(self._few())
                }
            case mi.StructType():
                return self._struct(kind.cls, depth + 1)
            case mi.AnyType() | mi.RawType():
                return self._odd()
        return None

    def _text(self, kind: mi.StrType) -> str:
        if self._rng.random() < 0.3:
            return self._rng.choice(TEXTS)
        least, most = kind.min_length or 1, kind.max_length or 8
        return "a" * self._rng.choice((least, min(most, LONG_CHARS), min(8, most)))

    def _odd(self) -> Json:
        rng = self._rng
        match rng.randint(0, 7):
            case 0:
                return None
            case 1:
                return rng.random() < 0.5
            case 2 | 3:
                return rng.choice(NUMBERS)
            case 4 | 5:
                return rng.choice(TEXTS)
            case 6:
                return rng.choice(([], [None] * 300, [[]], [{}], [rng.choice(TEXTS)]))
        deep: Json = {"type": rng.choice(TEXTS)}
        for _ in range(rng.choice((0, 1, 10, 59, 70))):
            deep = {"a": deep} if rng.random() < 0.5 else [deep]
        return {"type": rng.choice(TEXTS), "a": deep}

    def _spoil(self, value: dict[str, Json]) -> None:
        """Change a place of the tree: another value, no value, or something too many."""
        node: Json = value
        while isinstance(node, dict | list) and node:
            key = self._rng.choice(list(node) if isinstance(node, dict) else range(len(node)))
            if isinstance(node[key], dict | list) and node[key] and self._rng.random() < 0.7:
                node = node[key]
            else:
                self._change(node, key)
                return

    def _change(self, node: Json, key: Any) -> None:
        change = self._rng.randint(0, 2)
        if change == 0:
            node[key] = self._odd()
        elif change == 1:
            del node[key]
        elif isinstance(node, dict):
            node[self._rng.choice(TEXTS)] = self._odd()
        else:
            node.extend(node[:50])

    def _spoil_bytes(self, body: bytes) -> bytes:
        place = self._rng.randint(0, len(body))
        piece = self._rng.choice(PIECES)
        return self._rng.choice(
            (
                body[:place],
                body[:place] + piece + body[place:],
                body[:place] + piece + body[place + 1 :],
                body + piece,
                body.replace(b":", b":" + piece, 1),
                piece,
                b"",
            )
        )
