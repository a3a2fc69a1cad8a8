"""Which JSON types a tool's schema allows for a value that a model writes as plain text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from antiphon.adapters.formats.chat_template.payloads.json_values import parse_json, quote_json
from antiphon.domain.json import Json

STRING, NULL = "string", "null"
TEXT_TYPES = frozenset({STRING, NULL})
"""A value of these types is passed on as it is, except one of NULLS where null is allowed."""

NULLS = ("null", "None")
"""Null in JSON, and as templates write Python's values."""

UNKNOWN: frozenset[str] = frozenset()
"""What a schema allows that does not say it. Models write texts there, so it is read as one."""

ALTERNATIVES = ("anyOf", "oneOf", "allOf")
COMBINATIONS = frozenset({"$ref", *ALTERNATIVES})
"""What makes a schema a combination of others."""

KEYWORDS: Mapping[str, str] = {
    "properties": "object",
    "additionalProperties": "object",
    "items": "array",
    "prefixItems": "array",
}
"""The type that a keyword is about, for schemas that name none."""


class ArgumentSchemas:
    """The schemas of a tool's arguments. A client writes them, so all calls read them once."""

    def __init__(self, schema: Json) -> None:
        self.of_all = schema
        self.properties = properties_of(schema)
        self._types: dict[str, frozenset[str]] = {}

    def types_of(self, key: str) -> frozenset[str]:
        """Return the types of an argument, UNKNOWN if there is none with this name."""
        if key not in self.properties:
            return UNKNOWN
        if key not in self._types:
            self._types[key] = types_of(self.properties[key], self.of_all)
        return self._types[key]


def properties_of(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schemas of all arguments by name, those of alternatives among them.

    >>> properties_of({"oneOf": [{"properties": {"a": {"const": 1}}}, {"properties": {"b": {}}}]})
    {'a': {'const': 1}, 'b': {}}
    """
    if COMBINATIONS.isdisjoint(schema):
        properties = schema.get("properties")
        return properties if isinstance(properties, dict) else {}
    found: dict[str, list[Any]] = {}
    for part in _parts(schema, schema, set()):
        properties = part.get("properties")
        for name, own in properties.items() if isinstance(properties, dict) else ():
            found.setdefault(name, []).append(own)
    return {name: each[0] if len(each) == 1 else {"anyOf": each} for name, each in found.items()}


def _parts(schema: Any, root: Mapping[str, Any], followed: set[str]) -> Iterator[Mapping[str, Any]]:
    """Yield a schema and those that it is a combination of."""
    if not isinstance(schema, dict):
        return
    yield schema
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in followed:
        followed.add(reference)
        yield from _parts(resolve(reference, root), root, followed)
    for keyword in ALTERNATIVES:
        for alternative in _as_list(schema.get(keyword)):
            yield from _parts(alternative, root, followed)


def types_of(schema: Any, root: Mapping[str, Any]) -> frozenset[str]:
    """Return the types that a schema allows, UNKNOWN if it does not say.

    `root` is the schema in which its references are resolved.
    """
    return frozenset(_types(schema, root, set()))


def _types(schema: Any, root: Mapping[str, Any], followed: set[str]) -> Iterator[str]:
    if not isinstance(schema, dict):
        return
    declared = schema.get("type")
    named = [name for name in (_as_list(declared) or [declared]) if isinstance(name, str)]
    yield from named
    if schema.get("nullable") is True:
        yield NULL
    if named:
        return
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in followed:
        followed.add(reference)
        target = resolve(reference, root)
        yield from ["object"] if target is None else _types(target, root, followed)
    for keyword in ALTERNATIVES:
        for alternative in _as_list(schema.get(keyword)):
            yield from _types(alternative, root, followed)
    values = [schema["const"]] if "const" in schema else _as_list(schema.get("enum"))
    yield from map(type_of, values)
    yield from (kind for keyword, kind in KEYWORDS.items() if keyword in schema)


def resolve(reference: str, root: Mapping[str, Any]) -> Any:
    """Return the schema that a reference like `#/$defs/name` points to, None if there is none."""
    value: Any = root
    for part in reference.removeprefix("#").split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        value = value.get(name) if isinstance(value, dict) else None
    return value


def type_of(value: Any) -> str:
    """Return the JSON type of a value: "integer" for a number without a fraction."""
    match value:
        case None:
            return NULL
        case bool():
            return "boolean"
        case str():
            return STRING
        case float():
            return "integer" if value.is_integer() else "number"
        case int():
            return "integer"
        case list():
            return "array"
    return "object"


def fits(value: Any, types: frozenset[str]) -> bool:
    """Whether a value is of one of the types."""
    name = type_of(value)
    return name in types or (name == "integer" and "number" in types)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


PYTHON_NAMES: Mapping[str, Any] = {
    "True": True, "False": False, "None": None, "true": True, "false": False, "null": None,
}  # fmt: skip


def text_to_json(text: str) -> str:
    """Return the text itself if it is JSON, or as a JSON string.

    >>> text_to_json(" 3"), text_to_json("True"), text_to_json("three")
    ('3', 'true', '"three"')
    """
    bare = text.strip()
    if bare in PYTHON_NAMES:
        return json.dumps(PYTHON_NAMES[bare])
    return quote_json(text) if parse_json(bare) is None else bare
