"""Functions, and namespaces of them: tools that the client names, describes and runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import UNSET, UnsetType, field
from msgspec.structs import replace

from antiphon.domain import deltas as d
from antiphon.domain.bounds import Many, Text
from antiphon.domain.errors import RequestError
from antiphon.domain.json import Json
from antiphon.domain.json_schema import find_schema_problem
from antiphon.domain.vocabulary.builder import Builder, BuilderContext
from antiphon.domain.vocabulary.event import ItemEvent
from antiphon.domain.vocabulary.item import CallId, Item, Output
from antiphon.domain.vocabulary.kind import (
    JSON_ARGUMENTS,
    CallKind,
    Echo,
    ItemKind,
    Kind,
    Shown,
    ToolKind,
)
from antiphon.domain.vocabulary.shown import NO_ARGUMENTS, Call, Result, View, json_arguments
from antiphon.domain.vocabulary.steps import NO_EVENTS
from antiphon.domain.vocabulary.text_call import TextCall
from antiphon.domain.vocabulary.tool import (
    NAMED_KINDS,
    Tool,
    ToolCallerName,
    ToolName,
    ToolSpec,
    callers_of,
    flat_name,
    none_if_unset,
)
from antiphon.domain.vocabulary.typed_call import BufferedCallBuilder, EventsAndItem


class FunctionCall(Item, frozen=True, kw_only=True, tag="function_call"):
    """A call of a function; `arguments` is JSON text as the model wrote it."""

    status: Text | None | UnsetType = UNSET
    call_id: CallId
    name: Text
    arguments: Text
    namespace: Text | None | UnsetType = UNSET
    caller: Json | None | UnsetType = UNSET
    async_: bool | None | UnsetType = field(name="async", default=UNSET)


class FunctionCallOutput(Item, frozen=True, kw_only=True, tag="function_call_output"):
    """The output of the call `call_id` or, with only a `name`, an output that answers no call."""

    status: Text | None | UnsetType = UNSET
    call_id: CallId | None | UnsetType = UNSET
    output: Output
    name: Text | None | UnsetType = UNSET
    namespace: Text | None | UnsetType = UNSET
    caller: Json | None | UnsetType = UNSET


class ArgumentsDelta(
    ItemEvent, frozen=True, kw_only=True, tag="response.function_call_arguments.delta"
):
    delta: str


class ArgumentsDone(
    ItemEvent, frozen=True, kw_only=True, tag="response.function_call_arguments.done"
):
    name: str
    arguments: str


class FunctionTool(Tool, frozen=True, kw_only=True, tag="function"):
    """A function that the client runs; `strict` null means strict if the schema allows it."""

    name: ToolName
    description: Text | None = None
    parameters: Json | None = None
    strict: bool | None = None
    defer_loading: bool | None | UnsetType = UNSET
    allowed_callers: Many[ToolCallerName] | None | UnsetType = UNSET
    output_schema: Json | None | UnsetType = UNSET
    async_: bool | None | UnsetType = field(name="async", default=UNSET)


TEXT_CALL = TextCall(
    kind="function",
    prefix="fc",
    item=FunctionCall,
    text_field="arguments",
    no_text=NO_ARGUMENTS,
    delta_event=ArgumentsDelta,
    done_event=lambda place, name, text: ArgumentsDone(name=name, arguments=text, **place),
)


def make_function_call(
    start: d.CallStart, arguments: str, status: str, context: BuilderContext
) -> EventsAndItem:
    """Return a call that could not become the item of its tool."""
    builder = TEXT_CALL.open(replace(start, kind="function"), context)
    events = (*builder.open(), *builder.add(d.ArgumentsDelta(arguments)), *builder.close(status))
    return events, builder.item


def open_unrun_call(start: d.CallStart, context: BuilderContext) -> Builder:
    """Return the builder of a call that this server should have run, and did not."""
    return BufferedCallBuilder(start, context, make_function_call)


def is_strict(schema: Json | None) -> bool:
    """Return whether a schema is in strict form: closed objects, all properties required.

    One that no engine can enforce is not.

    >>> is_strict({"type": "object", "properties": {}, "additionalProperties": False})
    True
    """
    if not schema:
        return False
    return _is_closed(schema) and find_schema_problem(schema) is None


def _is_closed(schema: Any) -> bool:
    """Return whether all objects in a schema are closed; a schema may be any JSON from a client."""
    if isinstance(schema, list):
        return all(map(_is_closed, schema))
    if not isinstance(schema, dict):
        return True
    properties = schema.get("properties")
    if schema.get("type") == "object" or properties is not None:
        required = schema.get("required", [])
        if schema.get("additionalProperties") is not False or not isinstance(properties, dict):
            return False
        if not isinstance(required, list):
            return False
        if not properties.keys() <= {name for name in required if isinstance(name, str)}:
            return False
    inner = [schema.get("items"), schema.get("anyOf"), *_values_of(schema.get("$defs"))]
    return all(map(_is_closed, [*inner, *_values_of(properties)]))


def _values_of(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else []


def function_spec(tool: FunctionTool, path: str, namespace: str | None = None) -> ToolSpec:
    schema = tool.parameters
    if schema is not None and schema.get("type", "object") != "object":
        raise _invalid_parameters(tool, path, "its type must be 'object'")
    strict = is_strict(schema) if tool.strict is None else tool.strict
    # Only these are enforced. Others are shown to the model as they are.
    if strict and (problem := find_schema_problem(schema)):
        raise _invalid_parameters(tool, path, problem)
    return ToolSpec(
        name=flat_name(namespace, tool.name),
        description=tool.description or "",
        parameters=schema,
        strict=strict,
        namespace=namespace,
        original_name=tool.name,
        deferred=tool.defer_loading is True,
        callers=callers_of(tool),
        output_schema=none_if_unset(tool.output_schema),
    )


def _invalid_parameters(tool: FunctionTool, path: str, problem: str) -> RequestError:
    return RequestError(
        f"Invalid schema for function {tool.name!r}: {problem}.",
        param=f"{path}.parameters",
        code="invalid_function_parameters",
    )


def _echo(tool: FunctionTool) -> FunctionTool:
    return replace(tool, strict=is_strict(tool.parameters)) if tool.strict is None else tool


def model_tool_name(tools: Iterable[ToolSpec], name: str, namespace: str | None) -> str:
    """Return the name that the model writes for the tool that the client knows as `name`.

    >>> model_tool_name([], "find", "crm")
    'crm__find'
    """
    candidates = (
        tool for tool in tools if tool.kind in NAMED_KINDS and tool.namespace == namespace
    )
    names = (tool.name for tool in candidates if name in (tool.name, tool.client_name))
    return next(names, flat_name(namespace, name))


def called_name(item: Any, view: View) -> str:
    """Return the name that the model wrote for the called function or custom tool."""
    return model_tool_name(view.tools, item.name, item.namespace or None)


def _result(item: FunctionCallOutput, view: View) -> Result:
    name = model_tool_name(view.tools, item.name, item.namespace or None) if item.name else "tool"
    return Result(body=item.output, name=name)


CALL = ItemKind(
    item=FunctionCall,
    prefix="fc",
    events=TEXT_CALL.events("FUNCTION_CALL", ArgumentsDone),
    next=FunctionCallOutput,
    shown=Shown(
        call=lambda item, view: Call(
            kind="function", name=called_name(item, view), text=json_arguments(item.arguments)
        )
    ),
    include={},
)

OUTPUT = ItemKind(
    item=FunctionCallOutput,
    prefix="fco",
    events=NO_EVENTS,
    next="nobody",
    shown=Shown(result=_result),
    include={},
)

TOOL = ToolKind(
    tool=FunctionTool,
    client_specs=lambda tool, path: (function_spec(tool, path),),
    server_specs=None,
    chosen=("function",),
    stand_in=None,
    echo=Echo(echo=_echo),
)

FUNCTION = CallKind(
    name="function",
    tool_type="function",
    item=FunctionCall,
    open=TEXT_CALL.open,
    arguments=JSON_ARGUMENTS,
)

KIND = Kind(name="function", items=(CALL, OUTPUT), tools=(TOOL,), calls=(FUNCTION,))
