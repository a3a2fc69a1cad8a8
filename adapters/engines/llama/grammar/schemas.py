"""JSON of a schema as GBNF.

Every text that it allows satisfies the schema. What no engine enforces was refused before
(`domain/json_schema.py`). Objects have the properties in the schema's order, and others only if the
schema says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil, floor, inf, nextafter
from typing import Any

from antiphon.adapters.engines.llama.grammar import numbers
from antiphon.adapters.engines.llama.grammar.rules import (
    MAX_REPEATS,
    NOTHING,
    Rules,
    any_of,
    none_of,
    quote,
)
from antiphon.domain.errors import InvalidGrammar
from antiphon.domain.grammars import read
from antiphon.domain.grammars.ebnf import JSON_ESCAPES, InputStyle, write_ebnf
from antiphon.domain.grammars.plain_schemas import CannotEnforce, plain_schema
from antiphon.domain.grammars.references import resolve
from antiphon.domain.grammars.settled_schemas import TYPES, Schema

TYPE_OF_KEYWORD = {
    **dict.fromkeys(("properties", "required", "additionalProperties"), "object"),
    **dict.fromkeys(("patternProperties", "propertyNames", "minProperties"), "object"),
    **dict.fromkeys(("items", "prefixItems", "minItems", "maxItems"), "array"),
    **dict.fromkeys(("pattern", "minLength", "maxLength", "format"), "string"),
    **dict.fromkeys(("minimum", "maximum", "multipleOf"), "number"),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), "number"),
}
"""What a schema without a type is about."""

JSON_STRING = InputStyle(prefix='"\\""', suffix='"\\""', escapes=JSON_ESCAPES, hex_prefix="u00")
CHARACTER = (
    r'[^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt] | "u" ([0-9a-cefA-CEF] [0-9a-fA-F]{3}'
    r" | [dD] [0-7] [0-9a-fA-F]{2}))"
)
_DAY = r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"
_MINUTES = "([01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_MINUTES}:[0-5][0-9](\.[0-9]{{1,6}})?(Z|[+-]{_MINUTES})"
_LABEL = "[a-zA-Z0-9_+-]{1,32}"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
FORMATS = {
    "date": _DAY,
    "time": _TIME,
    "date-time": f"{_DAY}T{_TIME}",
    "duration": "P([0-9]{1,4}W|[0-9]{1,4}D(T[0-9]{1,4}H)?|T[0-9]{1,4}(H|M|S))",
    "email": rf"{_LABEL}(\.{_LABEL}){{0,3}}@[a-zA-Z0-9]{{1,32}}(\.[a-zA-Z]{{2,12}}){{1,3}}",
    "hostname": r"[a-zA-Z0-9]{1,32}(\.[a-zA-Z][a-zA-Z0-9]{1,20}){0,4}",
    "ipv4": rf"{_BYTE}(\.{_BYTE}){{3}}",
    "ipv6": "[0-9a-fA-F]{1,4}(:[0-9a-fA-F]{1,4}){7}",
    "uuid": "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "uri": r"https?://[a-zA-Z0-9]{1,32}(\.[a-zA-Z0-9-]{1,32}){0,4}(/[a-zA-Z0-9._~-]{0,64}){0,8}",
}
"""For each format, an expression of texts that have it; for other formats, any text will do."""

MAX_DEPTH = 64
"""Of schemas in each other, references apart."""


class CannotExpress(ValueError):
    """A constraint that has no grammar."""


def json_of(rules: Rules, schema: Any, *, blanks: int) -> str:
    """Return the expression of JSON texts of this schema; `blanks` is the most at each place.

    Raises: CannotExpress for a schema that no text satisfies, or that is too complicated.
    """
    try:
        plain = plain_schema(schema)
    except CannotEnforce as error:
        raise CannotExpress(f"{error} cannot be enforced") from None
    expression = _Schemas(rules, plain, blanks).write(plain)
    if expression is None:
        raise CannotExpress("no JSON text satisfies the schema")
    return expression


class _Schemas:
    def __init__(self, rules: Rules, root: Any, blanks: int) -> None:
        self._rules = rules
        self._root = root
        self._blank = rules.shared(f"blank{blanks}", f"[ \\n\\t]{{0,{blanks}}}")
        self._references: dict[str, str] = {}
        self._depth = 0

    def write(self, schema: Any) -> str | None:
        """Return the expression of the schema, None if nothing satisfies it."""
        if schema is False:
            return None
        if not isinstance(schema, Mapping) or not schema:
            return self._anything()
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise CannotExpress("the schema is too deep")
        try:
            return self._write(schema)
        finally:
            self._depth -= 1

    def _write(self, schema: Schema) -> str | None:
        if "$ref" in schema:
            return self._reference(str(schema["$ref"]))
        if isinstance(schema.get("anyOf"), Sequence):
            return self._options(map(self.write, schema["anyOf"]))
        if "const" in schema:
            return self._values([schema["const"]], schema)
        if isinstance(schema.get("enum"), Sequence):
            return self._values(schema["enum"], schema)
        return self._options(self._of_type(kind, schema) for kind in _types_of(schema))

    def _options(self, options: Iterator[str | None]) -> str | None:
        found = [each for each in options if each is not None]
        return any_of(found) if found else None

    def _reference(self, reference: str) -> str:
        if reference not in self._references:
            name = self._references[reference] = self._rules.reserve("ref")
            depth, self._depth = self._depth, 0
            try:
                schema = resolve(self._root, reference)
            except LookupError:
                raise CannotExpress(f"the schema has no {reference!r}") from None
            body = self.write(schema)
            self._depth = depth
            if body is None:
                raise CannotExpress(f"nothing satisfies {reference!r}")
            self._rules.define(name, body)
        return self._references[reference]

    def _values(self, values: Sequence[Any], schema: Schema) -> str | None:
        kinds = _types_of(schema) if "type" in schema else TYPES
        texts = [
            json.dumps(value, ensure_ascii=False, separators=(",", ":"))
            for value in values
            if any(_is_of_type(value, kind) for kind in kinds)
        ]
        return any_of([quote(text) for text in texts]) if texts else None

    def _of_type(self, kind: str, schema: Schema) -> str | None:
        writers: Mapping[str, Callable[[Schema], str | None]] = {
            "object": self._object,
            "array": self._array,
            "string": self._string,
            "integer": _integer,
            "number": _number,
            "boolean": lambda _: '("true" | "false")',
            "null": lambda _: '"null"',
        }
        if kind not in writers:
            raise CannotExpress(f"there is no type {kind!r}")
        return writers[kind](schema)

    # --- any value --------------------------------------------------------------------------------

    def _anything(self) -> str:
        blank = self._blank
        shared = self._rules.shared
        text = self._any_string()
        member = f"{text} {blank} {quote(':')} {blank} any-value"
        shared(
            "any-object",
            f'"{{" {blank} ({member} ({blank} "," {blank} {member})* {blank})? "}}"',
        )
        shared(
            "any-array",
            f'"[" {blank} (any-value ({blank} "," {blank} any-value)* {blank})? "]"',
        )
        number = shared("any-number", numbers.ANY_NUMBER)
        return shared(
            "any-value",
            f'any-object | any-array | {text} | {number} | "true" | "false" | "null"',
        )

    # --- strings ----------------------------------------------------------------------------------

    def _any_string(self) -> str:
        char = self._rules.shared("string-char", CHARACTER)
        return self._rules.shared("any-string", f'"\\"" {char}* "\\""')

    def _string(self, schema: Schema) -> str | None:
        expression = schema.get("pattern")
        known = FORMATS.get(str(schema.get("format")))
        if expression is None and known is not None:
            expression = f"^({known})$"
        if isinstance(expression, str):
            return self._matching(expression)
        low, high = int(schema.get("minLength", 0)), schema.get("maxLength")
        if low == 0 and high is None:
            return self._any_string()
        if high is not None and high < low:
            return None
        char = self._rules.shared("string-char", CHARACTER)
        return f'"\\"" {char}{_repeats(low, high)} "\\""'

    def _matching(self, pattern: str) -> str:
        """Return the strings in which the pattern is found."""
        return self._rules.add_ebnf(write_pattern(pattern, JSON_STRING))

    # --- arrays -----------------------------------------------------------------------------------

    def _array(self, schema: Schema) -> str | None:
        first = [self.write(each) for each in schema.get("prefixItems") or ()]
        low, high = int(schema.get("minItems", 0)), schema.get("maxItems")
        more = schema.get("items", not first)
        item = self.write(more)
        if None in first[:low] or (item is None and low > len(first)):
            return None
        if high is not None and high < low:
            return None
        comma = f'{self._blank} "," {self._blank}'
        count = next((n for n, each in enumerate(first) if each is None), len(first))
        count = count if high is None else min(count, high)
        if item is None or (high is not None and high <= count):
            tail = NOTHING
        elif count:
            tail = f"({comma} {item})" + _repeats(
                max(low - count, 0), None if high is None else high - count
            )
        else:
            tail = _listed(item, comma, low, high)
        body = tail
        for number in reversed(range(count)):
            here = f"{first[number]} {body}" if not number else f"{comma} {first[number]} {body}"
            body = f"({here})" if number < low else f"({here})?"
        return f'"[" {self._blank} {body} {self._blank} "]"'

    # --- objects ----------------------------------------------------------------------------------

    def _object(self, schema: Schema) -> str | None:
        properties = dict(schema.get("properties") or {})
        patterns = dict(schema.get("patternProperties") or {})
        others = schema.get("additionalProperties", not properties and not patterns)
        required = list(schema.get("required") or ())
        properties |= {key: others for key in required if key not in properties}
        members: list[tuple[str, bool]] = []
        for key, value in properties.items():
            written = self.write(value)
            if written is None:
                if key in required:
                    return None
                continue
            name = quote(json.dumps(key, ensure_ascii=False))
            members.append((self._member(name, written), key in required))
        more = self._more_members(schema, patterns, others, properties)
        low, high = int(schema.get("minProperties", 0)), schema.get("maxProperties")
        comma = f'{self._blank} "," {self._blank}'
        if not members and more is not None:
            body = _listed(more, comma, low, high)
        elif high is not None and high < len(members):
            raise CannotExpress("maxProperties is less than the number of properties")
        elif low > sum(is_required for _, is_required in members):
            raise CannotExpress("minProperties is more than the number of required properties")
        else:
            most = None if high is None else high - len(members)
            body = self._members(members, None if most == 0 else more, comma, most)
        return f'"{{" {self._blank} {body} {self._blank} "}}"'

    def _member(self, key: str, value: str) -> str:
        return self._rules.add("member", f'{key} {self._blank} ":" {self._blank} {value}')

    def _more_members(
        self, schema: Schema, patterns: Schema, others: Any, properties: Schema
    ) -> str | None:
        """Return the expression of a member with a name that is no property's."""
        options: list[str] = []
        for pattern, value in patterns.items():
            written = self.write(value)
            if written is not None:
                options.append(self._member(self._matching(pattern), written))
        value = self.write(others)
        if value is not None and not patterns:
            names = schema.get("propertyNames")
            key = self._string_of(names) if names is not None else self._other_name(properties)
            options.append(self._member(key, value))
        return any_of(options) if options else None

    def _string_of(self, schema: Any) -> str:
        key = self.write({"type": "string", **schema} if isinstance(schema, Mapping) else schema)
        if key is None:
            raise CannotExpress("no name satisfies propertyNames")
        return key

    def _other_name(self, properties: Schema) -> str:
        """Return the expression of all names but these. They are written without escapes."""
        if not properties:
            return self._any_string()
        names = {key: self._rules.reserve("name") for name in properties for key in _prefixes(name)}
        names[""] = self._rules.reserve("name")
        plain = self._rules.shared("name-char", r'[^"\\\x7F\x00-\x1F]')
        for prefix, rule in names.items():
            nexts = sorted({key[-1] for key in names if key and key[:-1] == prefix})
            options = [f"{quote(char)} {names[prefix + char]}" for char in nexts]
            blocked = {*nexts, '"', "\\", "\x7f", *map(chr, range(0x20))}
            options.append(f"{none_of(blocked)} {plain}*")
            if prefix not in properties:
                options.append(NOTHING)
            self._rules.define(rule, " | ".join(options))
        return f'"\\"" {names[""]} "\\""'

    def _members(
        self, members: list[tuple[str, bool]], more: str | None, comma: str, most: int | None
    ) -> str:
        """Return the members in order, of which those that are not required may be missing, and
        then at most so many `more`."""
        after = NOTHING if more is None else f"({comma} {more}){_repeats(0, most)}"
        first = NOTHING if more is None else _listed(more, comma, 0, most)
        for member, is_required in reversed(members):
            rest = self._rules.add("rest", after)
            follows = f"{comma} {member} {rest}"
            if is_required:
                first, after = f"{member} {rest}", follows
            else:
                first, after = f"({member} {rest} | {first})", f"({comma} {member})? {rest}"
        return first


def write_pattern(pattern: str, style: InputStyle) -> str:
    """Return EBNF of the texts in which the pattern is found. Raises: CannotExpress."""
    try:
        grammar = read("pattern", pattern)
    except InvalidGrammar as error:
        raise CannotExpress(f"the pattern {pattern!r} is invalid: {error}") from None
    if grammar is None:
        raise CannotExpress(f"the pattern {pattern!r} cannot be enforced")
    return write_ebnf(grammar, style)


def _prefixes(name: str) -> Iterator[str]:
    return (name[:end] for end in range(1, len(name) + 1))


def _types_of(schema: Schema) -> Sequence[str]:
    declared = schema.get("type")
    if isinstance(declared, str):
        return (declared,)
    if isinstance(declared, Sequence):
        return declared
    implied = {TYPE_OF_KEYWORD[key] for key in schema if key in TYPE_OF_KEYWORD}
    return sorted(implied) or TYPES


def _is_of_type(value: Any, kind: str) -> bool:
    match value:
        case bool():
            return kind == "boolean"
        case None:
            return kind == "null"
        case int():
            return kind in ("integer", "number")
        case float():
            return kind == "number" or (kind == "integer" and value.is_integer())
        case str():
            return kind == "string"
        case list():
            return kind == "array"
    return kind == "object"


def _bounds(schema: Schema) -> tuple[float, float]:
    low = float(schema.get("minimum", -inf))
    high = float(schema.get("maximum", inf))
    if "exclusiveMinimum" in schema:
        low = max(low, nextafter(float(schema["exclusiveMinimum"]), inf))
    if "exclusiveMaximum" in schema:
        high = min(high, nextafter(float(schema["exclusiveMaximum"]), -inf))
    return low, high


def _integer(schema: Schema) -> str | None:
    low, high = _bounds(schema)
    first = None if low == -inf else ceil(low)
    last = None if high == inf else floor(high)
    step = schema.get("multipleOf", 1)
    if step > 1 and float(step).is_integer():
        return numbers.multiples(int(step), first, last)
    return numbers.integers(first, last)


def _number(schema: Schema) -> str | None:
    step = schema.get("multipleOf")
    if step is not None and float(step).is_integer():
        return _integer(schema)
    return numbers.decimals(*_bounds(schema))


def _repeats(low: int, high: int | None) -> str:
    if low > MAX_REPEATS:
        raise CannotExpress(f"a minimum length of {low} is too large")
    return f"{{{low},{'' if high is None else min(high, MAX_REPEATS)}}}"


def _listed(item: str, comma: str, low: int, high: int | None) -> str:
    if high == 0:
        return NOTHING
    rest = _repeats(max(low - 1, 0), None if high is None else high - 1)
    listed = f"{item} ({comma} {item}){rest}"
    return listed if low else f"({listed})?"
