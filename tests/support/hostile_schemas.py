"""Patterns and schemas that take for ever, or all memory, if nothing bounds what they cause."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

HARD = "^(a+)+$"
LONG = "a" * 40 + "!"


def nested(depth: int, grow: Callable[[Any], Any], schema: Any) -> Any:
    for _ in range(depth):
        schema = grow(schema)
    return schema


def chained(depth: int, link: Callable[[Any], Any], end: Any) -> Any:
    """Return a schema whose definitions refer to the next one each."""
    links = {f"d{at}": link({"$ref": f"#/$defs/d{at + 1}"}) for at in range(depth)}
    return {"$defs": {**links, f"d{depth}": end}, "$ref": "#/$defs/d0"}


def pair(schema: Any) -> Any:
    return {"type": "object", "properties": {"a": schema, "b": schema}, "required": ["a", "b"]}


SCHEMAS: dict[str, Any] = {
    "pattern of a const": {"const": LONG, "pattern": HARD},
    "pattern of an enum": {"enum": [LONG], "pattern": HARD},
    "patterns of a name": {"required": [LONG], "patternProperties": {HARD: {}}, "type": "object"},
    "two patterns": {"allOf": [{"pattern": "^a{30}!"}, {"pattern": HARD}]},
    "a pattern of a power": {"const": "a" * 5000, "pattern": "a*a*a*a*a*b"},
    "patterns by names": {
        "type": "object",
        "required": [f"k{number}" for number in range(900)],
        "patternProperties": {f"k{number}.*": {} for number in range(900)},
    },
    "large classes": {
        "const": "x",
        "allOf": [{"pattern": rf"(?i)[^\w\s{chr(0x4E00 + number)}]"} for number in range(900)],
    },
    "long patterns": {
        "type": "object",
        "required": [f"k{number}" for number in range(99)],
        "properties": {
            f"k{number}": {"pattern": f"({'a' * 4900}|{'a' * 4900}{number})"}
            for number in range(99)
        },
    },
    "groups that are repeated": {"pattern": "(a{99999})" * 900},
    "long strings": {"type": "array", "minItems": 5000, "items": {"minLength": 100_000}},
    "a long const": {
        "$defs": {"long": {"const": "x" * 200_000}},
        "type": "array",
        "minItems": 5000,
        "items": {"$ref": "#/$defs/long"},
    },
    "items in items": nested(
        8, lambda inner: {"type": "array", "minItems": 10, "items": inner}, {"type": "integer"}
    ),
    "unique items": {
        "type": "array",
        "minItems": 5000,
        "uniqueItems": True,
        "prefixItems": [{"const": number} for number in range(5000)],
    },
    "enums that share nothing": {
        "allOf": [
            {"enum": [f"a{number}" for number in range(15_000)]},
            {"enum": [f"b{number}" for number in range(15_000)]},
        ]
    },
    "deep enums": {
        "allOf": [
            {"enum": [nested(50, lambda inner: [inner], sign * at) for at in range(1, 400)]}
            for sign in (1, -1)
        ]
    },
    "enums of lists that share nothing": {
        "allOf": [{"enum": [[sign * at] for at in range(1, 10_000)]} for sign in (1, -1)]
    },
    "options that exclude each other": {
        "oneOf": [
            {
                "type": "object",
                "properties": {
                    "kind": {"const": kind},
                    **{f"p{at}": {"type": "string", "maxLength": 5} for at in range(300)},
                },
                "required": ["kind"],
            }
            for kind in range(60)
        ]
    },
    "properties in many parts": {
        "allOf": [
            {"properties": {f"p{part}_{at}": {"type": "null"} for at in range(100)}}
            for part in range(300)
        ]
    },
    "an enum beyond its maximum": {"enum": list(range(1, 40_000)), "maximum": 0},
    "products": {
        "allOf": [
            {"anyOf": [{"type": "integer", "minimum": at * by, "maximum": -1} for at in range(20)]}
            for by in range(20)
        ]
    },
    "doublings of all": chained(40, lambda to: {"allOf": [to, {"allOf": [to]}]}, {"type": "null"}),
    "doublings of any": chained(40, lambda to: {"anyOf": [to, to]}, False),
    "doublings of properties": chained(40, pair, {"const": "x" * 1000}),
    "a circle": {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    "many properties": {
        "allOf": [
            {"type": "object", "properties": {f"p{at}": {}}, "required": [f"p{at}"]}
            for at in range(3000)
        ]
    },
    "names that are required twice": {
        "type": "array",
        "minItems": 1000,
        "items": {"type": "object", "required": ["a"] * 40_000},
    },
    "multiples": {
        "allOf": [{"type": "integer", "multipleOf": 10**9 + number} for number in range(400)],
        "minimum": 1,
    },
    "multiples of infinity": {"type": "number", "multipleOf": float("inf")},
    "a reference that is none": {
        "type": "array",
        "minItems": 2000,
        "items": {"$ref": "#" + "/%41" * 100_000},
    },
}
