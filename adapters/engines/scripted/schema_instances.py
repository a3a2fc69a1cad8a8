"""The smallest instance of a JSON Schema: candidates, smallest first, until one fits.

Candidates come from the schema with its references and combinations worked in; whether one fits is
asked of the schema as it is, so that what no candidate heeds (`not`, `oneOf`) still counts. A
client's schema must not hold up the server, so all work is paid for from one budget of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from math import ceil, floor, inf, lcm
from operator import ge, gt, le, lt
from typing import Any

from antiphon.adapters.engines.scripted.grammar_inputs import small_matches
from antiphon.adapters.engines.scripted.step_budget import OutOfSteps, StepBudget
from antiphon.domain.errors import InvalidGrammar
from antiphon.domain.grammars import matching
from antiphon.domain.grammars import nodes as n
from antiphon.domain.grammars.references import resolve

Schema = dict[str, Any]

_LONGEST = 100_000
"""Characters of a string."""

_LARGEST = 2**63
"""Of what numbers are multiples."""


class _NoInstance(Exception):
    """Nothing was found that satisfies the schema."""


def smallest_instance(schema: Any) -> Any:
    """Return a small instance; of a schema that nothing satisfies, or too hard a one, `{}`.

    >>> properties = {"city": {"type": "string"}, "n": {"minimum": 3}}
    >>> smallest_instance(
    ...     {"type": "object", "properties": properties, "required": ["city", "n"]}
    ... )
    {'city': '', 'n': 3}
    >>> smallest_instance({"anyOf": [{"type": "string"}, {"type": "null"}]}) is None
    True
    """
    try:
        return _Search(schema).best(schema, frozenset())
    except (_NoInstance, OutOfSteps, RecursionError):
        return {}
    except (
        ArithmeticError, AttributeError, InvalidGrammar, LookupError, TypeError, ValueError,
    ):  # fmt: skip
        # Whether the schema is one at all was for the request's check to say.
        return {}


class _Search:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._steps = StepBudget()
        self._patterns: dict[str, n.Node | None] = {}
        self._resolved: dict[str, Any] = {}

    def best(self, schema: Any, seen: frozenset[str]) -> Any:
        """Return the smallest instance; `seen` are the references on the way here."""
        ways = sorted(islice(self._ways(schema, seen), 64), key=lambda way: _rank(way[0]))
        for way, deeper in ways:
            for instance in self._candidates(way, deeper):
                if self.fits(instance, schema):
                    return instance
        raise _NoInstance

    def fits(self, instance: Any, schema: Any) -> bool:
        self._steps.spend(_weight(schema))
        if isinstance(instance, str):
            self._steps.spend_on_text(len(instance))
        if not isinstance(schema, dict):
            return schema is not False
        return (
            all(
                holds(instance, schema[keyword])
                for keyword, (kind, holds) in RULES.items()
                if keyword in schema and TYPES[kind](instance)
            )
            and self._fits_values(instance, schema)
            and all(self.fits(value, inner) for value, inner in self._inside(instance, schema))
            and self._fits_combinations(instance, schema)
        )

    def _fits_values(self, instance: Any, schema: Schema) -> bool:
        return (
            ("const" not in schema or self._same(instance, schema["const"]))
            and ("enum" not in schema or self._is_one_of(instance, schema["enum"]))
            and (
                "pattern" not in schema
                or not isinstance(instance, str)
                or self._matches(schema["pattern"], instance)
            )
            and (
                not schema.get("uniqueItems")
                or not isinstance(instance, list)
                or not any(self._is_one_of(item, instance[:at]) for at, item in enumerate(instance))
            )
        )

    def _matches(self, pattern: str, text: str) -> bool:
        """Return whether the pattern matches a part of the text; True if that cannot be said."""
        self._steps.spend()
        if pattern not in self._patterns:
            self._patterns[pattern] = matching.parse_pattern(pattern, self._steps.spend)
        node = self._patterns[pattern]
        return node is None or matching.has_match(node, text, self._steps.spend)

    def _is_one_of(self, value: Any, options: Sequence[Any]) -> bool:
        return any(self._same(value, option) for option in options)

    def _same(self, a: Any, b: Any) -> bool:
        """Return whether JSON takes them as equal: 1 is 1.0, but neither is true."""
        self._steps.spend(2)
        if isinstance(a, list) and isinstance(b, list):
            return len(a) == len(b) and all(map(self._same, a, b))
        if isinstance(a, dict) and isinstance(b, dict):
            return a.keys() == b.keys() and all(self._same(a[key], b[key]) for key in a)
        if isinstance(a, str) and isinstance(b, str) and len(a) == len(b):
            self._steps.spend_on_text(len(a))
        return isinstance(a, bool) == isinstance(b, bool) and bool(a == b)

    def _fits_combinations(self, instance: Any, schema: Schema) -> bool:
        def fitting(keyword: str) -> list[bool]:
            return [self.fits(instance, part) for part in _listed(schema, keyword)]

        return (
            (not _has_reference(schema) or self.fits(instance, self._resolve(schema["$ref"])))
            and all(fitting("allOf"))
            and ("anyOf" not in schema or any(fitting("anyOf")))
            and ("oneOf" not in schema or sum(fitting("oneOf")) == 1)
            and ("not" not in schema or not self.fits(instance, schema["not"]))
        )

    def _resolve(self, reference: str) -> Any:
        """Return what a reference within the schema points to; True, any instance, if nothing."""
        if reference not in self._resolved:
            self._steps.spend(len(reference))
            try:
                self._resolved[reference] = resolve(self._root, reference)
            except LookupError:
                self._resolved[reference] = True
        return self._resolved[reference]

    # --- ways: the schema without references and combinations, once for each way to satisfy it

    def _ways(self, schema: Any, seen: frozenset[str]) -> Iterator[tuple[Schema, frozenset[str]]]:
        self._steps.spend(_weight(schema) + len(seen))
        if not isinstance(schema, dict):
            if schema is not False:
                yield {}, seen
            return
        joined: list[list[Any]] = []
        if _has_reference(schema):
            reference = schema["$ref"]
            if reference in seen:
                return  # the smallest instance never needs a reference within itself
            seen |= {reference}
            joined.append([self._resolve(reference)])
        joined += [[part] for part in _listed(schema, "allOf")]
        joined += [_listed(schema, key) for key in ("anyOf", "oneOf") if key in schema]
        own = {key: value for key, value in schema.items() if key not in _COMBINATIONS}
        yield from self._joined(own, joined, seen, seen)

    def _joined(
        self, way: Schema, joined: Sequence[list[Any]], seen: frozenset[str], met: frozenset[str]
    ) -> Iterator[tuple[Schema, frozenset[str]]]:
        """Yield every way to satisfy one of each list, with the references met in doing so."""
        if not joined:
            yield way, met
            return
        for option in joined[0]:
            for other, deeper in self._ways(option, seen):
                self._steps.spend(len(joined) + len(met))
                merged = self._merged(way, other)
                yield from self._joined(merged, joined[1:], seen, met | deeper)

    def _merged(self, a: Schema, b: Schema) -> Schema:
        self._steps.spend(_weight(a) + _weight(b))
        merged = {**a, **b}
        for key in a.keys() & b.keys() & _JOINS.keys():
            merged[key] = _JOINS[key](a[key], b[key])
        if "enum" in a and "enum" in b:
            merged["enum"] = [value for value in a["enum"] if self._is_one_of(value, b["enum"])]
        return merged

    # --- candidates, smallest first

    def _candidates(self, way: Schema, seen: frozenset[str]) -> Iterator[Any]:
        if "const" in way:
            yield way["const"]
        elif "enum" in way:
            yield from _listed(way, "enum")
        else:
            for kind in sorted(_types(way), key=_ORDER.index):
                with suppress(_NoInstance):
                    yield from self._of_type(kind, way, seen)

    def _of_type(self, kind: str, way: Schema, seen: frozenset[str]) -> Iterator[Any]:
        match kind:
            case "null":
                yield None
            case "boolean":
                yield from (False, True)
            case "integer":
                yield from _integers(way)
            case "number":
                yield from _numbers(way)
            case "string":
                yield from self._strings(way)
            case "array":
                yield self._array(way, seen)
            case "object":
                yield from self._objects(way, seen)

    def _array(self, way: Schema, seen: frozenset[str]) -> list[Any]:
        least = max(way.get("minItems", 0), way.get("minContains", 1) if "contains" in way else 0)
        items: list[Any] = []
        while len(items) < least:
            wanted = [_item_schema(way, len(items))]
            if "contains" in way:
                wanted.append(way["contains"])
            if way.get("uniqueItems"):
                wanted.append({"not": {"enum": items}})
            items.append(self.best({"allOf": wanted}, seen))
        return items

    def _objects(self, way: Schema, seen: frozenset[str]) -> Iterator[Schema]:
        self._steps.spend(_weight(way))
        required = [name for name in _listed(way, "required") if isinstance(name, str)]
        least = {name: self._property(way, name, seen) for name in required}
        names = [
            *way.get("properties", {}),
            *(f"key{number}" for number in range(min(way.get("minProperties", 0), 1000))),
        ]
        optional = [name for name in names if name not in least]
        yield least
        grown = dict(least)
        for name in optional:
            self._steps.spend(len(grown))
            try:
                grown = {**grown, name: self._property(way, name, seen)}
            except _NoInstance:
                continue
            yield grown

    def _property(self, way: Schema, name: str, seen: frozenset[str]) -> Any:
        return self.best({"allOf": self._property_schemas(way, name)}, seen)

    def _property_schemas(self, schema: Schema, name: str) -> list[Any]:
        """Return all that hold for the value of this property."""
        named = schema.get("properties", {})
        found = [named[name]] if name in named else []
        patterns = schema.get("patternProperties", {})
        found += [rule for pattern, rule in patterns.items() if self._matches(pattern, name)]
        return found or [schema.get("additionalProperties", True)]

    def _inside(self, instance: Any, schema: Schema) -> Iterator[tuple[Any, Any]]:
        """Yield each value within the instance with a schema that holds for it."""
        if isinstance(instance, list) and not schema.keys().isdisjoint(("items", "prefixItems")):
            for place, item in enumerate(instance):
                yield item, _item_schema(schema, place)
        elif isinstance(instance, dict):
            for name, value in instance.items():
                for rule in self._property_schemas(schema, name):
                    yield value, rule

    def _strings(self, way: Schema) -> Iterator[str]:
        least = way.get("minLength", 0)
        if least > _LONGEST:
            return
        if "pattern" in way:
            # The further ones are for a `minLength`, or a second pattern, beside this one.
            extras = (*range(8), min(least, 1000))
            yield from small_matches(way["pattern"], extras, self._steps)
        if way.get("format") in FORMATS:
            yield FORMATS[way["format"]]
        for more in range(32):
            self._steps.spend_on_text(least + more)
            yield "a" * (least + more)


# --- reading a schema -----------------------------------------------------------------------------

_COMBINATIONS = frozenset({"$ref", "allOf", "anyOf", "oneOf"})
_ORDER = ("null", "boolean", "integer", "number", "string", "array", "object")
_IMPLIED: Mapping[str, str] = {
    "properties": "object",
    "required": "object",
    "minProperties": "object",
    "items": "array",
    "prefixItems": "array",
    "minItems": "array",
    "pattern": "string",
    "minLength": "string",
    "format": "string",
    "minimum": "number",
    "exclusiveMinimum": "number",
    "maximum": "number",
    "multipleOf": "number",
}
"""Keywords by which a schema without `type` means one, though every other type would satisfy it."""


def _weight(schema: Any) -> int:
    """Return the steps of going through what a schema says itself."""
    if not isinstance(schema, dict):
        return 1
    lengths = (len(value) for value in schema.values() if isinstance(value, list | dict))
    return 5 + (len(schema) + sum(lengths)) // 8


def _has_reference(schema: Schema) -> bool:
    return isinstance(schema.get("$ref"), str)


def _types(way: Schema) -> list[str]:
    stated = way.get("type")
    if stated is None:
        return [next((kind for key, kind in _IMPLIED.items() if key in way), "null")]
    return [kind for kind in (stated if isinstance(stated, list) else [stated]) if kind in _ORDER]


def _rank(way: Schema) -> int:
    if "const" in way or "enum" in way:
        return 2
    return min((_ORDER.index(kind) for kind in _types(way)), default=len(_ORDER))


def _listed(schema: Schema, key: str) -> list[Any]:
    value = schema.get(key, [])
    return value if isinstance(value, list) else []


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _item_schema(schema: Schema, place: int) -> Any:
    first = _listed(schema, "prefixItems")
    return first[place] if place < len(first) else schema.get("items", True)


# --- values without parts -------------------------------------------------------------------------


def _bounds(way: Schema) -> tuple[float, float]:
    lows = [way[key] for key in ("minimum", "exclusiveMinimum") if _is_number(way.get(key))]
    highs = [way[key] for key in ("maximum", "exclusiveMaximum") if _is_number(way.get(key))]
    return max(lows, default=-inf), min(highs, default=inf)


def _integers(way: Schema) -> Iterator[int | float]:
    """Yield multiples, from the one within bounds that is nearest to 0."""
    low, high = _bounds(way)
    step = way.get("multipleOf", 1)
    nearest = max(low, min(0, high))
    start = ceil(nearest / step) if nearest > 0 else floor(nearest / step)
    for distance in range(64):
        for factor in (start + distance, start - distance):
            value = factor * step
            yield int(value) if value == int(value) else value


def _numbers(way: Schema) -> Iterator[int | float]:
    yield from _integers(way)
    low, high = _bounds(way)
    if low > -inf and high < inf:
        yield from (low + (high - low) / part for part in (2, 4, 10))
    yield from (edge + by for edge in (max(low, min(0, high)), high) for by in (0.5, -0.5))


# --- joining two schemas that must both hold ------------------------------------------------------


def _both(a: Any, b: Any) -> Any:
    return {"allOf": [a, b]}


def _both_types(a: Any, b: Any) -> list[str]:
    ours, theirs = (set(x if isinstance(x, list) else [x]) for x in (a, b))
    for one, other in ((ours, theirs), (theirs, ours)):
        if "number" in one and "integer" in other:
            one.add("integer")
    return [kind for kind in _ORDER if kind in ours & theirs]


def _both_properties(a: Schema, b: Schema) -> Schema:
    return {**a, **b, **{name: _both(a[name], b[name]) for name in a.keys() & b.keys()}}


def _both_multiples(a: Any, b: Any) -> Any:
    both = lcm(a, b) if isinstance(a, int) and isinstance(b, int) else max(a, b)
    if both > _LARGEST:  # they would grow with each further schema
        raise _NoInstance
    return both


_JOINS: Mapping[str, Callable[[Any, Any], Any]] = {
    "type": _both_types,
    "required": lambda a, b: [*a, *b],
    "properties": _both_properties,
    "patternProperties": _both_properties,
    "items": _both,
    "additionalProperties": _both,
    "contains": _both,
    "multipleOf": _both_multiples,
    **dict.fromkeys(
        ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties", "minContains"),
        max,
    ),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"), min),
}
"""The functions that merge two values of a keyword; of other keywords, the second value stands."""


# --- what fits ------------------------------------------------------------------------------------

TYPES: Mapping[str, Callable[[Any], bool]] = {
    "any": lambda _: True,
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: _is_number(value) and value == int(value),
    "number": _is_number,
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


def _is_of_type(value: Any, kinds: Any) -> bool:
    named = kinds if isinstance(kinds, list) else [kinds]
    return any(TYPES[kind](value) for kind in named if kind in _ORDER)


def _is_multiple(value: Any, step: Any) -> bool:
    quotient = value / step
    return value % step == 0 if isinstance(step, int) else bool(quotient == int(quotient))


RULES: Mapping[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "type": ("any", _is_of_type),
    "minimum": ("number", ge),
    "maximum": ("number", le),
    "exclusiveMinimum": ("number", gt),
    "exclusiveMaximum": ("number", lt),
    "multipleOf": ("number", _is_multiple),
    "minLength": ("string", lambda value, least: len(value) >= least),
    "maxLength": ("string", lambda value, most: len(value) <= most),
    "minItems": ("array", lambda value, least: len(value) >= least),
    "maxItems": ("array", lambda value, most: len(value) <= most),
    "required": ("object", lambda value, names: all(name in value for name in names)),
    "minProperties": ("object", lambda value, least: len(value) >= least),
    "maxProperties": ("object", lambda value, most: len(value) <= most),
}
"""Keywords that hold or not by themselves, with the only type whose values can break them."""

FORMATS: Mapping[str, str] = {
    "date-time": "2000-01-01T00:00:00Z",
    "date": "2000-01-01",
    "time": "00:00:00Z",
    "duration": "PT0S",
    "email": "a@a.aa",
    "idn-email": "a@a.aa",
    "hostname": "a.aa",
    "idn-hostname": "a.aa",
    "ipv4": "0.0.0.0",
    "ipv6": "::",
    "uri": "a:a",
    "uri-reference": "a",
    "iri": "a:a",
    "iri-reference": "a",
    "uuid": "00000000-0000-0000-0000-000000000000",
    "json-pointer": "",
    "regex": "",
}
