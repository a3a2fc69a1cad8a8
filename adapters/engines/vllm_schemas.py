"""Schemas in the words of vLLM's grammar engine, xgrammar.

xgrammar matches a `pattern` against whole strings, though JSON Schema finds it anywhere in one, and
writes no escapes where it matches one. So patterns are written anew, for whole strings without
escapes; where arguments are tags, also without what may begin the closing tag.
"""

from __future__ import annotations

from typing import Any

from antiphon.domain.errors import InvalidGrammar, RequestError, UnsupportedGrammar
from antiphon.domain.grammars import read
from antiphon.domain.grammars.ebnf import IN_TAGS, JSON_ESCAPES, InputStyle, write_expression
from antiphon.domain.grammars.plain_schemas import CannotEnforce, plain_schema
from antiphon.domain.json_schema import LISTS, MAPS, ONE

_IN_JSON = InputStyle(prefix="", suffix="", escapes=JSON_ESCAPES, hex_prefix="u00")


def rewrite_schemas(kind: str, value: Any, *, field: str) -> Any:
    """Return a constraint's value with its schemas rewritten; `field` is what a refusal blames.

    Raises: RequestError for a pattern that cannot be enforced.
    """
    try:
        return _schema(plain_schema(value), _IN_JSON) if kind == "json_schema" else _tags(value)
    except (CannotEnforce, InvalidGrammar, UnsupportedGrammar) as error:
        raise RequestError(
            f"This model's engine cannot enforce what was asked for: {error}.",
            param=field,
            code="unsupported_parameter",
        ) from None


def _tags(tag: Any) -> Any:
    """Return a structural tag, or a part of one."""
    if isinstance(tag, list):
        return [_tags(each) for each in tag]
    if not isinstance(tag, dict):
        return tag
    if tag.get("type") != "json_schema":
        return {key: _tags(each) for key, each in tag.items()}
    schema = plain_schema(tag["json_schema"])
    if tag.get("style", "json") == "json":
        return {**tag, "json_schema": _schema(schema, _IN_JSON)}
    # Only the values of the arguments themselves are written without quotes.
    texts = {key: _schema(each, IN_TAGS) for key, each in _map(schema, "properties").items()}
    return {**tag, "json_schema": {**_schema(schema, _IN_JSON), "properties": texts}}


def _map(schema: Any, key: str) -> dict[str, Any]:
    value = schema.get(key) if isinstance(schema, dict) else None
    return value if isinstance(value, dict) else {}


def _schema(schema: Any, style: InputStyle) -> Any:
    if not isinstance(schema, dict):
        return schema
    rewritten = dict(schema)
    for key, value in schema.items():
        inner = style if key in ("anyOf", "oneOf", "allOf") else _IN_JSON
        if key == "pattern" and isinstance(value, str):
            rewritten[key] = _pattern(value, style)
        elif key == "patternProperties" and isinstance(value, dict):
            rewritten[key] = {
                _pattern(name, _IN_JSON): _schema(each, _IN_JSON) for name, each in value.items()
            }
        elif key in MAPS and isinstance(value, dict):
            rewritten[key] = {name: _schema(each, _IN_JSON) for name, each in value.items()}
        elif key in LISTS and isinstance(value, list):
            rewritten[key] = [_schema(each, inner) for each in value]
        elif key in ONE:
            rewritten[key] = _schema(value, _IN_JSON)
    return rewritten


def _pattern(pattern: str, style: InputStyle) -> str:
    grammar = read("pattern", pattern)
    if grammar is None:
        raise UnsupportedGrammar(f"the pattern {pattern!r}")
    # For vLLM's other engines, to which it turns if xgrammar lacks a keyword, anchors count.
    return f"^{write_expression(grammar, style)}$"
