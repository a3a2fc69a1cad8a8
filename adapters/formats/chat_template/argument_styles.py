"""The ways to write a call's arguments: which texts are allowed, and how to write one.

A family's `CallForm` names one of `STYLES`. To add one: a row, with the tag for xgrammar, how a
custom tool's input is written, and a writer.
"""

# ruff: noqa: RUF001 - DeepSeek's markers contain a full-width bar

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from msgspec import Struct

from antiphon.adapters.formats.chat_template.gemma_style import (
    ESCAPE,
    QUOTE,
    gemma_input,
    gemma_tag,
    write_gemma,
)
from antiphon.adapters.formats.chat_template.payloads.schema_types import properties_of
from antiphon.adapters.formats.ebnf import (
    JSON_INPUT,
    PYTHON_INPUT,
    enforced_parameters,
    input_grammar,
)
from antiphon.adapters.formats.structural_tag import const_string, grammar_tag, one_of, sequence
from antiphon.domain.grammars import read
from antiphon.domain.grammars.ebnf import InputStyle, write_expression
from antiphon.domain.json import Json
from antiphon.domain.kinds.custom import INPUT
from antiphon.domain.tools import ToolSpec

MAX_WHITESPACE = 20
"""Consecutive whitespace in constrained JSON: enough to indent, but it stops a looping model."""

PYTHON_VALUES = r"""
value ::= string | number | "True" | "False" | "None" | list | dict
list ::= "[" (value (", " value)*)? "]"
dict ::= "{" (string ": " value (", " string ": " value)*)? "}"
string ::= "\"" ([^"\\\n] | "\\" ["\\/nrt])* "\""
number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)?
"""


class ArgumentStyle(Struct, frozen=True):
    """A way to write arguments.

    `schema_tag` returns the xgrammar tag of arguments of a schema. `input` is how a custom tool's
    input is written, for its grammar. `write` returns the text of some arguments.
    """

    schema_tag: Callable[[Json], Json]
    input: InputStyle
    write: Callable[[Json], str]

    def tag(self, tool: ToolSpec) -> Json:
        """Return the tag of the tool's grammar or, if it has none, of its schema."""
        ebnf = input_grammar(tool, self.input)
        if ebnf is not None:
            return grammar_tag(ebnf)
        return self.schema_tag(enforced_parameters(tool))


# --- which texts are allowed ----------------------------------------------------------------------


def json_tag(schema: Json) -> Json:
    """Return the tag of JSON of this schema."""
    return _xgrammar_tag("json", schema)


def _xgrammar_tag(style: str, schema: Json) -> Json:
    """Return the tag of one of xgrammar's styles, with a little whitespace where it allows any."""
    return {
        "type": "json_schema",
        "json_schema": schema,
        "style": style,
        "max_whitespace_cnt": MAX_WHITESPACE,
    }


def _python_tag(schema: Json) -> Json:
    """Return the tag of Python arguments with the schema's names and any literal values."""
    names = [json.dumps(name) for name in properties_of(schema) if name.isidentifier()]
    if not names:
        return grammar_tag('root ::= ""\n')
    argument = f'argument ::= ({" | ".join(names)}) "=" value'
    root = 'root ::= argument (", " argument)*'
    if not schema.get("required"):
        root = 'root ::= "" | argument (", " argument)*'
    return grammar_tag(f"{root}\n{argument}{PYTHON_VALUES}")


class TagText(Struct, frozen=True):
    """How one argument is written as tags: `begin` value `end`, with `{key}` for its name.

    `is_xml`: a text with markup or several lines is a CDATA section.
    """

    begin: str
    end: str
    is_xml: bool = False

    def enclose(self, key: str, text: str) -> str:
        return f"{self.begin}{text}{self.end}".replace("{key}", key)


def _tags_tag(form: TagText, schema: Json) -> Json:
    """Return the tag of arguments as tags, in the schema's order; all of those required are there.

    xgrammar has styles for some markup; this is for the others.
    """
    properties = properties_of(schema)
    if not properties:
        return grammar_tag('root ::= ""\n')
    definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    required = schema.get("required") or ()
    parts = []
    for key, value in properties.items():
        own = {**definitions, **value} if isinstance(value, dict) else {}
        begin, end = (text.replace("{key}", key) for text in (form.begin, form.end))
        part = {"type": "tag", "begin": begin, "content": _value_tag(form, own), "end": end}
        parts.append(part if key in required else {"type": "optional", "content": part})
    return sequence(*parts)


def _value_tag(form: TagText, schema: Json) -> Json:
    values = schema.get("enum")
    if isinstance(values, list) and values:
        return one_of([const_string(write_plain(value)) for value in values])
    if not _allows_text(schema):
        return json_tag(schema)
    if isinstance(schema.get("pattern"), str):
        return _pattern_tag(form, schema["pattern"])
    if not form.is_xml:
        return _ANY_TEXT
    cdata = {"type": "tag", "begin": "<![CDATA[", "content": _ANY_TEXT, "end": "]]>"}
    return one_of([cdata, {"type": "regex", "pattern": r"[^<&\n]*"}])


_ANY_TEXT: Json = {"type": "any_text"}


def _pattern_tag(form: TagText, pattern: str) -> Json:
    """Return the tag of the texts in which a pattern is found, without what might end them."""
    style = InputStyle(prefix="", suffix="", excludes="<&\n" if form.is_xml else form.end[0])
    grammar = read("pattern", pattern)
    if grammar is None:
        return _ANY_TEXT
    return {"type": "regex", "pattern": write_expression(grammar, style)}


def _allows_text(schema: Json) -> bool:
    """Whether a value may be a text: an optional text is one, and so is a value of any type."""
    if "$ref" in schema or "const" in schema:
        return False
    declared = schema.get("type")
    if declared is not None:
        return "string" in declared
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(alternatives, list):
        return any(isinstance(each, dict) and _allows_text(each) for each in alternatives)
    return "properties" not in schema and "items" not in schema


def _nested_tag(schema: Json) -> Json:
    return _xgrammar_tag("minimax_m3_xml", _with_types(schema))


def _with_types(schema: Any, *, is_map: bool = False) -> Any:
    """Return the schema with texts for values of any type, which tags in tags cannot express."""
    if not isinstance(schema, dict):
        return schema if isinstance(schema, list) else {"type": "string"}
    if is_map:
        return {key: _with_types(value) for key, value in schema.items()}
    typed = dict(schema)
    for key in ("properties", "$defs", "definitions"):
        if isinstance(typed.get(key), dict):
            typed[key] = _with_types(typed[key], is_map=True)
    if "items" in typed or typed.get("type") == "array":
        typed["items"] = _with_types(typed.get("items"))
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(typed.get(key), list):
            typed[key] = [_with_types(each) for each in typed[key]]
    return typed if typed.keys() - {"description", "title", "default"} else {"type": "string"}


# --- how to write one -----------------------------------------------------------------------------


def _write_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def write_plain(value: Any) -> str:
    """Return a string as it is, anything else as JSON."""
    return value if isinstance(value, str) else _write_json(value)


def _write_qwen_xml(arguments: Json) -> str:
    return "\n".join(
        f"<parameter={key}>\n{write_plain(value)}\n</parameter>" for key, value in arguments.items()
    )


def _write_kimi_k3(arguments: Json) -> str:
    return "".join(
        f'<|open|>argument key="{_escape_attribute(key)}" type="{_kimi_type(value)}"<|sep|>'
        f"{write_plain(value)}<|close|>argument<|sep|>"
        for key, value in arguments.items()
    )


def _escape_attribute(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;")


def _kimi_type(value: Any) -> str:
    match value:
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case None:
            return "null"
        case dict():
            return "object"
        case list():
            return "array"
    return "string"


def _write_python(arguments: Json) -> str:
    return ", ".join(f"{key}={write_python_value(value)}" for key, value in arguments.items())


def write_python_value(value: Any) -> str:
    """Return a Python literal, with its texts in double quotes.

    >>> write_python_value({"a": [True, None, 'say "hi"']})
    '{"a": [True, None, "say \\\\"hi\\\\""]}'
    """
    match value:
        case str():
            return _write_json(value)
        case list():
            return f"[{', '.join(map(write_python_value, value))}]"
        case dict():
            pairs = (
                f"{_write_json(key)}: {write_python_value(each)}" for key, each in value.items()
            )
            return f"{{{', '.join(pairs)}}}"
    return repr(value)


def _write_tags(form: TagText, arguments: Json) -> str:
    texts = []
    for key, value in arguments.items():
        text = write_plain(value)
        if form.is_xml and isinstance(value, str) and any(char in value for char in "<&\n"):
            text = f"<![CDATA[{text.replace(']]>', ']]]]><![CDATA[>')}]]>"
        texts.append(form.enclose(key, text))
    return "".join(texts)


def _write_typed_tags(form: TagText, arguments: Json) -> str:
    """Write tags that say whether their value is a text."""
    return "".join(
        form.enclose(key, write_plain(value)).replace(
            "{is_text}", "true" if isinstance(value, str) else "false", 1
        )
        for key, value in arguments.items()
    )


NAMESPACE = "]<]minimax[>["


def _write_nested(value: Any) -> str:
    match value:
        case dict():
            pairs = value.items()
        case list():
            pairs = [("item", each) for each in value]  # type: ignore[assignment]
        case _:
            return write_plain(value)
    return "".join(
        f"{NAMESPACE}<{key}>{_write_nested(each)}{NAMESPACE}</{key}>" for key, each in pairs
    )


def _ebnf_text(text: str) -> str:
    return json.dumps(text)


def _input_in_tags(form: TagText) -> InputStyle:
    begin, end = (text.replace("{key}", INPUT) for text in (form.begin, form.end))
    begin = begin.replace("{is_text}", "true")
    if form.is_xml:
        begin, end = f"{begin}<![CDATA[", f"]]>{end}"
    return InputStyle(prefix=_ebnf_text(begin), suffix=_ebnf_text(end))


def _tag_style(form: TagText, xgrammar_style: str = "") -> ArgumentStyle:
    """Return the style of tags, bound by xgrammar's own style if it has one for them."""
    if xgrammar_style:
        schema_tag = partial(_xgrammar_tag, xgrammar_style)
    else:
        schema_tag = partial(_tags_tag, form)
    writer = _write_typed_tags if "{is_text}" in form.begin else _write_tags
    return ArgumentStyle(schema_tag, _input_in_tags(form), partial(writer, form))


def _dsml(blank: str) -> TagText:
    tag = f"｜DSML｜{blank}parameter"
    return TagText(f'<{tag} name="{{key}}" string="{{is_text}}">', f"</{tag}>\n")


STYLES: Mapping[str, ArgumentStyle] = {
    "json": ArgumentStyle(json_tag, JSON_INPUT, _write_json),
    "qwen_xml": ArgumentStyle(
        partial(_xgrammar_tag, "qwen_xml"),
        InputStyle(prefix=rf'"<parameter={INPUT}>\n"', suffix=r'"\n</parameter>"'),
        _write_qwen_xml,
    ),
    "pythonic": ArgumentStyle(_python_tag, PYTHON_INPUT, _write_python),
    "glm_xml": _tag_style(
        TagText("<arg_key>{key}</arg_key><arg_value>", "</arg_value>"), "glm_xml"
    ),
    "glm_xml_lines": _tag_style(
        TagText("<arg_key>{key}</arg_key>\n<arg_value>", "</arg_value>\n"), "glm_xml"
    ),
    "deepseek_xml": _tag_style(_dsml(""), "deepseek_xml"),
    "deepseek_v4_1_xml": _tag_style(_dsml(" "), "deepseek_v4_1_xml"),
    "minimax_xml": _tag_style(TagText('<parameter name="{key}">', "</parameter>\n"), "minimax_xml"),
    "minimax_m3_xml": ArgumentStyle(
        _nested_tag,
        _input_in_tags(TagText(f"{NAMESPACE}<{{key}}>", f"{NAMESPACE}</{{key}}>")),
        _write_nested,
    ),
    "seed_xml": _tag_style(TagText("<parameter={key}>", "</parameter>\n"), "qwen_xml"),
    "ifm_xml": _tag_style(
        TagText("<ifm|arg_key>{key}</ifm|arg_key><ifm|arg_value>", "</ifm|arg_value>")
    ),
    "mimo_xml": _tag_style(TagText("<parameter={key}>", "</parameter>"), "qwen_xml"),
    "hy3_xml": _tag_style(
        TagText(
            "<arg_key:opensource>{key}</arg_key:opensource>\n<arg_value:opensource>",
            "</arg_value:opensource>\n",
        )
    ),
    "step3_xml": _tag_style(TagText('<steptml:parameter name="{key}">', "</steptml:parameter>\n")),
    "atem_xml": _tag_style(TagText('<atem:parameter name="{key}">', "</atem:parameter>\n")),
    "minicpm_xml": _tag_style(TagText('<param name="{key}">', "</param>", is_xml=True)),
    "kimi_k3": ArgumentStyle(
        partial(_xgrammar_tag, "kimi_k3_xml"),
        InputStyle(
            prefix=rf'"<|open|>argument key=\"{INPUT}\" type=\"string\"<|sep|>"',
            suffix='"<|close|>argument<|sep|>"',
        ),
        _write_kimi_k3,
    ),
    "gemma": ArgumentStyle(
        partial(gemma_tag, QUOTE), gemma_input(QUOTE), partial(write_gemma, QUOTE)
    ),
    "functiongemma": ArgumentStyle(
        partial(gemma_tag, ESCAPE), gemma_input(ESCAPE), partial(write_gemma, ESCAPE)
    ),
}


def find_style(style: str | ArgumentStyle) -> ArgumentStyle:
    """Return the style of this name, or the style itself. Raises: KeyError if it is unknown."""
    return STYLES[style] if isinstance(style, str) else style
