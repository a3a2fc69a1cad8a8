"""The smallest instance of a JSON Schema: candidates, smallest first, until one fits.

Candidates come from the schema with its references and combinations worked in; whether one fits is
asked of the schema as it is, so that what no candidate heeds (`not`, `oneOf`) still counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from math import ceil, floor, inf, lcm
from operator import ge, gt, le, lt
from typing import Any
from urllib.parse import unquote

from antiphon.adapters.engines.scripted.grammar_inputs import smallest_match

Schema = dict[str, Any]

_EFFORT = 20_000
"""Steps that a search may take: a client's schema must not hold up the server."""

_LONGEST = 100_000
"""Characters of a string."""


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
    except (_NoInstance, RecursionError, ArithmeticError, AttributeError, TypeError, re.error):
        # Whether the schema is one at all was for the request's check to say.
        return {}


class _Search:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._left = _EFFORT

    def best(self, schema: Any, seen: frozenset[str]) -> Any:
        """Return the smallest instance; `seen` are the references on the way here."""
        ways = sorted(islice(self._ways(schema, seen), 64), key=lambda way: _rank(way[0]))
        for way, deeper in ways:
            for instance in self._candidates(way, deeper):
                if self.fits(instance, schema):
                    return instance
        raise _NoInstance

    def fits(self, instance: Any, schema: Any) -> bool:
        self._spend()
        if not isinstance(schema, dict):
            return schema is not False
        return (
            all(
                holds(instance, schema[keyword])
                for keyword, (kind, holds) in RULES.items()
                if keyword in schema and TYPES[kind](instance)
            )
            and all(self.fits(value, inner) for value, inner in _inside(instance, schema))
            and self._fits_combinations(instance, schema)
        )

    def _fits_combinations(self, instance: Any, schema: Schema) -> bool:
        def fitting(keyword: str) -> list[bool]:
            return [self.fits(instance, part) for part in _listed(schema, keyword)]

        return (
            ("$ref" not in schema or self.fits(instance, self.resolve(schema["$ref"])))
            and all(fitting("allOf"))
            and ("anyOf" not in schema or any(fitting("anyOf")))
            and ("oneOf" not in schema or sum(fitting("oneOf")) == 1)
            and ("not" not in schema or not self.fits(instance, schema["not"]))
        )

    def resolve(self, reference: Any) -> Any:
        """Return what a reference within the schema points to; True, any instance, if nothing."""
        place = self._root
        for name in unquote(str(reference)).removeprefix("#").split("/")[1:]:
            key = name.replace("~1", "/").replace("~0", "~")
            try:
                place = place[int(key)] if isinstance(place, list) else place[key]
            except (LookupError, TypeError, ValueError):
                return True
        return place

    def _spend(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise _NoInstance

    # --- ways: the schema without references and combinations, once for each way to satisfy it

    def _ways(self, schema: Any, seen: frozenset[str]) -> Iterator[tuple[Schema, frozenset[str]]]:
        self._spend()
        if not isinstance(schema, dict):
            if schema is not False:
                yield {}, seen
            return
        joined: list[list[Any]] = []
        if "$ref" in schema:
            reference = str(schema["$ref"])
            if reference in seen:
                return  # the smallest instance never needs a reference within itself
            seen |= {reference}
            joined.append([self.resolve(reference)])
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
                yield from self._joined(_merged(way, other), joined[1:], seen, met | deeper)

    # --- candidates, smallest first

    def _candidates(self, way: Schema, seen: frozenset[str]) -> Iterator[Any]:
        if "const" in way:
            yield way["const"]
        elif "enum" in way:
            yield from _listed(way, "enum")
        else:
            for kind in sorted(_types(way), key=_ORDER.index):
                try:
                    yield from self._of_type(kind, way, seen)
                except _NoInstance:
                    if self._left < 0:
                        raise

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
                yield from _strings(way)
            case "array":
                yield self._array(way, seen)
            case "object":
                yield from self._objects(way, seen)

    def _array(self, way: Schema, seen: frozenset[str]) -> list[Any]:
        least = max(way.get("minItems", 0), way.get("minContains", 1) if "contains" in way else 0)
        items: list[Any] = []
        while len(items) < least:
            self._spend()
            wanted = [_item_schema(way, len(items))]
            if "contains" in way:
                wanted.append(way["contains"])
            if way.get("uniqueItems"):
                wanted.append({"not": {"enum": items}})
            items.append(self.best({"allOf": wanted}, seen))
        return items

    def _objects(self, way: Schema, seen: frozenset[str]) -> Iterator[Schema]:
        required = [name for name in _listed(way, "required") if isinstance(name, str)]
        least = {name: self._property(way, name, seen) for name in required}
        names = [
            *way.get("properties", {}),
            *(f"key{n}" for n in range(min(way.get("minProperties", 0), 1000))),
        ]
        optional = [name for name in names if name not in least]
        yield least
        grown = dict(least)
        for name in optional:
            try:
                grown = {**grown, name: self._property(way, name, seen)}
            except _NoInstance:
                continue
            yield grown

    def _property(self, way: Schema, name: str, seen: frozenset[str]) -> Any:
        self._spend()
        return self.best({"allOf": _property_schemas(way, name)}, seen)


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


def _property_schemas(schema: Schema, name: str) -> list[Any]:
    """Return all that hold for the value of this property."""
    named = schema.get("properties", {})
    found = [named[name]] if name in named else []
    patterns = schema.get("patternProperties", {})
    found += [rule for pattern, rule in patterns.items() if re.search(pattern, name)]
    return found or [schema.get("additionalProperties", True)]


def _inside(instance: Any, schema: Schema) -> Iterator[tuple[Any, Any]]:
    """Yield each value within the instance with a schema that holds for it."""
    if isinstance(instance, list) and not schema.keys().isdisjoint(("items", "prefixItems")):
        for place, item in enumerate(instance):
            yield item, _item_schema(schema, place)
    elif isinstance(instance, dict):
        for name, value in instance.items():
            for rule in _property_schemas(schema, name):
                yield value, rule


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


def _strings(way: Schema) -> Iterator[str]:
    least = way.get("minLength", 0)
    if least > _LONGEST:
        return
    if "pattern" in way:
        # The further ones are for a `minLength`, or a second pattern, beside this one.
        tries = (
            smallest_match(way["pattern"], extra=extra) for extra in (*range(8), min(least, 1000))
        )
        yield from (text for text in tries if text is not None)
    if way.get("format") in FORMATS:
        yield FORMATS[way["format"]]
    yield from ("a" * (least + more) for more in range(32))


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
    return lcm(a, b) if isinstance(a, int) and isinstance(b, int) else max(a, b)


_JOINS: Mapping[str, Callable[[Any, Any], Any]] = {
    "type": _both_types,
    "required": lambda a, b: [*a, *b],
    "enum": lambda a, b: [value for value in a if _is_one_of(value, b)],
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


def _merged(a: Schema, b: Schema) -> Schema:
    merged = {**a, **b}
    for key in a.keys() & b.keys() & _JOINS.keys():
        merged[key] = _JOINS[key](a[key], b[key])
    return merged


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


def _is_one_of(value: Any, options: Sequence[Any]) -> bool:
    return any(_same(value, option) for option in options)


def _same(a: Any, b: Any) -> bool:
    """Return whether JSON takes them as equal: 1 is 1.0, but neither is true."""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    return isinstance(a, bool) == isinstance(b, bool) and bool(a == b)


def _are_unique(items: Sequence[Any], wanted: bool) -> bool:
    return not wanted or not any(_is_one_of(item, items[:at]) for at, item in enumerate(items))


def _is_multiple(value: Any, step: Any) -> bool:
    quotient = value / step
    return value % step == 0 if isinstance(step, int) else bool(quotient == int(quotient))


RULES: Mapping[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "type": ("any", _is_of_type),
    "const": ("any", _same),
    "enum": ("any", _is_one_of),
    "minimum": ("number", ge),
    "maximum": ("number", le),
    "exclusiveMinimum": ("number", gt),
    "exclusiveMaximum": ("number", lt),
    "multipleOf": ("number", _is_multiple),
    "minLength": ("string", lambda value, least: len(value) >= least),
    "maxLength": ("string", lambda value, most: len(value) <= most),
    "pattern": ("string", lambda value, pattern: re.search(pattern, value) is not None),
    "minItems": ("array", lambda value, least: len(value) >= least),
    "maxItems": ("array", lambda value, most: len(value) <= most),
    "uniqueItems": ("array", _are_unique),
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
