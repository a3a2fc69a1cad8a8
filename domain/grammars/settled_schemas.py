"""Schemas without combinations: what the keywords of one say together of its types and values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

import msgspec

Schema = Mapping[str, Any]

TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
COMBINING = ("$ref", "allOf", "anyOf", "oneOf")
LENGTHS = ("minLength", "maxLength")
OF_OBJECTS = ("properties", "patternProperties", "additionalProperties")
OF_ARRAYS = ("items", "prefixItems")
ASSERTIONS = frozenset(
    {
        *(*COMBINING, *LENGTHS, *OF_OBJECTS, *OF_ARRAYS),
        *("type", "enum", "const", "pattern", "format", "multipleOf"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
        *("required", "propertyNames", "minProperties", "maxProperties", "unevaluatedProperties"),
        *("minItems", "maxItems", "additionalItems", "unevaluatedItems"),
    }
)
"""The keywords that say something of a value. Others allow any, such as `title`."""


def _common_types(left: Any, right: Any) -> list[str]:
    lefts, rights = ([each] if isinstance(each, str) else [*each] for each in (left, right))
    common = [each for each in lefts if each in rights]
    if "integer" not in common and "integer" in (*lefts, *rights):
        common += ["integer"] if "number" in (*lefts, *rights) else []
    return common


def _common_values(lefts: Sequence[Any], rights: Sequence[Any]) -> list[Any]:
    known = {identity(each) for each in rights}
    return [each for each in lefts if identity(each) in known]


def identity(value: Any) -> Any:
    """Return the same for values that JSON takes as equal: 1 is 1.0, but neither is true.

    Of lists and objects, it is the same only if they are written alike.
    """
    if isinstance(value, Mapping | list | tuple):
        return msgspec.json.encode(value, order="deterministic")
    return isinstance(value, bool), value


TIGHTER: Mapping[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"), min),
    "required": lambda left, right: list(dict.fromkeys([*left, *right])),
    "enum": _common_values,
    "type": _common_types,
}


def settle(schema: Any) -> Any:
    """Return the schema without types and values that it excludes; False if none is left."""
    if not isinstance(schema, Mapping):
        return schema
    declared = schema.get("type")
    declared = TYPES if declared is None else declared
    kinds = [declared] if isinstance(declared, str) else [*declared]
    excluded = {kind for kind in kinds if _is_impossible(kind, schema)}
    left = [kind for kind in kinds if kind not in excluded]
    if not left:
        return False
    kept = dict(schema)
    if excluded:
        kept["type"] = left
    if "const" in kept:
        only = kept.pop("const")
        values = kept.get("enum", [only])
        kept["enum"] = [each for each in values if identity(each) == identity(only)]
    if isinstance(kept.get("enum"), Sequence) and len(kept.keys() & ASSERTIONS) > 1:
        kept["enum"] = [each for each in kept["enum"] if _is_allowed(each, left, kept)]
        kept = {key: each for key, each in kept.items() if not _is_decided(key, kept["enum"])}
    return False if kept.get("enum") == [] else kept


UNDECIDED: Mapping[str, Any] = {
    **dict.fromkeys(("pattern", "format"), str),
    "multipleOf": (int, float),
    **dict.fromkeys(("properties", "required", "additionalProperties", "patternProperties"), dict),
    **dict.fromkeys(("propertyNames", "minProperties", "maxProperties"), dict),
    **dict.fromkeys(("items", "prefixItems", "minItems", "maxItems"), list),
}
"""The keywords that say more of values of a type than is looked at here."""


def _is_decided(key: str, values: Sequence[Any]) -> bool:
    """Whether a keyword says no more of these values."""
    if key in ("type", "enum") or key not in ASSERTIONS:
        return False
    return not any(isinstance(each, UNDECIDED.get(key, ())) for each in values)


def _is_allowed(value: Any, kinds: Sequence[str], schema: Schema) -> bool:
    match value:
        case bool():
            return "boolean" in kinds
        case None:
            return "null" in kinds
        case int() | float():
            is_whole = isinstance(value, int) or value.is_integer()
            low, high = _bounds(schema)
            return ("number" in kinds or (is_whole and "integer" in kinds)) and low <= value <= high
        case str():
            least, most = schema.get("minLength") or 0, schema.get("maxLength")
            return "string" in kinds and least <= len(value) <= (inf if most is None else most)
        case list() | tuple():
            return "array" in kinds
    return "object" in kinds


def _bounds(schema: Schema) -> tuple[float, float]:
    low = max(schema.get("minimum", -inf), schema.get("exclusiveMinimum", -inf))
    return low, min(schema.get("maximum", inf), schema.get("exclusiveMaximum", inf))


def _is_impossible(kind: str, schema: Schema) -> bool:
    """Whether no value of this type satisfies the schema, as its own keywords tell."""
    match kind:
        case "object":
            properties = schema.get("properties") or {}
            closed = schema.get("additionalProperties") is False
            closed = closed and not schema.get("patternProperties")
            return _is_crossed(schema, "minProperties", "maxProperties") or any(
                properties.get(name, not closed) is False for name in schema.get("required") or ()
            )
        case "array":
            first = schema.get("prefixItems") or ()
            least = schema.get("minItems") or 0
            return _is_crossed(schema, "minItems", "maxItems") or (
                any(each is False for each in first[:least])
                or (schema.get("items") is False and least > len(first))
            )
        case "string":
            return _is_crossed(schema, "minLength", "maxLength")
        case "number" | "integer":
            low, high = _bounds(schema)
            return low > high
    return False


def _is_crossed(schema: Schema, least: str, most: str) -> bool:
    return schema.get(most) is not None and schema[most] < (schema.get(least) or 0)
