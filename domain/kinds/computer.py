"""Computers: the client does actions on a screen, and shows it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from antiphon.domain.bounds import Count, Long, Name, Text
from antiphon.domain.content import ComputerScreenshot, InputImage
from antiphon.domain.json import Json
from antiphon.domain.kinds.function import make_function_call
from antiphon.domain.vocabulary.builder import BuilderFactory
from antiphon.domain.vocabulary.item import CallId, Item
from antiphon.domain.vocabulary.kind import AS_SENT, CallKind, ItemKind, Kind, Shown, ToolKind
from antiphon.domain.vocabulary.shown import Call, Result, View
from antiphon.domain.vocabulary.steps import INPUT_ONLY, NO_EVENTS
from antiphon.domain.vocabulary.tool import Tool, ToolSpec
from antiphon.domain.vocabulary.typed_call import (
    Arguments,
    BufferedCallBuilder,
    ClientTool,
    make_typed_call,
    to_builtins,
)


class ComputerCall(Item, frozen=True, kw_only=True, tag="computer_call"):
    status: Text | None = None
    call_id: CallId
    action: Json | None | UnsetType = UNSET
    actions: Long[Json] | None | UnsetType = UNSET
    pending_safety_checks: Long[Json] | None = ()


class ComputerCallOutput(Item, frozen=True, kw_only=True, tag="computer_call_output"):
    status: Text | None | UnsetType = UNSET
    call_id: CallId
    output: ComputerScreenshot
    acknowledged_safety_checks: Long[Json] | None | UnsetType = UNSET


class Computer(Tool, frozen=True, kw_only=True, tag="computer"):
    pass


class ComputerUse(Tool, frozen=True, kw_only=True, tag="computer_use"):
    pass


class ComputerUsePreview(Tool, frozen=True, kw_only=True, tag="computer_use_preview"):
    display_width: Count
    display_height: Count
    environment: Name


class Action(Arguments, frozen=True, kw_only=True, tag_field="type"):
    """Base class of the actions on a computer's screen, mouse and keyboard."""


HeldKeys = tuple[str, ...] | None
"""Keys that are held down during an action."""


class Click(Action, frozen=True, kw_only=True, tag="click"):
    button: Literal["left", "right", "wheel", "back", "forward"]
    x: int
    y: int
    keys: HeldKeys = None


class DoubleClick(Action, frozen=True, kw_only=True, tag="double_click"):
    x: int
    y: int
    keys: HeldKeys = None


class Point(Arguments, frozen=True, kw_only=True):
    x: int
    y: int


class Drag(Action, frozen=True, kw_only=True, tag="drag"):
    path: tuple[Point, ...]
    keys: HeldKeys = None


class Keypress(Action, frozen=True, kw_only=True, tag="keypress"):
    keys: tuple[str, ...]


class Move(Action, frozen=True, kw_only=True, tag="move"):
    x: int
    y: int
    keys: HeldKeys = None


class Screenshot(Action, frozen=True, kw_only=True, tag="screenshot"):
    pass


class Scroll(Action, frozen=True, kw_only=True, tag="scroll"):
    x: int
    y: int
    scroll_x: int
    scroll_y: int
    keys: HeldKeys = None


class TypeText(Action, frozen=True, kw_only=True, tag="type"):
    text: str


class Wait(Action, frozen=True, kw_only=True, tag="wait"):
    pass


AnyAction = Click | DoubleClick | Drag | Keypress | Move | Screenshot | Scroll | TypeText | Wait


class ComputerArguments(Arguments, frozen=True, kw_only=True):
    actions: Annotated[
        tuple[AnyAction, ...],
        Meta(min_length=1, description="Done one after another; then the screen is shown."),
    ]


class ComputerPreviewArguments(Arguments, frozen=True, kw_only=True):
    action: Annotated[AnyAction, Meta(description="Done; then the screen is shown.")]


def _actions_of(fields: Json) -> list[Any]:
    return list(fields.get("actions") or ([fields["action"]] if fields.get("action") else []))


def _preview_arguments(fields: Json) -> Json:
    # The call may be one of the `computer` tool, which takes several actions.
    actions = _actions_of(fields)
    return {"action": actions[0]} if len(actions) == 1 else {"actions": actions}


_ACTIONS = "click, double_click, drag, keypress, move, screenshot, scroll, type and wait"

_DESCRIPTION = f"Use a computer by its screen, mouse and keys. Actions: {_ACTIONS}."

CLIENT_TOOL = ClientTool(
    name="computer",
    description=_DESCRIPTION,
    arguments=ComputerArguments,
    to_fields=to_builtins,
    to_arguments=lambda fields: {"actions": _actions_of(fields)},
)
PREVIEW_TOOL = ClientTool(
    name="computer_use_preview",
    description=_DESCRIPTION,
    arguments=ComputerPreviewArguments,
    to_fields=to_builtins,
    to_arguments=_preview_arguments,
)


def _opener(tool: ClientTool) -> BuilderFactory:
    make_call = make_typed_call(tool, ComputerCall, "cu", make_function_call)
    return lambda start, context: BufferedCallBuilder(start, context, make_call)


def _preview_specs(tool: ComputerUsePreview, _: str) -> tuple[ToolSpec, ...]:
    screen = f"{tool.display_width}x{tool.display_height} pixels, {tool.environment}"
    return (PREVIEW_TOOL.spec("computer_use_preview", f" The screen: {screen}."),)


def _shown_call(item: ComputerCall, view: View) -> Call:
    tools = {COMPUTER.name: CLIENT_TOOL, PREVIEW.name: PREVIEW_TOOL}
    offered = ((tool.kind, tool.name) for tool in view.tools if tool.kind in tools)
    kind, name = next(offered, (COMPUTER.name, CLIENT_TOOL.name))
    return Call(kind=kind, name=name, text=tools[kind].arguments_of(msgspec.to_builtins(item)))


def _result(item: ComputerCallOutput, _: View) -> Result:
    url = item.output.image_url  # an uploaded file has been read into it
    return Result(body=(InputImage(image_url=url),) if url else ())


CALL = ItemKind(
    item=ComputerCall,
    prefix="cu",
    events=NO_EVENTS,
    next=ComputerCallOutput,
    shown=Shown(call=_shown_call),
    include={},
)

OUTPUT = ItemKind(
    item=ComputerCallOutput,
    prefix="cuo",
    events=INPUT_ONLY,
    next="nobody",
    shown=Shown(result=_result),
    include={},
)

COMPUTER = CallKind(
    name="computer",
    tool_type="computer",
    item=ComputerCall,
    open=_opener(CLIENT_TOOL),
    arguments=CLIENT_TOOL,
)
PREVIEW = CallKind(
    name="computer_use_preview",
    tool_type="computer_use_preview",
    item=ComputerCall,
    open=_opener(PREVIEW_TOOL),
    arguments=PREVIEW_TOOL,
)

CHOSEN = (COMPUTER.name, PREVIEW.name)

TOOLS = (
    ToolKind(
        tool=Computer,
        client_specs=lambda *_: (CLIENT_TOOL.spec("computer"),),
        server_specs=None,
        chosen=CHOSEN,
        stand_in=None,
        echo=AS_SENT,
    ),
    ToolKind(
        tool=ComputerUse,
        client_specs=lambda *_: (CLIENT_TOOL.spec("computer"),),
        server_specs=None,
        chosen=CHOSEN,
        stand_in=None,
        echo=AS_SENT,
    ),
    ToolKind(
        tool=ComputerUsePreview,
        client_specs=_preview_specs,
        server_specs=None,
        chosen=CHOSEN,
        stand_in=None,
        echo=AS_SENT,
    ),
)

KIND = Kind(name="computer", items=(CALL, OUTPUT), tools=TOOLS, calls=(COMPUTER, PREVIEW))
