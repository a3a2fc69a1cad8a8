"""How Gemma writes a call's arguments: keys without quotes, texts between quotes that are tokens.

The tag is a grammar of the schema: its properties in the order in which Gemma's templates declare
them, the required ones always there, and each with the types that it allows. Where a schema says no
more than that something is an object, any members are allowed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from antiphon.adapters.formats.structural_tag import grammar_tag
from antiphon.domain.grammars.ebnf import InputStyle
from antiphon.domain.json import Json
from antiphon.domain.kinds.custom import INPUT

QUOTE = '<|"|>'
ESCAPE = "<escape>"
MAX_DEPTH = 8
"""How deep a schema is followed: a deeper value is any value."""

ANY_VALUES = r"""
value ::= text | number | "true" | "false" | "null" | any-list | any-object
any-list ::= "[" (value ("," value)*)? "]"
any-object ::= "{" (any-key ":" value ("," any-key ":" value)*)? "}"
any-key ::= [^{}\[\]:,<>" \n\t]+
integer ::= "-"? ("0" | [1-9] [0-9]*)
number ::= integer ("." [0-9]+)? ([eE] [+-]? [0-9]+)?
"""
SIMPLE_TYPES: Mapping[str, str] = {
    "string": "text",
    "integer": "integer",
    "number": "number",
    "boolean": '("true" | "false")',
    "null": '"null"',
}


def gemma_tag(quote: str, schema: Json) -> Json:
    """Return the tag of the arguments of a schema, without the brackets around them."""
    return grammar_tag("\n".join(_Grammar(quote).write(schema)) + "\n")


def gemma_input(quote: str) -> InputStyle:
    return InputStyle(prefix=_literal(f"{INPUT}:{quote}"), suffix=_literal(quote))


def write_gemma(quote: str, arguments: Json) -> str:
    """Return the arguments, sorted as Gemma's templates sort them.

    >>> write_gemma("|", {"b": [1, True], "a": "x"})
    'a:|x|,b:[1,true]'
    """
    return ",".join(
        f"{key}:{_write_value(quote, value)}" for key, value in _sorted(arguments).items()
    )


def _write_value(quote: str, value: Any) -> str:
    match value:
        case str():
            return f"{quote}{value}{quote}"
        case list():
            return f"[{','.join(map(partial(_write_value, quote), value))}]"
        case dict():
            return f"{{{write_gemma(quote, value)}}}"
    return json.dumps(value)


def _sorted(values: Mapping[str, Any]) -> dict[str, Any]:
    return dict(sorted(values.items(), key=lambda pair: pair[0].lower()))


def _literal(text: str) -> str:
    """Return the text as a literal of EBNF."""
    return json.dumps(text)


class _Grammar:
    """Writes the rules of a schema; each object has rules of its own."""

    def __init__(self, quote: str) -> None:
        self._quote = quote
        self._rules: list[str] = []
        self._count = 0

    def write(self, schema: Json) -> Iterator[str]:
        root = self._members(schema, 0) or '""'
        yield f"root ::= {root}"
        yield from self._rules
        yield from _text_rules(self._quote)
        yield ANY_VALUES

    def _members(self, schema: Json, depth: int) -> str:
        """Return the rule of an object's members, "" if it declares none.

        There are two rules for each property: one where nothing was written before it, and one
        after a member, which starts with a comma.
        """
        properties = schema.get("properties")
        if not isinstance(properties, dict) or not properties:
            return ""
        required = schema.get("required")
        needed = set(required) if isinstance(required, list) else set()
        self._count += 1
        prefix = f"members-{self._count}"
        pairs = list(_sorted(properties).items())
        for number, (key, value) in enumerate(pairs):
            member = f"{_literal(f'{key}:')} {self._value(value, depth + 1)}"
            skip = "" if key in needed else f" | {prefix}-first-{number + 1}"
            self._add(f"{prefix}-first-{number}", f"{member} {prefix}-more-{number + 1}{skip}")
            skip = "" if key in needed else f" | {prefix}-more-{number + 1}"
            self._add(f"{prefix}-more-{number}", f'"," {member} {prefix}-more-{number + 1}{skip}')
        self._add(f"{prefix}-first-{len(pairs)}", '""')
        self._add(f"{prefix}-more-{len(pairs)}", '""')
        return f"{prefix}-first-0"

    def _add(self, name: str, body: str) -> None:
        self._rules.append(f"{name} ::= {body}")

    def _value(self, schema: Any, depth: int) -> str:
        if not isinstance(schema, dict) or depth > MAX_DEPTH:
            return "value"
        if "const" in schema or isinstance(schema.get("enum"), list):
            return self._one_of_values(schema)
        for key in ("anyOf", "oneOf"):
            if isinstance(schema.get(key), list) and schema[key]:
                return self._any_of([self._value(each, depth + 1) for each in schema[key]])
        declared = schema.get("type")
        types = declared if isinstance(declared, list) else [declared]
        return self._any_of([self._typed(schema, name, depth) for name in types] or ["value"])

    def _one_of_values(self, schema: Json) -> str:
        values = schema["enum"] if "const" not in schema else [schema["const"]]
        texts = [_literal(_write_value(self._quote, value)) for value in values]
        return self._any_of(texts or ["value"])

    def _any_of(self, options: list[str]) -> str:
        unique = list(dict.fromkeys(options))
        return unique[0] if len(unique) == 1 else f"({' | '.join(unique)})"

    def _typed(self, schema: Json, name: Any, depth: int) -> str:
        match name:
            case "array":
                item = self._value(schema.get("items"), depth + 1)
                return f'("[" ({item} ("," {item})*)? "]")'
            case "object":
                members = self._members(schema, depth)
                return f'("{{" {members} "}}")' if members else "any-object"
        return SIMPLE_TYPES.get(name, "value") if isinstance(name, str) else "value"


def _text_rules(quote: str) -> Iterator[str]:
    """Yield rules of a text in quotes: `text-n` stands after `n` characters of the closing quote.

    The quotes' first character occurs once in them, so a mismatch starts over or after that one.
    """
    assert quote[0] not in quote[1:]
    yield f"text ::= {_literal(quote)} text-0"
    for number, char in enumerate(quote):
        following = f" text-{number + 1}" if number + 1 < len(quote) else ""
        again = f" | {_literal(quote[0])} text-1" if number else ""
        others = (
            f"[^{_class(quote[0])}]"
            if char == quote[0]
            else (f"[^{_class(quote[0])}{_class(char)}]")
        )
        yield f"text-{number} ::= {_literal(char)}{following}{again} | {others} text-0"


def _class(char: str) -> str:
    return f"\\{char}" if char in '\\]^-"' else char
