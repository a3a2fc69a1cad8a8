"""A turn's tools, as every format needs them: which to name, which to heed, how to tell of each.

Models know functions only, so a custom tool is offered as a function with one string, `input`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.application.ports import Turn
from antiphon.domain.offers import flat_name
from antiphon.domain.tools import ToolSpec

Json = dict[str, Any]

INPUT = "input"
"""The one property of a custom tool's arguments."""


def offered(turn: Turn) -> Sequence[ToolSpec]:
    """Return the tools that the prompt names. Those that `choice` excludes stay in it, so that
    another choice leaves the prompt's beginning, and its cache, as it was.
    """
    return () if turn.choice.mode == "none" else turn.tools


def callable_tools(turn: Turn) -> Mapping[str, ToolSpec]:
    """Return the tools that the model may call, by the name that it writes."""
    return {tool.name: tool for tool in turn.tools if turn.choice.allows(tool.name)}


def local_name(tool: ToolSpec) -> str:
    """Return the name without its namespace, as the client knows it.

    >>> local_name(ToolSpec(name="crm__find", namespace="crm"))
    'find'
    """
    return tool.name.removeprefix(flat_name(tool.namespace, ""))


def description_of(tool: ToolSpec) -> str:
    """Return what the model is told of the tool, a grammar of its input included."""
    if tool.grammar is None:
        return tool.description
    syntax, definition = tool.grammar
    rule = f"`{INPUT}` must match this {syntax} grammar:\n{definition}"
    return f"{tool.description}\n\n{rule}" if tool.description else rule


def input_parameters() -> Json:
    """Return the schema of a custom tool's arguments."""
    return {
        "type": "object",
        "properties": {INPUT: {"type": "string"}},
        "required": [INPUT],
        "additionalProperties": False,
    }


def wrapped(text: str) -> str:
    """Return the arguments of a custom tool's call whose free text is `text`.

    >>> wrapped('say "hi"')
    '{"input": "say \\\\"hi\\\\""}'
    """
    return json.dumps({INPUT: text}, ensure_ascii=False)
