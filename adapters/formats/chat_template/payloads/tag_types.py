"""Write values that stand as plain text in a call as JSON of the types that their schema allows."""

from __future__ import annotations

import json

from antiphon.adapters.formats.chat_template.parsing.text_buffer import Write
from antiphon.adapters.formats.chat_template.payloads.json_values import parse_json, quote_json
from antiphon.adapters.formats.chat_template.payloads.pythonic_calls import (
    LEADING_ZEROS,
    python_value_to_json,
)
from antiphon.adapters.formats.chat_template.payloads.schema_types import (
    NULL,
    NULLS,
    STRING,
    TEXT_TYPES,
    fits,
    text_to_json,
)


class TextWriter:
    """Writes a JSON string in pieces; held back is only what may be null."""

    def __init__(self, write: Write, *, may_be_null: bool) -> None:
        self._write = write
        self._held: str | None = "" if may_be_null else None
        if self._held is None:
            write('"')

    def write(self, text: str) -> None:
        if self._held is not None:
            text, self._held = self._held + text, None
            if any(null.startswith(text) for null in NULLS):
                self._held = text
                return
            self._write('"')
        self._write(quote_json(text)[1:-1])

    def end(self, *, is_whole: bool) -> None:
        if self._held in NULLS:
            self._write(NULL)
        elif self._held is not None:
            self._write(f'"{self._held}"' if is_whole else f'"{self._held}')
        elif is_whole:
            self._write('"')


def value_to_json(text: str, types: frozenset[str]) -> str:
    """Return a value as JSON of one of the types: itself, a text, or a literal of Python.

    A value of no allowed type is a text if a text is allowed, otherwise what it looks like. Where
    no text is, a value may be JSON inside a string, also without its quotes, and a number may have
    zeros before it.

    >>> value_to_json("5", frozenset({"string"})), value_to_json("5", frozenset({"integer"}))
    ('"5"', '5')
    >>> value_to_json('"5"', frozenset({"integer"})), value_to_json("007", frozenset({"integer"}))
    ('5', '7')
    >>> value_to_json(r'[\\"a\\"]', frozenset({"array"}))
    '["a"]'
    >>> value_to_json("['a', None]", frozenset({"array"}))
    '["a", null]'
    """
    if types <= TEXT_TYPES:
        is_null = NULL in types and text.strip() in NULLS
        return NULL if is_null else quote_json(text)
    literal = literal_to_json(text)
    if not literal.startswith('"') and STRING not in types:
        return literal
    value = json.loads(literal)
    if STRING in types:
        return literal if fits(value, types) else quote_json(text)
    return _unquoted(value, types) or literal


def _unquoted(text: str, types: frozenset[str]) -> str | None:
    """Return the value of one of the types that a text is JSON of, once its escapes are read."""
    for source in (text, parse_json(f'"{text}"')):
        bare = LEADING_ZEROS.sub(r"\1", source.strip()) if isinstance(source, str) else ""
        value = parse_json(bare)
        if value is not None and fits(value, types):
            return bare if not isinstance(value, str) else None
    return None


def literal_to_json(text: str) -> str:
    """Return JSON of a value that is JSON, a literal of Python or else a text."""
    literal = text_to_json(text)
    if not literal.startswith('"') or not text.lstrip().startswith(("[", "{")):
        return literal
    value = python_value_to_json(text.strip())
    return literal if value is None else value
