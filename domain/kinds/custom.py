"""Custom tools: the client names and runs them, and their input is free text or a grammar's."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UNSET, UnsetType, field

from antiphon.domain import grammars
from antiphon.domain.bounds import Many, Text
from antiphon.domain.errors import InvalidGrammar, RequestError, missing_parameter
from antiphon.domain.json import Json
from antiphon.domain.kinds.function import called_name
from antiphon.domain.vocabulary.event import ItemEvent
from antiphon.domain.vocabulary.item import CallId, Item, Output
from antiphon.domain.vocabulary.kind import (
    CallKind,
    Echo,
    ItemKind,
    Kind,
    Shown,
    TextArguments,
    ToolKind,
)
from antiphon.domain.vocabulary.shown import Call, Result
from antiphon.domain.vocabulary.steps import NO_EVENTS
from antiphon.domain.vocabulary.text_call import TextCall
from antiphon.domain.vocabulary.tool import (
    Tool,
    ToolCallerName,
    ToolName,
    ToolSpec,
    callers_of,
    flat_name,
)


class CustomToolCall(Item, frozen=True, kw_only=True, tag="custom_tool_call"):
    """A call of a custom tool; `input` is free text."""

    status: Text | None | UnsetType = UNSET
    call_id: CallId
    name: Text
    input: Text
    namespace: Text | None | UnsetType = UNSET
    caller: Json | None | UnsetType = UNSET
    async_: bool | None | UnsetType = field(name="async", default=UNSET)


class CustomToolCallOutput(Item, frozen=True, kw_only=True, tag="custom_tool_call_output"):
    status: Text | None | UnsetType = UNSET
    call_id: CallId
    output: Output
    caller: Json | None | UnsetType = UNSET


class CustomInputDelta(
    ItemEvent, frozen=True, kw_only=True, tag="response.custom_tool_call_input.delta"
):
    delta: str


class CustomInputDone(
    ItemEvent, frozen=True, kw_only=True, tag="response.custom_tool_call_input.done"
):
    input: str


class CustomTool(Tool, frozen=True, kw_only=True, tag="custom"):
    """A tool that the client runs; its input is free text or follows a grammar."""

    name: ToolName
    description: Text | None = None
    format: Json = field(default_factory=lambda: {"type": "text"})
    defer_loading: bool | None | UnsetType = UNSET
    allowed_callers: Many[ToolCallerName] | None | UnsetType = UNSET
    async_: bool | None | UnsetType = field(name="async", default=UNSET)


INPUT = "input"
"""The only property of a custom tool's arguments, for models that only know functions."""

TEXT_CALL = TextCall(
    kind="custom",
    prefix="ctc",
    item=CustomToolCall,
    text_field="input",
    delta_event=CustomInputDelta,
    done_event=lambda place, _name, text: CustomInputDone(input=text, **place),
)


def custom_spec(tool: CustomTool, path: str, namespace: str | None = None) -> ToolSpec:
    return ToolSpec(
        name=flat_name(namespace, tool.name),
        kind="custom",
        description=tool.description or "",
        grammar=_checked_grammar(tool.format, f"{path}.format"),
        namespace=namespace,
        original_name=tool.name,
        deferred=tool.defer_loading is True,
        callers=callers_of(tool),
    )


def _checked_grammar(tool_format: Json, path: str) -> tuple[str, str] | None:
    if tool_format.get("type", "text") == "text":
        return None
    syntax, definition = tool_format.get("syntax"), tool_format.get("definition")
    if tool_format.get("type") != "grammar" or syntax not in ("lark", "regex"):
        raise RequestError(
            "A custom tool's format is {'type': 'text'} or {'type': 'grammar'} with syntax 'lark' "
            "or 'regex'.",
            param=path,
            code="invalid_value",
        )
    if not isinstance(definition, str):
        raise missing_parameter(f"{path}.definition")
    try:
        grammars.read(syntax, definition)
    except InvalidGrammar as error:
        raise RequestError(
            f"Invalid {syntax} grammar: {error.message}, at {error.place(definition)}.",
            param=f"{path}.definition",
            code="invalid_value",
        ) from None
    return syntax, definition


def grammar_chars(tool: CustomTool) -> int:
    """Return the number of characters in a tool's grammar."""
    definition = tool.format.get("definition")
    return len(definition) if isinstance(definition, str) else 0


def ignored_paths(tool: CustomTool, path: str) -> Iterator[str]:
    """Yield the path of a grammar that no engine can enforce."""
    grammar = _checked_grammar(tool.format, f"{path}.format")
    if grammar is not None and grammars.read(*grammar) is None:
        yield f"{path}.format"


CALL = ItemKind(
    item=CustomToolCall,
    prefix="ctc",
    events=TEXT_CALL.events("CUSTOM_CALL", CustomInputDone),
    next=CustomToolCallOutput,
    shown=Shown(
        call=lambda item, view: Call(kind="custom", name=called_name(item, view), text=item.input)
    ),
    include={},
)

OUTPUT = ItemKind(
    item=CustomToolCallOutput,
    prefix="ctco",
    events=NO_EVENTS,
    next="nobody",
    shown=Shown(result=lambda item, _: Result(body=item.output)),
    include={},
)

TOOL = ToolKind(
    tool=CustomTool,
    client_specs=lambda tool, path: (custom_spec(tool, path),),
    server_specs=None,
    chosen=("custom",),
    stand_in=None,
    echo=Echo(ignored=ignored_paths),
)

CUSTOM = CallKind(
    name="custom",
    tool_type="custom",
    item=CustomToolCall,
    open=TEXT_CALL.open,
    arguments=TextArguments(INPUT),
)

KIND = Kind(name="custom", items=(CALL, OUTPUT), tools=(TOOL,), calls=(CUSTOM,))
