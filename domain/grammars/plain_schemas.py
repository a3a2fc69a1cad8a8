"""Schemas without what grammars cannot combine: each has `$ref`, or `anyOf`, or keywords of a type.

Engines write a schema as a grammar, keyword by keyword. So what stands in several places for one
value is joined before: `allOf`, keywords beside `$ref`, `anyOf` and `oneOf`, a `pattern` and a
length. What cannot be joined without a loss is refused, with its keyword. The options of `oneOf`
must exclude each other; then any of them may match.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from itertools import count
from math import lcm
from typing import Any

import msgspec

from antiphon.domain.errors import InvalidGrammar, UnsupportedGrammar
from antiphon.domain.grammars import read
from antiphon.domain.grammars.ebnf import InputStyle, write_expression
from antiphon.domain.grammars.lengths import within
from antiphon.domain.grammars.references import resolve
from antiphon.domain.grammars.settled_schemas import (
    ASSERTIONS,
    COMBINING,
    LENGTHS,
    OF_ARRAYS,
    OF_OBJECTS,
    TIGHTER,
    UNDECIDED,
    Schema,
    identity,
    settle,
)

MAX_DEPTH = 64
MAX_OPTIONS = 64
MAX_WORK = 20_000
"""What joining may cost, in members that are looked at: some 30 ms."""

JOIN_WORK = 25
"""What a join costs beside its members."""

_SUSPECT = frozenset({*COMBINING, *LENGTHS, "const", "enum"})
_AS_TEXT = InputStyle(prefix="", suffix="")


class CannotEnforce(Exception):
    """No grammar can hold a keyword with others; the message says which, and why."""


def plain_schema(root: Any, *, is_strict: bool = True) -> Any:
    """Return a plain schema that allows nothing which this one does not allow.

    Of one that is not strict, what cannot be joined is left out instead. Raises: CannotEnforce.

    >>> plain_schema({"allOf": [{"type": "integer", "minimum": 1}, {"minimum": 3}]})
    {'minimum': 3, 'type': 'integer'}
    """
    if not isinstance(root, dict) or not _needs_joining(root):
        return root
    try:
        return _Plain(root, is_strict=is_strict).schema()
    except (
        ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError,
    ):  # fmt: skip
        # Whether all values have the right types is for engines to say.
        raise CannotEnforce("# combines keywords of which one has no valid value, which") from None


def _needs_joining(root: Any) -> bool:
    waiting = [root]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if not value.keys().isdisjoint(_SUSPECT) and _has_combination(value):
                return True
            value = value.values()
        waiting += [each for each in value if isinstance(each, dict | list | tuple)]
    return False


def _has_combination(schema: Schema) -> bool:
    found = schema.keys() & ASSERTIONS
    if "allOf" in found or "oneOf" in found:
        return True
    if len(found) > 1 and ("$ref" in found or "anyOf" in found):
        return True
    if not found.isdisjoint(LENGTHS) and not found.isdisjoint(("pattern", "format")):
        return True
    return not found.isdisjoint(("const", "enum")) and _is_more_than_values(schema, found)


def _is_more_than_values(schema: Schema, found: Set[str]) -> bool:
    """Whether a schema says more of its `enum` or `const` than which values there are."""
    if len(found) == 1:
        return False
    if found - {"type"} not in ({"enum"}, {"const"}):
        return True
    settled = settle(schema)
    values = schema["enum"] if "enum" in found else [schema["const"]]
    return settled is False or len(settled["enum"]) < len(values)


class _Plain:
    def __init__(self, root: Any, *, is_strict: bool) -> None:
        self._root = root
        self._is_strict = is_strict
        self._names: dict[str, str] = {}
        self._joining: dict[bytes, str] = {}
        self._definitions: dict[str, Any] = {}
        self._numbers = count(1)
        self._work = 0
        self._depth = 0

    def schema(self) -> Any:
        plain = self.plain(self._root)
        if plain is False:
            raise CannotEnforce("# allows no value")
        if not self._definitions:
            return plain
        return {**plain, "$defs": self._definitions}

    def plain(self, schema: Any) -> Any:
        """Return the plain form of a schema, False if no value satisfies it."""
        with self._deeper("# combines schemas that are too deep"):
            return self._plain(schema)

    @contextmanager
    def _deeper(self, problem: str) -> Iterator[None]:
        if self._depth >= MAX_DEPTH:
            raise CannotEnforce(problem)
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def _plain(self, schema: Any) -> Any:
        if not isinstance(schema, Mapping):
            return schema
        if schema.keys().isdisjoint(_HOLDING) and not _needs_joining(schema):
            return schema
        keywords = schema.keys() & ASSERTIONS
        if keywords == {"$ref"}:
            return {"$ref": self._reference(schema["$ref"])}
        if keywords in ({"anyOf"}, {"oneOf"}):  # so that what they refer to stays as it is
            self._check_options(schema)
            [key] = keywords
            return _any_of([self.plain(each) for each in schema[key]])
        if keywords.isdisjoint(COMBINING):
            return self._inside(settle(schema))
        return self._joined(schema)

    def _joined(self, schema: Schema) -> Any:
        """Return the plain form of a combination, which may hold itself."""
        key = msgspec.json.encode(schema, order="deterministic")
        if key in self._joining:
            name = self._joining[key]
            self._definitions.setdefault(name, True)
            return {"$ref": f"#/$defs/{name}"}
        name = self._joining[key] = f"joined{next(self._numbers)}"
        try:
            found = _any_of([self._inside(each) for each in self._options(schema)])
        finally:
            del self._joining[key]
        if name not in self._definitions:
            return found
        if found is False:
            raise CannotEnforce("# combines a schema with itself, and")
        self._definitions[name] = found
        return {"$ref": f"#/$defs/{name}"}

    def _options(self, schema: Any) -> list[Any]:
        """Return schemas without combinations, of which one must be satisfied."""
        if not isinstance(schema, Mapping):
            return [] if schema is False else [{}]
        with self._deeper("# combines a schema with itself, which"):
            return self._options_of(schema)

    def _options_of(self, schema: Schema) -> list[Any]:
        self._check_options(schema)
        options: list[Any] = [
            settle(
                {
                    key: each
                    for key, each in schema.items()
                    if key not in COMBINING and (each is not None or key == "const")
                }
            )
        ]
        options = [each for each in options if each is not False]
        parts = [self._resolve(schema["$ref"])] if "$ref" in schema else []
        for part in (*parts, *(schema.get("allOf") or ())):
            options = self._all_joined(options, self._options(part))
        for key in ("anyOf", "oneOf"):
            if schema.get(key):
                choices = [inner for each in schema[key] for inner in self._options(each)]
                options = self._all_joined(options, choices)
        return options

    def _all_joined(self, lefts: Sequence[Any], rights: Sequence[Any]) -> list[Any]:
        if len(lefts) * len(rights) > MAX_OPTIONS:
            raise CannotEnforce(f"# combines more than {MAX_OPTIONS} schemas, which")
        joined = [self._join(left, right) for left in lefts for right in rights]
        return [each for each in joined if each is not False]

    def _inside(self, schema: Any) -> Any:
        """Return a schema without combinations, with plain schemas in it."""
        if not isinstance(schema, Mapping):
            return schema
        plain = {key: each for key, each in schema.items() if key not in ("$defs", "definitions")}
        beside = sorted(plain.keys() & UNDECIDED.keys() - {"format"}) if "enum" in plain else []
        if beside and self._is_strict:
            raise CannotEnforce(f"# has {beside[0]!r} beside 'enum' or 'const', which")
        if "enum" in plain:
            return {key: each for key, each in plain.items() if key not in UNDECIDED}
        for key in ("items", "additionalProperties", "propertyNames"):
            if isinstance(plain.get(key), Mapping):
                plain[key] = self.plain(plain[key])
        for key in ("properties", "patternProperties"):
            if isinstance(plain.get(key), Mapping):
                plain[key] = {name: self.plain(each) for name, each in plain[key].items()}
        if isinstance(plain.get("prefixItems"), Sequence):
            plain["prefixItems"] = [self.plain(each) for each in plain["prefixItems"]]
        return self._with_lengths(settle(plain))

    # --- references -------------------------------------------------------------------------------

    def _reference(self, reference: Any) -> str:
        if reference not in self._names:
            name = self._names[reference] = f"schema{next(self._numbers)}"
            depth, self._depth = self._depth, 0
            self._definitions[name] = True  # it may refer to itself
            try:
                found = self.plain(self._resolve(reference))
            finally:
                self._depth = depth
            if found is False:
                raise CannotEnforce(f"# refers to {reference!r}, which allows no value")
            self._definitions[name] = found
        return f"#/$defs/{self._names[reference]}"

    def _resolve(self, reference: Any) -> Any:
        if not isinstance(reference, str) or not (reference == "#" or reference[:2] == "#/"):
            raise CannotEnforce(f"# refers to {reference!r}, which is no place in it,")
        try:
            return resolve(self._root, reference)
        except LookupError:
            raise CannotEnforce(f"# refers to {reference!r}, which is not in it,") from None

    # --- joining ----------------------------------------------------------------------------------

    def _join(self, left: Schema, right: Schema) -> Any:
        """Return a schema of what two schemas without combinations allow, False if nothing."""
        self._work += JOIN_WORK + _count_members(left) + _count_members(right)
        if self._work > MAX_WORK:
            raise CannotEnforce("# combines too many schemas, which")
        joined = {**right, **left}
        for key in (left.keys() & right.keys() & ASSERTIONS) - _TOGETHER:
            joined[key] = self._joined_values(key, left[key], right[key])
        self._join_properties(joined, left, right)
        self._join_items(joined, left, right)
        return settle(joined)

    def _joined_values(self, key: str, left: Any, right: Any) -> Any:
        if left == right:
            return left
        if key in TIGHTER:
            return TIGHTER[key](left, right)
        if key == "propertyNames":
            return _both(left, right)
        if key == "multipleOf" and isinstance(left, int) and isinstance(right, int):
            return lcm(left, right)
        if self._is_strict and key != "format":
            raise CannotEnforce(f"# has {key!r} twice for one value, which")
        return left

    def _join_properties(self, joined: dict[str, Any], left: Schema, right: Schema) -> None:
        sides = (left, right)
        if any(side.keys().isdisjoint(OF_OBJECTS) for side in sides):
            return
        patterns = [side.get("patternProperties") or {} for side in sides]
        if patterns[0] != patterns[1] and self._is_strict:
            raise CannotEnforce("# has 'patternProperties' beside other properties, which")
        named = [side.get("properties") or {} for side in sides]
        others = [side.get("additionalProperties", True) for side in sides]
        properties = {}
        for name in [*named[0], *(name for name in named[1] if name not in named[0])]:
            rules = [named[at].get(name, others[at]) for at in (0, 1)]
            properties[name] = _both(*rules)
        joined["properties"] = properties
        if "additionalProperties" in {*left, *right}:
            joined["additionalProperties"] = _both(*others)

    def _join_items(self, joined: dict[str, Any], left: Schema, right: Schema) -> None:
        sides = (left, right)
        if any(side.keys().isdisjoint(OF_ARRAYS) for side in sides):
            return
        first = [list(side.get("prefixItems") or ()) for side in sides]
        others = [side.get("items", True) for side in sides]
        count = max(map(len, first))
        places = [
            _both(*(_at(first[at], place, others[at]) for at in (0, 1))) for place in range(count)
        ]
        joined.pop("prefixItems", None)
        if places:
            joined["prefixItems"] = places
        joined["items"] = _both(*others)

    # --- what must exclude each other -------------------------------------------------------------

    def _check_options(self, schema: Schema) -> None:
        """Raises: CannotEnforce for options of `oneOf` of which two may match."""
        if not self._is_strict:
            return
        options = list(schema.get("oneOf") or ())
        if len(options) > MAX_OPTIONS:
            raise CannotEnforce(f"# has more than {MAX_OPTIONS} options")
        if self._are_tagged(options):
            return
        for place, option in enumerate(options):
            for other in options[:place]:
                if not self._exclude(option, other):
                    raise CannotEnforce("# has 'oneOf' with options that may match together; it")

    def _are_tagged(self, options: Sequence[Any]) -> bool:
        """Whether all are objects that need a member of which no two have a value in common."""
        schemas = [self._target(each) for each in options]
        if not schemas or any(schema.get("type") != "object" for schema in schemas):
            return False
        first, *others = ({*(schema.get("required") or ())} for schema in schemas)
        return any(
            _differ([(schema.get("properties") or {}).get(name) for schema in schemas])
            for name in first.intersection(*others)
        )

    def _target(self, schema: Any) -> Schema:
        """Return what a schema refers to, if it does nothing else."""
        for _ in range(MAX_DEPTH):
            if not isinstance(schema, Mapping):
                break
            if schema.keys() & ASSERTIONS != {"$ref"}:
                return schema
            schema = self._resolve(schema["$ref"])
        return {}

    def _exclude(self, left: Any, right: Any) -> bool:
        """Whether no value satisfies both, as far as that can be told."""
        try:
            both = self._all_joined(self._options(left), self._options(right))
        except CannotEnforce:
            return False
        return all(self._is_nothing(each) for each in both)

    def _is_nothing(self, joined: Any) -> bool:
        properties = joined.get("properties") or {}
        # One member tells, mostly a `const`. Others may refer to the options again, without an end.
        needed = [properties.get(name, True) for name in joined.get("required") or ()]
        for schema in (*sorted(needed, key=_refers), joined):
            known = len(self._names), len(self._definitions)
            try:
                if (self._inside if schema is joined else self.plain)(schema) is False:
                    return True
            except CannotEnforce:
                self._forget(*known)
        return False

    def _forget(self, names: int, definitions: int) -> None:
        """Keep so many: the next schema that refers to what could not be written must fail, too."""
        while len(self._names) > names:
            self._names.popitem()
        while len(self._definitions) > definitions:
            self._definitions.popitem()

    # --- texts ------------------------------------------------------------------------------------

    def _with_lengths(self, schema: Any) -> Any:
        if not isinstance(schema, Mapping) or schema.keys().isdisjoint(LENGTHS):
            return schema
        schema = {key: each for key, each in schema.items() if key != "format"}
        pattern = schema.get("pattern")
        if not isinstance(pattern, str):
            return schema
        low, high = int(schema.get("minLength") or 0), schema.get("maxLength")
        rest = {key: each for key, each in schema.items() if key not in LENGTHS}
        try:
            grammar = read("pattern", pattern)
            node = None if grammar is None else grammar.rules[grammar.start]
            bounded = None if node is None else within(node, low, high)
            if bounded is not None and bounded == node:
                return rest
            if bounded is not None and grammar is not None:
                rules = type(grammar)(grammar.start, {grammar.start: bounded})
                return {**rest, "pattern": f"^{write_expression(rules, _AS_TEXT)}$"}
        except (InvalidGrammar, UnsupportedGrammar):
            pass
        if self._is_strict:
            names = " and ".join(repr(key) for key in LENGTHS if key in schema)
            raise CannotEnforce(f"# has {names} beside a 'pattern' of any length, which")
        return rest


_HOLDING = frozenset({*COMBINING, *OF_OBJECTS, *OF_ARRAYS, "propertyNames", "$defs"})
_TOGETHER = frozenset({*OF_OBJECTS, *OF_ARRAYS})


def _any_of(options: Sequence[Any]) -> Any:
    found = [each for each in options if each is not False]
    if not found:
        return False
    return found[0] if len(found) == 1 else {"anyOf": found}


def _both(left: Any, right: Any) -> Any:
    """Return a schema of what both allow."""
    if left is False or right is False:
        return False
    if not isinstance(left, Mapping) or not left or left == right:
        return right
    return left if not isinstance(right, Mapping) or not right else {"allOf": [left, right]}


def _count_members(schema: Schema) -> int:
    return sum(len(each) for each in schema.values() if isinstance(each, Mapping | list | tuple))


def _differ(members: Sequence[Any]) -> bool:
    """Whether each has an `enum` or a `const`, and no two of them have a value in common."""
    values: list[Any] = []
    for each in members:
        if not isinstance(each, Mapping) or not each.keys() & {"const", "enum"}:
            return False
        own = [each["const"]] if "const" in each else each["enum"]
        values += {identity(value) for value in own}
    return len({*values}) == len(values)


def _refers(schema: Any) -> bool:
    """Whether a schema, or one that it joins, is a reference or has schemas in it."""
    if not isinstance(schema, Mapping):
        return False
    if "allOf" in schema:
        return any(map(_refers, schema["allOf"]))
    return not schema.keys().isdisjoint(_HOLDING)


def _at(schemas: Sequence[Any], place: int, others: Any) -> Any:
    return schemas[place] if place < len(schemas) else others
