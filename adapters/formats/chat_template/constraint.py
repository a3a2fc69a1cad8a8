"""What the output must match so that tool choice, strict tools and text format hold.

xgrammar's structural tags (of xgrammar 0.2) say it in the family's own markup. Reasoning stays
free: where the model may reason, the tag lets a block of it come first and binds what follows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from antiphon.adapters.formats.chat_template.families import CallForm, Family
from antiphon.adapters.formats.chat_template.transcript import parameters_of
from antiphon.adapters.formats.ebnf import constrains_arguments, input_grammar
from antiphon.adapters.formats.structural_tag import (
    grammar_tag,
    one_of,
    sequence,
    structural_tag_constraint,
)
from antiphon.adapters.formats.tools import callable_tools
from antiphon.application.ports import Constraint, Turn
from antiphon.domain.errors import RequestError
from antiphon.domain.json import Json
from antiphon.domain.tools import ToolSpec

ANY_OBJECT: Json = {"type": "object"}

MOST_WHITESPACE = 20
"""Whitespace in a row inside bound JSON: room for indentation, none for a model that is stuck."""

PYTHON_VALUES = r"""
value ::= string | number | "True" | "False" | "None" | list | dict
list ::= "[" (value (", " value)*)? "]"
dict ::= "{" (string ": " value (", " string ": " value)*)? "}"
string ::= "\"" ([^"\\\n] | "\\" ["\\/nrt])* "\""
number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)?
"""


def constraint(family: Family, turn: Turn, *, inside_reasoning: bool) -> Constraint | None:
    """Return the constraint, if anything asks for one.

    `inside_reasoning`: the prompt has opened the reasoning already.
    Raises: RequestError where the family has no way to call.
    """
    tools = list(callable_tools(turn).values())
    schema = _schema(turn)
    if turn.choice.mode == "required" and tools:
        return _bind(family, turn, [_calls(family, turn, tools)], inside_reasoning)
    if schema is not None:
        calls = [_calls(family, turn, tools)] if tools and family.form else []
        return _bind(family, turn, [*calls, _json(schema)], inside_reasoning)
    if _binds_free_calls(family, turn, tools):
        return _bind(family, turn, [_text_with_calls(family, turn, tools)], inside_reasoning)
    return None


def _schema(turn: Turn) -> Json | None:
    match turn.text.format.get("type"):
        case "json_schema":
            schema = turn.text.format.get("schema")
            return schema if isinstance(schema, dict) else ANY_OBJECT
        case "json_object":
            return ANY_OBJECT
    return None


def _binds_free_calls(family: Family, turn: Turn, tools: Sequence[ToolSpec]) -> bool:
    """Whether calls that the model may make are bound: a marker must say that one begins."""
    if not tools or family.form is None or not family.form.trigger:
        return False
    return any(map(constrains_arguments, tools)) or turn.choice.names is not None


def _bind(
    family: Family, turn: Turn, alternatives: list[Json], inside_reasoning: bool
) -> Constraint:
    bound = one_of(alternatives)
    if family.think and (inside_reasoning or turn.effort != "none"):
        bound = sequence(_reasoning(family.think, inside_reasoning), bound)
    return structural_tag_constraint(bound)


def _reasoning(think: tuple[str, str], inside: bool) -> Json:
    begin, end = think
    block = sequence(
        {"type": "tag", "begin": "" if inside else begin, "content": _ANY_TEXT, "end": end},
        {"type": "regex", "pattern": r"\n{0,2}"},
    )
    return block if inside else {"type": "optional", "content": block}


_ANY_TEXT: Json = {"type": "any_text"}


def _calls(family: Family, turn: Turn, tools: Sequence[ToolSpec]) -> Json:
    """Return one call or, where the turn allows it, several in a row."""
    form = family.form
    if form is None:
        raise RequestError(
            "This model has no way to call tools that the server knows of.", param="tool_choice"
        )
    calls = {
        "type": "tags_with_separator",
        "tags": [_call(form, tool) for tool in tools],
        "separator": form.separator,
        "at_least_one": True,
        "stop_after_first": not turn.parallel_tool_calls,
    }
    if not form.open:
        return calls
    return {"type": "tag", "begin": form.open, "content": calls, "end": form.close}


def _text_with_calls(family: Family, turn: Turn, tools: Sequence[ToolSpec]) -> Json:
    """Return free text in which whatever the trigger begins is a call."""
    form = family.form
    assert form
    region = _calls(family, turn, tools)
    free: Json = {
        "type": "triggered_tags",
        "triggers": [form.trigger],
        "tags": [region] if form.open else region["tags"],
        "stop_after_first": not turn.parallel_tool_calls,
    }
    if family.think and turn.effort == "none":
        free["excludes"] = [family.think[0]]
    return free


def _call(form: CallForm, tool: ToolSpec) -> Json:
    return {
        "type": "tag",
        "begin": form.begin.replace("{name}", tool.name),
        "content": _arguments(form, tool),
        "end": form.end,
    }


def _arguments(form: CallForm, tool: ToolSpec) -> Json:
    ebnf = input_grammar(tool, form.arguments)
    if ebnf is not None:
        return grammar_tag(ebnf)
    if form.arguments == "pythonic":
        return grammar_tag(_python_arguments(parameters_of(tool)))
    return _json(parameters_of(tool), style=form.arguments)


def _python_arguments(schema: Json) -> str:
    """Return a grammar of the schema's arguments by name; of their values it knows only Python."""
    properties = schema.get("properties")
    known = properties if isinstance(properties, dict) else {}
    names = [json.dumps(name) for name in known if name.isidentifier()]
    if not names:
        return 'root ::= ""\n'
    argument = f'argument ::= ({" | ".join(names)}) "=" value'
    root = 'root ::= argument (", " argument)*'
    if not schema.get("required"):
        root = 'root ::= "" | argument (", " argument)*'
    return f"{root}\n{argument}{PYTHON_VALUES}"


def _json(schema: Json, *, style: str = "json") -> Json:
    bound: Json = {"type": "json_schema", "json_schema": schema, "style": style}
    return bound | ({"max_whitespace_cnt": MOST_WHITESPACE} if style == "json" else {})
