"""Whether a call's arguments fit the schema of their tool.

Schemas are a client's, so nothing here runs its patterns, and the work for one value is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from antiphon.adapters.formats.chat_template.payloads.schema_types import fits as is_of_type
from antiphon.adapters.formats.chat_template.payloads.schema_types import resolve
from antiphon.domain.json import Json

MAX_CHECKS = 20_000
"""Pairs of a value and a schema that are compared for one call."""

ANNOTATIONS = frozenset(
    {
        *("title", "description", "default", "examples", "example", "deprecated", "readOnly"),
        *("writeOnly", "nullable", "$schema", "$id", "$comment", "$defs", "definitions", "strict"),
    }
)
"""Keywords that allow or refuse nothing by themselves."""

TYPES = frozenset({"string", "number", "integer", "boolean", "array", "object", "null"})


def arguments_fit(
    arguments: Json, schema: Json | None, *, strict: bool = False, max_checks: int = MAX_CHECKS
) -> bool:
    """Whether arguments fit a schema, as far as its keywords are known here.

    What takes more than `max_checks` does not fit. If the schema is `strict`, a keyword that is not
    checked is one that they do not fit.

    >>> schema = {"properties": {"days": {"type": "integer"}}, "required": ["days"]}
    >>> [arguments_fit(each, schema) for each in ({"days": 2}, {"days": "2"}, {})]
    [True, False, False]
    """
    return schema is None or _Fitting(schema, strict, max_checks).fits(arguments, schema)


class _Fitting:
    def __init__(self, root: Json, strict: bool, max_checks: int) -> None:
        self._root = root
        self._strict = strict
        self._checks_left = max_checks

    def fits(self, value: Any, schema: Any) -> bool:
        self._checks_left -= 1
        if self._checks_left < 0:
            return False
        if not isinstance(schema, dict):
            return schema is not False
        if value is None and schema.get("nullable") is True:
            return True
        return all(self._fits_keyword(value, schema, keyword) for keyword in schema)

    def _fits_keyword(self, value: Any, schema: Json, keyword: str) -> bool:
        rule = schema[keyword]
        if keyword in _BOUNDS:
            kind, is_kept = _BOUNDS[keyword]
            is_bounded = isinstance(value, kind) and not isinstance(value, bool)
            return not is_bounded or not _is_number(rule) or is_kept(value, rule)
        check = self._CHECKS.get(keyword)
        if check is not None:
            return check(self, value, rule, schema)
        return keyword in ANNOTATIONS or not self._strict

    def _type(self, value: Any, rule: Any, _: Json) -> bool:
        names = TYPES.intersection(each for each in _as_list(rule) if isinstance(each, str))
        return is_of_type(value, names) if names else not self._strict

    def _enum(self, value: Any, rule: Any, _: Json) -> bool:
        return any(_is_same(value, each) for each in _as_list(rule))

    def _const(self, value: Any, rule: Any, _: Json) -> bool:
        return _is_same(value, rule)

    def _properties(self, value: Any, rule: Any, _: Json) -> bool:
        if not isinstance(value, dict) or not isinstance(rule, dict):
            return True
        return all(self.fits(each, rule[name]) for name, each in value.items() if name in rule)

    def _required(self, value: Any, rule: Any, _: Json) -> bool:
        if not isinstance(value, dict) or not isinstance(rule, list):
            return True
        return all(name in value for name in rule if isinstance(name, str))

    def _additional_properties(self, value: Any, rule: Any, schema: Json) -> bool:
        if not isinstance(value, dict):
            return True
        known = schema.get("properties")
        patterns = schema.get("patternProperties")
        if isinstance(patterns, dict) and patterns:
            return not self._strict
        known = known if isinstance(known, dict) else {}
        return all(self.fits(each, rule) for name, each in value.items() if name not in known)

    def _items(self, value: Any, rule: Any, schema: Json) -> bool:
        if not isinstance(value, list):
            return True
        if isinstance(rule, list):  # as drafts before 2020-12 spell `prefixItems`
            return self._prefix_items(value, rule, schema)
        first = schema.get("prefixItems")
        return all(
            self.fits(each, rule) for each in value[len(first) if isinstance(first, list) else 0 :]
        )

    def _prefix_items(self, value: Any, rule: Any, _: Json) -> bool:
        if not isinstance(value, list) or not isinstance(rule, list):
            return True
        return all(self.fits(each, own) for each, own in zip(value, rule, strict=False))

    def _any_of(self, value: Any, rule: Any, _: Json) -> bool:
        return not isinstance(rule, list) or any(self.fits(value, each) for each in rule)

    def _one_of(self, value: Any, rule: Any, _: Json) -> bool:
        # Alternatives overlap in many schemas whose author means anyOf.
        if not isinstance(rule, list):
            return True
        count = sum(self.fits(value, each) for each in rule)
        return count == 1 if self._strict else count > 0

    def _all_of(self, value: Any, rule: Any, _: Json) -> bool:
        return not isinstance(rule, list) or all(self.fits(value, each) for each in rule)

    def _reference(self, value: Any, rule: Any, _: Json) -> bool:
        if not isinstance(rule, str) or not rule.startswith("#"):
            return not self._strict
        return self.fits(value, self._root if rule == "#" else resolve(rule, self._root))

    _CHECKS: Mapping[str, Callable[[_Fitting, Any, Any, Json], bool]] = {
        "type": _type,
        "enum": _enum,
        "const": _const,
        "properties": _properties,
        "required": _required,
        "additionalProperties": _additional_properties,
        "items": _items,
        "prefixItems": _prefix_items,
        "anyOf": _any_of,
        "oneOf": _one_of,
        "allOf": _all_of,
        "$ref": _reference,
    }


_BOUNDS: Mapping[str, tuple[Any, Callable[[Any, Any], bool]]] = {
    "minimum": (int | float, lambda value, bound: value >= bound),
    "maximum": (int | float, lambda value, bound: value <= bound),
    "exclusiveMinimum": (int | float, lambda value, bound: value > bound),
    "exclusiveMaximum": (int | float, lambda value, bound: value < bound),
    "minLength": (str, lambda value, bound: len(value) >= bound),
    "maxLength": (str, lambda value, bound: len(value) <= bound),
    "minItems": (list, lambda value, bound: len(value) >= bound),
    "maxItems": (list, lambda value, bound: len(value) <= bound),
    "minProperties": (dict, lambda value, bound: len(value) >= bound),
    "maxProperties": (dict, lambda value, bound: len(value) <= bound),
}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_same(value: Any, other: Any) -> bool:
    """Whether two JSON values are equal: 1 and 1.0 are, 1 and true are not."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
