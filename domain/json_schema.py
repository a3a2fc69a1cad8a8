"""Schemas that no engine can enforce, whole or in part.

They have types that do not exist, references to nowhere, keywords that no grammar can hold, or
nothing that satisfies them. To enforce part of a schema without a word would be a lie.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from antiphon.domain.errors import InvalidGrammar
from antiphon.domain.grammars import check_pattern
from antiphon.domain.grammars.plain_schemas import CannotEnforce, plain_schema
from antiphon.domain.grammars.references import resolve

TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")

ONE = frozenset(
    {
        *("additionalItems", "additionalProperties", "contains", "else", "if", "items", "not"),
        *("propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"),
    }
)
LISTS = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
MAPS = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})
"""The keywords with one schema, with a list of them, and with an object of them."""

NEVER_ENFORCED = frozenset(
    {
        *("contains", "dependencies", "dependentRequired", "dependentSchemas", "if", "not"),
        "uniqueItems",
    }
)
"""The keywords that no engine's grammar can hold."""

CLOSING = frozenset(
    {"additionalItems", "additionalProperties", "items"}
    | {"unevaluatedItems", "unevaluatedProperties"}
)
"""The keywords whose schema may be `false`: there is no more of something."""

MAX_NAME_CHARS = 60
MAX_PATTERN_CHARS = 8192
CHARS_OF_PATTERN = 16
MAX_PATTERN_RANGES = 40_000
"""In all patterns of a schema: their characters, where each pattern costs some more, and the ranges
in their classes. To read them takes some 20 ms at the most."""

MAX_REFERENCE_CHARS = 10_000


def find_schema_problem(root: Any, *, is_strict: bool = True) -> str | None:
    """Say what no engine can enforce in a JSON Schema (draft 2020-12), and where; None if nothing.

    Where it is not strict, keywords that cannot be enforced are none: `loosen` takes them away.

    >>> find_schema_problem({"properties": {"a": 5}})
    '#/properties/a must be a schema, not 5'
    >>> find_schema_problem({"items": {"$ref": "#/$defs/node"}})
    "#/items/$ref is '#/$defs/node', which is not in the schema"
    >>> find_schema_problem({"items": {"uniqueItems": True}})
    '#/items/uniqueItems cannot be enforced'
    """
    problem = _find_problem(root, is_strict=is_strict)
    if problem is not None or not is_strict:
        return problem
    try:
        plain_schema(root)
    except CannotEnforce as error:
        return f"{error} cannot be enforced"
    return None


def _find_problem(root: Any, *, is_strict: bool) -> str | None:
    """Return what is wrong with one keyword."""
    patterns = _Patterns(is_strict=is_strict)
    waiting: list[tuple[str, Any]] = [("#", root)]
    while waiting:
        place, schema = waiting.pop()
        if schema is None or schema is True:
            continue
        if schema is False:
            return f"{place} is false, which no value satisfies"
        if not isinstance(schema, dict):
            return f"{place} must be a schema, not {_show(schema)}"
        for keyword, value in schema.items():
            where = f"{place}/{keyword}"
            problem = _problem(root, keyword, value, patterns)
            if problem is not None:
                return f"{where} {problem}"
            waiting += [(f"{where}{name}", inner) for name, inner in _inner(keyword, value)]
    return None


def loosen(root: Any) -> Any:
    """Return a plain schema without the keywords that no engine can enforce.

    >>> loosen({"type": "array", "uniqueItems": True, "items": {"enum": []}})
    {'type': 'array', 'items': {}}
    """
    if _find_problem(root, is_strict=True) is None:
        with suppress(CannotEnforce):
            return plain_schema(root)
    loose = _loosened(root, root, _Patterns(is_strict=True))
    try:
        return plain_schema(loose, is_strict=False)
    except CannotEnforce:
        return {"type": "object"}


def _loosened(root: Any, schema: Any, patterns: _Patterns) -> Any:
    if not isinstance(schema, dict):
        return True
    loose: dict[str, Any] = {}
    for keyword, value in schema.items():
        if _problem(root, keyword, value, patterns) is not None:
            continue
        if keyword in CLOSING and value is False:
            loose[keyword] = value
        elif keyword in LISTS and isinstance(value, list):
            loose[keyword] = [_loosened(root, each, patterns) for each in value]
        elif keyword in MAPS and isinstance(value, dict):
            loose[keyword] = {name: _loosened(root, each, patterns) for name, each in value.items()}
        else:
            loose[keyword] = _loosened(root, value, patterns) if keyword in ONE else value
    return loose


def _inner(keyword: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the schemas in a keyword's value, each with its place there."""
    if keyword in LISTS and isinstance(value, list):
        yield from ((f"/{number}", each) for number, each in enumerate(value))
    elif keyword in MAPS and isinstance(value, dict):
        yield from ((f"/{name[:MAX_NAME_CHARS]}", each) for name, each in value.items())
    elif keyword in ONE and not (keyword in CLOSING and value is False):
        yield "", value


class _Patterns:
    """Reads the patterns of a schema, whose cost is limited as if they were one."""

    def __init__(self, *, is_strict: bool) -> None:
        self.is_strict = is_strict
        self._ranges = MAX_PATTERN_RANGES
        self._chars = MAX_PATTERN_CHARS

    def problem_of(self, pattern: Any) -> str | None:
        if not isinstance(pattern, str):
            return f"must be an expression, not {_show(pattern)}"
        self._chars -= len(pattern) + CHARS_OF_PATTERN
        if self._chars < 0 and not self.is_strict:
            return None
        if self._chars < 0:
            return f"is one too many: a schema's have {MAX_PATTERN_CHARS} characters at the most"
        if self._ranges < 0:
            return "has too many large classes" if self.is_strict else None
        try:
            can_be_enforced, ranges = check_pattern(pattern)
        except InvalidGrammar as error:
            return f"is {_show(pattern)}, which is invalid: {error}"
        self._ranges -= ranges
        if (can_be_enforced and self._ranges >= 0) or not self.is_strict:
            return None
        return f"is {_show(pattern)}, which cannot be enforced"


def _problem(root: Any, keyword: str, value: Any, patterns: _Patterns) -> str | None:
    """Say what is wrong with a keyword, apart from what is wrong in its schemas."""
    if value is None:
        return None
    if keyword == "type" and not _is_type(value):
        return f"is {_show(value)}; types are {', '.join(TYPES)}"
    if keyword == "$ref" and not _leads_somewhere(root, value):
        return f"is {_show(value)}, which is not in the schema"
    if keyword in NEVER_ENFORCED and value is not False and patterns.is_strict:
        return "cannot be enforced"
    if keyword in ("enum", "anyOf", "oneOf") and value == []:
        return "is empty, so no value satisfies it"
    if keyword == "enum" and not isinstance(value, list):
        return f"must be a list of values, not {_show(value)}"
    if keyword == "pattern":
        return patterns.problem_of(value)
    if keyword == "patternProperties" and isinstance(value, dict):
        return next(filter(None, map(patterns.problem_of, value)), None)
    if keyword in LISTS and keyword not in ONE and not isinstance(value, list):
        return f"must be a list of schemas, not {_show(value)}"
    if keyword in MAPS and not isinstance(value, dict):
        return f"must be an object of schemas, not {_show(value)}"
    return None


def _is_type(value: Any) -> bool:
    kinds = value if isinstance(value, list) and value else [value]
    return value is None or all(isinstance(kind, str) and kind in TYPES for kind in kinds)


def _leads_somewhere(root: Any, reference: Any) -> bool:
    """Whether a reference is to a place in the schema; anchors and other documents may be."""
    if not isinstance(reference, str):
        return reference is None
    if not reference.startswith("#/"):
        return True
    if len(reference) > MAX_REFERENCE_CHARS:
        return False
    try:
        resolve(root, reference)
    except LookupError:
        return False
    return True


def _show(value: Any) -> str:
    text = repr(value) if isinstance(value, str | int | float) else type(value).__name__
    return text if len(text) <= MAX_NAME_CHARS else f"{text[:MAX_NAME_CHARS]}…"
