"""MCP servers: their lists of tools, calls of those, and approvals of calls."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from antiphon.domain import deltas as d
from antiphon.domain.bounds import MAX_MEMBERS, Id, Line, Long, Many, Name, Text
from antiphon.domain.json import Json
from antiphon.domain.vocabulary.builder import BuilderContext
from antiphon.domain.vocabulary.event import ItemEvent
from antiphon.domain.vocabulary.item import Item
from antiphon.domain.vocabulary.kind import (
    JSON_ARGUMENTS,
    NOT_SHOWN,
    CallKind,
    Echo,
    ItemKind,
    Kind,
    Shown,
    ToolKind,
)
from antiphon.domain.vocabulary.shown import Call, JsonBody, Result, View, json_arguments
from antiphon.domain.vocabulary.steps import INPUT_ONLY, NO_EVENTS, ItemSteps, ToolBuilder
from antiphon.domain.vocabulary.tool import (
    REDACTED,
    Tool,
    ToolCallerName,
    ToolSpec,
    qualified_name,
)
from antiphon.domain.vocabulary.typed_call import BufferedCallBuilder, EventsAndItem

MCP_KINDS = ("mcp", "mcp_approval")
"""The kinds of MCP tools: those that run immediately, and those that wait for the client's
approval. The namespace of an MCP tool is its server's label."""

MAX_PART_CHARS = 1024
"""How much of a label or a name is in the name that models write."""


_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")


class McpListTools(Item, frozen=True, kw_only=True, tag="mcp_list_tools"):
    server_label: Text
    tools: Long[Json]
    instructions: Text | None | UnsetType = UNSET
    error: Text | None | UnsetType = UNSET


class McpCall(Item, frozen=True, kw_only=True, tag="mcp_call"):
    status: Text | None | UnsetType = UNSET
    server_label: Text
    name: Text
    arguments: Text
    output: Text | None = None
    error: Any = None
    approval_request_id: Text | None = None
    caller: Json | None | UnsetType = UNSET


class McpApprovalRequest(Item, frozen=True, kw_only=True, tag="mcp_approval_request"):
    server_label: Text
    name: Text
    arguments: Text
    caller: Json | None | UnsetType = UNSET


class McpApprovalResponse(Item, frozen=True, kw_only=True, tag="mcp_approval_response"):
    approval_request_id: Text
    approve: bool
    reason: Text | None | UnsetType = UNSET


class McpListToolsInProgress(ItemEvent, frozen=True, tag="response.mcp_list_tools.in_progress"):
    pass


class McpListToolsCompleted(ItemEvent, frozen=True, tag="response.mcp_list_tools.completed"):
    pass


class McpListToolsFailed(ItemEvent, frozen=True, tag="response.mcp_list_tools.failed"):
    pass


class McpCallInProgress(ItemEvent, frozen=True, tag="response.mcp_call.in_progress"):
    pass


class McpArgumentsDelta(
    ItemEvent, frozen=True, kw_only=True, tag="response.mcp_call_arguments.delta"
):
    delta: str


class McpArgumentsDone(
    ItemEvent, frozen=True, kw_only=True, tag="response.mcp_call_arguments.done"
):
    arguments: str


class McpCallCompleted(ItemEvent, frozen=True, tag="response.mcp_call.completed"):
    pass


class McpCallFailed(ItemEvent, frozen=True, tag="response.mcp_call.failed"):
    pass


class McpTool(Tool, frozen=True, kw_only=True, tag="mcp"):
    """An MCP server; its `authorization` and header values are never stored or echoed."""

    server_label: Name
    server_url: Line | None | UnsetType = UNSET
    connector_id: Id | None | UnsetType = UNSET
    tunnel_id: Id | None | UnsetType = UNSET
    server_description: Text | None | UnsetType = UNSET
    headers: Annotated[dict[Line, Line], Meta(max_length=MAX_MEMBERS)] | None | UnsetType = UNSET
    authorization: Line | None | UnsetType = UNSET
    allowed_tools: Many[Name] | Json | None | UnsetType = UNSET
    require_approval: Name | Json | None | UnsetType = UNSET
    defer_loading: bool | None | UnsetType = UNSET
    allowed_callers: Many[ToolCallerName] | None | UnsetType = UNSET


def model_name(label: str, name: str) -> str:
    """Return the name that models write for a server's tool, in characters that all of them know.

    >>> model_name("my docs", "read.page")
    'my_docs__read_page'
    """
    # A client may send items with names of megabytes; no tool has one.
    parts = (_NOT_IN_NAMES.sub("_", part[:MAX_PART_CHARS]) for part in (label, name))
    return qualified_name(*parts)


def _without_secrets(tool: Json) -> Json:
    redacted = {name: value for name, value in tool.items() if name != "authorization"}
    if isinstance(redacted.get("headers"), dict):
        redacted["headers"] = dict.fromkeys(redacted["headers"], REDACTED)
    return redacted


def with_approval_key(request_id: str, key: str) -> str:
    return f"{request_id}x{key}"


def mcp_model_name(tools: Iterable[ToolSpec], name: str, label: str | None) -> str | None:
    """Return the name that the model writes for an MCP server's tool, None if it is not offered.

    Without a label, return the tool of the first server that has one of this name.
    """
    candidates = (
        tool for tool in tools if tool.kind in MCP_KINDS and label in (None, tool.namespace)
    )
    return next((tool.name for tool in candidates if name in (tool.name, tool.client_name)), None)


def called_mcp_name(item: McpCall | McpApprovalRequest, tools: Iterable[ToolSpec]) -> str:
    """Return the name that the model wrote when it called an MCP server's tool."""
    offered_name = mcp_model_name(tools, item.name, item.server_label)
    return offered_name or model_name(item.server_label, item.name)


LISTS = ItemSteps(
    opening_events=(McpListToolsInProgress,),
    end_events={"completed": McpListToolsCompleted, "failed": McpListToolsFailed},
)
CALLS = ItemSteps(
    opening_events=(McpCallInProgress,),
    text_field="arguments",
    text_events=(McpArgumentsDelta, McpArgumentsDone),
    steps={"calling": None},
    end_events={"completed": McpCallCompleted, "failed": McpCallFailed},
)


def _server_fields(start: d.CallStart) -> dict[str, Any]:
    caller = {} if start.caller is None else {"caller": start.caller}
    return {"server_label": start.namespace or "", "name": start.name, **caller}


def _open_call(start: d.CallStart, context: BuilderContext) -> ToolBuilder:
    return ToolBuilder(McpCall, "mcp", CALLS, _server_fields(start), context)


def _open_request(start: d.CallStart, context: BuilderContext) -> BufferedCallBuilder:
    return BufferedCallBuilder(start, context, _make_request)


def _make_request(
    start: d.CallStart, arguments: str, status: str, context: BuilderContext
) -> EventsAndItem:
    if status != "completed":  # half a call must not be approved
        call = _open_call(start, context)
        events = (*call.open(), *call.add(d.ArgumentsDelta(arguments)), *call.close(status))
        return events, call.item
    if start.approval_key is not None:
        key, new_id = start.approval_key, context.new_id
        context = replace(context, new_id=lambda prefix: with_approval_key(new_id(prefix), key))
    fields = _server_fields(start) | {"arguments": arguments}
    request = ToolBuilder(McpApprovalRequest, "mcpr", NO_EVENTS, fields, context)
    return (*request.open(), *request.close(status)), request.item


def _shown_call(item: McpCall | McpApprovalRequest, view: View) -> Call:
    return Call(
        kind="mcp", name=called_mcp_name(item, view.tools), text=json_arguments(item.arguments)
    )


def shorten_output(item: McpCall, max_chars: int) -> McpCall:
    """Return the call with no more of its output, or of its error, than a model should be shown.

    >>> call = McpCall(id="mcp_1", status="completed", server_label="s", name="f", arguments="{}")
    >>> shorten_output(replace(call, output="a" * 40 + "b" * 40), 20).output
    'aaaaaaaaaaaaaaa[… 60 more characters of this output are left out …]bbbbb'
    """
    if item.output is not None:
        output = _shorten(item.output, max_chars)
        return item if output is item.output else replace(item, output=output)
    if item.error is None:
        return item
    text = msgspec.json.encode(item.error).decode()
    if len(text) <= max_chars:
        return item
    kind = item.error.get("type") if isinstance(item.error, dict) else None
    return replace(item, error={"type": kind, "content": _shorten(text, max_chars)})


def _shorten(text: str, max_chars: int) -> str:
    """Return the beginning of a text and, since errors stand there, its end."""
    left_out = len(text) - max_chars
    if left_out <= 0:
        return text
    tail = max_chars // 4
    note = f"[… {left_out} more characters of this output are left out …]"
    return text[: max_chars - tail] + note + text[len(text) - tail :]


def error_text(error: Any) -> str:
    """Return what the error of a call says, as the message of an exception; its JSON if that is
    nothing.

    >>> error_text({"type": "http_error", "code": 503, "message": "Not now."})
    'Not now.'
    >>> error_text({"type": "mcp_tool_execution_error", "content": "Bad SKU."})
    'Bad SKU.'
    >>> parts = [{"type": "text", "text": "No such page."}, {"type": "text", "text": "Try 2."}]
    >>> print(error_text({"type": "mcp_tool_execution_error", "content": parts}))
    No such page.
    Try 2.
    >>> error_text({"type": "odd"})
    '{"type":"odd"}'
    """
    match error:
        case {"message": str(text)} | {"content": str(text)} if text.strip():
            return text
        case {"content": [*parts]}:
            texts = [part.get("text") for part in parts if isinstance(part, dict)]
            if text := "\n".join(text for text in texts if isinstance(text, str)).strip():
                return text
    return msgspec.json.encode(error).decode()


def _result(item: McpCall, _: View) -> Result:
    if item.output is not None:
        return Result(body=item.output)
    if item.error is None:
        return Result()
    return Result(body=JsonBody(item.error), is_error=True)


LIST_TOOLS = ItemKind(
    item=McpListTools, prefix="mcpl", events=LISTS, next="model", shown=NOT_SHOWN, include={}
)

CALL = ItemKind(
    item=McpCall,
    prefix="mcp",
    events=CALLS,
    next="model",
    shown=Shown(call=_shown_call, result=_result),
    include={},
)

REQUEST = ItemKind(
    item=McpApprovalRequest,
    prefix="mcpr",
    events=NO_EVENTS,
    next="client",
    shown=Shown(call=_shown_call),
    include={},
)

RESPONSE = ItemKind(
    item=McpApprovalResponse,
    prefix="mcpa",
    events=INPUT_ONLY,
    next="nobody",
    shown=NOT_SHOWN,
    include={},
)

TOOL = ToolKind(
    tool=McpTool,
    client_specs=None,
    server_specs=None,
    chosen=MCP_KINDS,
    stand_in=None,
    echo=Echo(redact=_without_secrets),
)
MCP = CallKind(name="mcp", tool_type="mcp", item=McpCall, open=_open_call, arguments=JSON_ARGUMENTS)
APPROVAL = CallKind(
    name="mcp_approval",
    tool_type="mcp",
    item=McpApprovalRequest,
    open=_open_request,
    arguments=JSON_ARGUMENTS,
)

KIND = Kind(
    name="mcp", items=(LIST_TOOLS, CALL, REQUEST, RESPONSE), tools=(TOOL,), calls=(MCP, APPROVAL)
)
