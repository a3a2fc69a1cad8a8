"""Tool search: the model finds deferred tools, by this server or by the client."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from antiphon.domain.bounds import Long, Text
from antiphon.domain.json import Json
from antiphon.domain.kinds.function import FunctionTool, function_spec, make_function_call
from antiphon.domain.vocabulary.builder import BuilderFactory
from antiphon.domain.vocabulary.item import CallId, Item
from antiphon.domain.vocabulary.kind import AS_SENT, CallKind, ItemKind, Kind, Shown, ToolKind
from antiphon.domain.vocabulary.shown import JsonBody, Result, View
from antiphon.domain.vocabulary.steps import NO_EVENTS
from antiphon.domain.vocabulary.tool import Tool, ToolSpec
from antiphon.domain.vocabulary.typed_call import (
    Arguments,
    BufferedCallBuilder,
    ClientTool,
    make_typed_call,
    parameters_of,
)


class ToolSearchCall(Item, frozen=True, kw_only=True, tag="tool_search_call"):
    status: Text | None | UnsetType = UNSET
    arguments: Any
    call_id: CallId | None = None
    execution: Text | None | UnsetType = UNSET


class ToolSearchOutput(Item, frozen=True, kw_only=True, tag="tool_search_output"):
    status: Text | None | UnsetType = UNSET
    tools: Long[Json]
    call_id: CallId | None = None
    execution: Text | None | UnsetType = UNSET


class ToolSearch(Tool, frozen=True, kw_only=True, tag="tool_search"):
    execution: Literal["server", "client"] | None = "server"
    description: Text | None | UnsetType = UNSET
    parameters: Json | None | UnsetType = UNSET


class SearchArguments(Arguments, frozen=True, kw_only=True):
    query: Annotated[str, Meta(description="Words that say what the tool should do.")]


CLIENT_TOOL = ClientTool(
    name="tool_search",
    description="Find further tools by what they do; those found can be called afterwards.",
    arguments=Json,
    to_fields=lambda arguments: {"arguments": arguments, "execution": "client"},
    to_arguments=lambda fields: fields["arguments"],
)
# The server runs the search, so the client needs no call_id to answer it.
SERVER_TOOL = replace(
    CLIENT_TOOL,
    to_fields=lambda arguments: {"arguments": arguments, "execution": "server", "call_id": None},
)


def _opener(tool: ClientTool) -> BuilderFactory:
    make_call = make_typed_call(tool, ToolSearchCall, "tsc", make_function_call)
    return lambda start, context: BufferedCallBuilder(start, context, make_call)


def _specs(tool: ToolSearch, path: str) -> tuple[ToolSpec, ...]:
    is_server_run = tool.execution != "client"
    schema = None if is_server_run else tool.parameters or None
    client_spec = function_spec(FunctionTool(name=CLIENT_TOOL.name, parameters=schema), path)
    spec = ToolSpec(
        name=client_spec.name,
        kind=SERVER.name if is_server_run else CLIENT.name,
        description=tool.description or CLIENT_TOOL.description,
        parameters=client_spec.parameters or parameters_of(SearchArguments),
        strict=client_spec.parameters is None or client_spec.strict,
    )
    return (spec,)


def _result(item: ToolSearchOutput, _: View) -> Result:
    """Return the names of the tools that were found; the prompt offers their definitions."""
    names = [str(tool.get("name", tool.get("type"))) for tool in item.tools]
    return Result(body=JsonBody({"tools": names}), name=CLIENT_TOOL.name)


CLIENT = CallKind(
    name="tool_search",
    tool_type="tool_search",
    item=ToolSearchCall,
    open=_opener(CLIENT_TOOL),
    arguments=CLIENT_TOOL,
)
SERVER = CallKind(
    name="server_tool_search",
    tool_type="server_tool_search",
    item=ToolSearchCall,
    open=_opener(SERVER_TOOL),
    arguments=SERVER_TOOL,
)

TOOL_SEARCH_KINDS = (CLIENT.name, SERVER.name)

CALL = ItemKind(
    item=ToolSearchCall,
    prefix="tsc",
    events=NO_EVENTS,
    next=ToolSearchOutput,
    shown=Shown(call=lambda item, view: CLIENT_TOOL.call(item, view, CLIENT.name, SERVER.name)),
    include={},
)

OUTPUT = ItemKind(
    item=ToolSearchOutput,
    prefix="tso",
    events=NO_EVENTS,
    next="model",
    shown=Shown(result=_result),
    include={},
)

TOOL = ToolKind(
    tool=ToolSearch,
    client_specs=_specs,
    server_specs=None,
    chosen=TOOL_SEARCH_KINDS,
    stand_in=None,
    echo=AS_SENT,
)

KIND = Kind(name="tool_search", items=(CALL, OUTPUT), tools=(TOOL,), calls=(CLIENT, SERVER))
