"""Build the constraint on the output that enforces tool choice, strict tools and text format.

A constraint is an xgrammar structural tag (xgrammar 0.2) in the family's own markup. Reasoning
stays free: if the model may reason, the tag allows a block of reasoning before the constrained
part.
"""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.adapters.formats.chat_template.argument_styles import find_style, json_tag
from antiphon.adapters.formats.chat_template.families import CallForm, Family
from antiphon.adapters.formats.ebnf import constrains_arguments, enforced_format
from antiphon.adapters.formats.structural_tag import (
    const_string,
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

ANY_INDEX: Json = {"type": "regex", "pattern": "[0-9]{1,4}"}


def constraint(family: Family, turn: Turn, *, inside_reasoning: bool) -> Constraint | None:
    """Return the turn's constraint, or None if nothing needs one.

    `inside_reasoning` says that the prompt already opened the reasoning.
    Raises: RequestError if calls are required but the family cannot call tools.
    """
    tools = list(callable_tools(turn).values())
    schema = _schema_of_text(turn)
    if turn.choice.mode == "required" and tools:
        calls_tag = _after_text(family, _calls_tag(family, turn, tools))
        return _make_constraint(family, turn, [calls_tag], inside_reasoning)
    if schema is not None:
        calls = (
            [_after_text(family, _calls_tag(family, turn, tools))]
            if tools and family.call_form
            else []
        )
        text = _inside_text(family, json_tag(schema))
        return _make_constraint(family, turn, [*calls, text], inside_reasoning)
    if _constrains_optional_calls(family, turn, tools):
        return _make_constraint(
            family, turn, [_text_with_calls_tag(family, turn, tools)], inside_reasoning
        )
    return None


def _schema_of_text(turn: Turn) -> Json | None:
    match turn.text.format.get("type"):
        case "json_schema":
            return enforced_format(turn.text.format)
        case "json_object":
            return ANY_OBJECT
    return None


def _constrains_optional_calls(family: Family, turn: Turn, tools: Sequence[ToolSpec]) -> bool:
    """Whether optional calls are constrained; this needs a marker that starts every call."""
    if not tools or family.call_form is None or not family.call_form.trigger:
        return False
    return any(map(constrains_arguments, tools)) or turn.choice.names is not None


def _make_constraint(
    family: Family, turn: Turn, alternatives: list[Json], inside_reasoning: bool
) -> Constraint:
    tag = one_of(alternatives)
    if family.think and (inside_reasoning or turn.effort != "none"):
        tag = sequence(_reasoning_block(family, inside_reasoning), tag)
    return structural_tag_constraint(tag)


def _inside_text(family: Family, tag: Json) -> Json:
    """Return the tag between the family's markers of text; the prompt may have the first one."""
    if family.text is None:
        return tag
    begin, end = family.text
    return sequence(_optional(const_string(family.header_space + begin)), tag, const_string(end))


def _after_text(family: Family, tag: Json) -> Json:
    """Return the tag after the markers of an empty text, if the family has such markers."""
    if family.text is None:
        return tag
    begin, end = family.text
    empty = sequence(_optional(const_string(family.header_space + begin)), const_string(end))
    return sequence(_optional(empty), tag)


def _optional(tag: Json) -> Json:
    return {"type": "optional", "content": tag}


def _reasoning_block(family: Family, inside: bool) -> Json:
    tags: list[Json] = [
        {
            "type": "tag",
            "begin": "" if inside else f"{space}{begin}{family.think_label}",
            "content": _ANY_TEXT,
            "end": end,
        }
        for begin, end in family.thinks
        for space in sorted({"", family.header_space})
    ]
    start = [_optional(const_string(family.message_start))] if family.message_start else []
    block = sequence(one_of(tags), {"type": "regex", "pattern": r"\n{0,2}"}, *start)
    return block if inside else _optional(block)


_ANY_TEXT: Json = {"type": "any_text"}


def _calls_tag(family: Family, turn: Turn, tools: Sequence[ToolSpec]) -> Json:
    """Return the tag of one call or, if the turn allows it, of several in a row."""
    form = family.call_form
    if form is None:
        raise RequestError(
            "The server does not know how this model calls tools.", param="tool_choice"
        )
    calls = {
        "type": "tags_with_separator",
        "tags": [_call_tag(form, tool) for tool in tools],
        "separator": form.separator,
        "at_least_one": True,
        "stop_after_first": not turn.parallel_tool_calls,
    }
    if not form.open:
        return calls
    return {"type": "tag", "begin": form.open, "content": calls, "end": form.close}


def _text_with_calls_tag(family: Family, turn: Turn, tools: Sequence[ToolSpec]) -> Json:
    """Return the tag of free text in which the trigger always starts a call."""
    form = family.call_form
    assert form
    region = _calls_tag(family, turn, tools)
    tag: Json = {
        "type": "triggered_tags",
        "triggers": [form.trigger.replace("{name}", tool.name) for tool in tools]
        if "{name}" in form.trigger
        else [form.trigger],
        "tags": [region] if form.open else region["tags"],
        "stop_after_first": not turn.parallel_tool_calls,
    }
    if family.think and turn.effort == "none":
        tag["excludes"] = [opening for opening, _ in family.thinks]
    return tag


def _call_tag(form: CallForm, tool: ToolSpec) -> Json:
    begin = form.begin.replace("{name}", tool.name).replace("{number}", "{index}")
    begin, *rests = begin.split("{index}")
    arguments = find_style(form.arguments).tag(tool)
    content = [part for rest in rests for part in (ANY_INDEX, const_string(rest))]
    return {
        "type": "tag",
        "begin": begin,
        "content": sequence(*content, arguments) if content else arguments,
        "end": form.end,
    }
