"""The EBNF of a custom tool's grammar, as each style of calls writes the input."""

from __future__ import annotations

from sys import getsizeof

from antiphon.adapters.formats.transcript import parameters_of
from antiphon.application.support.lru_cache import LruCache, digest_of
from antiphon.domain.grammars import read
from antiphon.domain.grammars.ebnf import JSON_ESCAPES, InputStyle, write_ebnf
from antiphon.domain.grammars.plain_schemas import plain_schema
from antiphon.domain.json import Json
from antiphon.domain.json_schema import loosen
from antiphon.domain.kinds.custom import INPUT
from antiphon.domain.tools import ToolSpec

_cache: LruCache[tuple[str | None]] = LruCache(2 * 1024 * 1024)

# Without a limit, a confused model would write blanks until it runs out of tokens.
_BLANKS = r"[ \t\n]{0,20}"
JSON_INPUT = InputStyle(
    prefix=rf'"{{" {_BLANKS} "\"{INPUT}\"" {_BLANKS} ":" {_BLANKS} "\""',
    suffix=rf'"\"" {_BLANKS} "}}"',
    escapes=JSON_ESCAPES,
    hex_prefix="u00",
)
PYTHON_INPUT = InputStyle(
    prefix=rf'"{INPUT}=\""',
    suffix=r'"\""',
    escapes={char: letter for char, letter in JSON_ESCAPES.items() if char not in "\b\f"},
    hex_prefix="x",
)


def constrains_arguments(tool: ToolSpec) -> bool:
    """Whether calls of the tool are constrained even where the model is free not to call it."""
    return tool.strict or input_grammar(tool) is not None


def enforced_parameters(tool: ToolSpec) -> Json:
    """Return the schema that binds calls: of a tool that is not strict, what can be enforced."""
    schema = parameters_of(tool)
    return enforced_schema(schema, is_strict=tool.strict)


def enforced_format(text_format: Json) -> Json:
    """Return the schema that binds an answer: where it is not strict, what can be enforced."""
    schema: Json = text_format.get("schema") or {"type": "object"}
    return enforced_schema(schema, is_strict=text_format.get("strict") is True)


def enforced_schema(schema: Json, *, is_strict: bool) -> Json:
    """Return the schema in the form that engines enforce (`domain/grammars/plain_schemas.py`)."""
    plain: Json = plain_schema(schema) if is_strict else loosen(schema)
    return plain


def input_grammar(tool: ToolSpec, style: InputStyle = JSON_INPUT) -> str | None:
    """Return the EBNF of a custom tool's arguments, if its grammar can be enforced."""
    if tool.grammar is None:
        return None
    key = digest_of(*(part.encode() for part in (*tool.grammar, style.prefix, style.suffix)))
    cached = _cache.get(key)
    if cached is None:
        cached = (_input_grammar(*tool.grammar, style),)
        _cache.put(key, cached, getsizeof(cached[0]))
    return cached[0]


def _input_grammar(syntax: str, definition: str, style: InputStyle) -> str | None:
    grammar = read(syntax, definition)
    if grammar is None:
        return None
    return write_ebnf(grammar, style)
