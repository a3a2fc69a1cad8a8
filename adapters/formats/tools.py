"""A turn's tools, as every format needs them: which to name, which to heed, how to tell of each.

Models know functions only, so a custom tool is offered as a function with one string, `input`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from antiphon.application.ports import Turn
from antiphon.domain import deltas as d
from antiphon.domain.client_tools import CLIENT_TOOLS, KINDS_OF, call_arguments_of
from antiphon.domain.items import (
    Item,
    McpApprovalRequest,
    McpCall,
    ToolSearchOutput,
    WebSearchCall,
    is_server_run_call,
)
from antiphon.domain.json import Json
from antiphon.domain.mcp import is_mcp_tool, model_name
from antiphon.domain.tools import CONTAINER, NAMED_KINDS, PYTHON, ToolKind, ToolSpec, flat_name

INPUT = "input"
"""The one property of a custom tool's arguments."""

RECIPIENTS: Mapping[str, str] = {
    "web_search": "browser.search",
    "open_page": "browser.open",
    "find_in_page": "browser.find",
    PYTHON: PYTHON,
    CONTAINER: "container.exec",
}
"""Kinds of tools that gpt-oss was trained on, by the names that it knows. Scripts use these names
whatever the model."""

CODE = "code"
TEXTS: Mapping[str, str] = {"custom": INPUT, PYTHON: CODE}
"""Kinds of tools that are given a text; models that know functions only wrap it in an object, as
this property."""


def text_property(tool: ToolSpec) -> str | None:
    """Return the property that wraps what the tool is given, None where it is given arguments."""
    return TEXTS.get(tool.kind)


def name_of_kind(kind: ToolKind, tools: Iterable[ToolSpec]) -> str:
    """Return the name that the model writes for the one tool of this kind, also if it is not
    offered."""
    return next((tool.name for tool in tools if tool.kind == kind), kind)


def scripted_name(tools: Iterable[ToolSpec], name: str) -> str:
    """Return the name that the model writes for the tool that gpt-oss knows as `name`."""
    known = (tool.name for tool in tools if tool.kind != PYTHON)
    of_kind = (tool.name for tool in tools if RECIPIENTS.get(tool.kind) == name)
    return name if name in known else next(of_kind, name)


def offers_tool_of(part: Mapping[str, Any], tools: Sequence[ToolSpec]) -> bool:
    """Say whether the tool that a script's part calls is offered; True for a part without a call.

    >>> offers_tool_of({"call": "add"}, [ToolSpec(name="add")])
    True
    """
    names = {tool.name for tool in tools}
    match part:
        case {"call": name}:
            return scripted_name(tools, name) in names
        case {"custom": name}:
            return name in names
        case {"mcp": name}:
            label = part.get("server")
            return mcp_model_name(tools, name, label) is not None or (
                model_tool_name(tools, name, label) in names
            )
        case {"python": _}:
            return any(tool.kind == PYTHON for tool in tools)
    return True


def prompt_tools(turn: Turn) -> Sequence[ToolSpec]:
    """Return the tools that the prompt names. Those that `choice` excludes stay in it, so that
    another choice leaves the prompt's beginning, and its cache, as it was.
    """
    return () if turn.choice.mode == "none" else turn.tools


def callable_tools(turn: Turn) -> Mapping[str, ToolSpec]:
    """Return the tools that the model may call, by the name that it writes."""
    return {tool.name: tool for tool in turn.tools if turn.choice.allows(tool.name)}


def call_start(tool: ToolSpec, call_id: str | None = None) -> d.CallStart:
    """Return the delta that a call of the tool begins with."""
    return d.CallStart(tool.client_name, call_id, tool.namespace, tool.kind)


def model_tool_name(tools: Iterable[ToolSpec], name: str, namespace: str | None) -> str:
    """Return the name that the model writes for the tool that the client knows as `name`.

    >>> model_tool_name([], "find", "crm")
    'crm__find'
    """
    known = (tool for tool in tools if tool.kind in NAMED_KINDS and tool.namespace == namespace)
    found = (tool.name for tool in known if name in (tool.name, tool.client_name))
    return next(found, flat_name(namespace, name))


def mcp_model_name(tools: Iterable[ToolSpec], name: str, label: str | None) -> str | None:
    """Return the name that the model writes for an MCP server's tool, None if it is not offered.

    Without a label, the first server that has such a tool is meant.
    """
    known = (tool for tool in tools if is_mcp_tool(tool) and label in (None, tool.namespace))
    return next((tool.name for tool in known if name in (tool.name, tool.client_name)), None)


def called_mcp_name(item: McpCall | McpApprovalRequest, tools: Iterable[ToolSpec]) -> str:
    """Return the name that the model wrote in a call of an MCP server's tool."""
    found = mcp_model_name(tools, item.name, item.server_label)
    return found or model_name(item.server_label, item.name)


def typed_call(item: Item, tools: Iterable[ToolSpec]) -> tuple[str, str]:
    """Return name and arguments of a call of a tool of a fixed shape, as the model writes them."""
    name, kind = typed_name(item, tools)
    return name, call_arguments_of(kind, item)


def typed_name(call: Item, tools: Iterable[ToolSpec]) -> tuple[str, str]:
    """Return the name and the kind of the tool that was called."""
    here = is_server_run_call(call)
    kinds = [kind for kind in KINDS_OF[type(call)] if (kind == CONTAINER) == here]
    prompt_tools = ((tool.name, str(tool.kind)) for tool in tools if tool.kind in kinds)
    return next(prompt_tools, (CLIENT_TOOLS[kinds[0]].name, kinds[0]))


def found_tool_names(output: ToolSearchOutput) -> list[str]:
    """Return what the model is told of tools that were found: their definitions are offered."""
    return [str(tool.get("name", tool.get("type"))) for tool in output.tools]


def browser_call_of(call: WebSearchCall) -> tuple[str, str, str | None]:
    """Return the kind of tool that a model called, the arguments it wrote, what it was shown.

    Items of other servers, and those whose results were lost, do not tell: the arguments are then
    what the action says, and what was shown is None.
    """
    action = call.action or {}
    kind = _BROWSED.get(str(action.get("type")), "web_search")
    result = call.results[0] if call.results else {}
    arguments, text = result.get("arguments"), result.get("text")
    if not isinstance(arguments, str):
        told = {"query": action.get("query"), "id": action.get("url"), **action}
        arguments = json.dumps({name: told.get(name) for name in _TAKEN[kind]}, ensure_ascii=False)
    if not isinstance(text, str):
        text = json.dumps(action["sources"], ensure_ascii=False) if action.get("sources") else None
    return kind, arguments, text


_BROWSED = {"open_page": "open_page", "find_in_page": "find_in_page"}
_TAKEN = {"web_search": ("query",), "open_page": ("id",), "find_in_page": ("pattern",)}


def logs_of(outputs: Iterable[Json]) -> str:
    """Return what the model is told of what its code has put out."""
    return "\n".join(str(output.get("logs", "[image]")) for output in outputs)


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


def wrap_text(text: str, key: str = INPUT) -> str:
    """Return the arguments of a call whose free text is `text`, under `key`.

    >>> wrap_text('say "hi"')
    '{"input": "say \\\\"hi\\\\""}'
    """
    return json.dumps({key: text}, ensure_ascii=False)
