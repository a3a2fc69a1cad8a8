"""The local shell: the client runs one program on its machine."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType, field

from antiphon.domain import deltas as d
from antiphon.domain.bounds import Text
from antiphon.domain.json import Json
from antiphon.domain.kinds.function import make_function_call
from antiphon.domain.vocabulary.builder import BuilderContext
from antiphon.domain.vocabulary.item import CallId, Item
from antiphon.domain.vocabulary.kind import AS_SENT, CallKind, ItemKind, Kind, Shown, ToolKind
from antiphon.domain.vocabulary.shown import Result
from antiphon.domain.vocabulary.steps import INPUT_ONLY, NO_EVENTS
from antiphon.domain.vocabulary.tool import Tool
from antiphon.domain.vocabulary.typed_call import (
    Arguments,
    BufferedCallBuilder,
    ClientTool,
    make_typed_call,
    to_builtins,
)


class LocalShellCall(Item, frozen=True, kw_only=True, tag="local_shell_call"):
    status: Text | None = None
    call_id: CallId
    action: Json


class LocalShellCallOutput(Item, frozen=True, kw_only=True, tag="local_shell_call_output"):
    """The output of a local shell call; its `id` is that of the call, as it has no call_id."""

    status: Text | None | UnsetType = UNSET
    output: Text


class LocalShell(Tool, frozen=True, kw_only=True, tag="local_shell"):
    pass


class LocalShellArguments(Arguments, frozen=True, kw_only=True):
    command: Annotated[
        tuple[str, ...],
        Meta(min_length=1, description="The program and its arguments, one string each."),
    ]
    env: Annotated[dict[str, str], Meta(description="Further environment variables.")] = field(
        default_factory=dict
    )
    timeout_ms: Annotated[int | None, Meta(description="Longest time for the command.")] = None
    user: Annotated[str | None, Meta(description="The user to run it as.")] = None
    working_directory: Annotated[str | None, Meta(description="The folder to run it in.")] = None


def _local_shell_fields(arguments: LocalShellArguments) -> Json:
    return {"action": {"type": "exec", "env": {}} | to_builtins(arguments)}


CLIENT_TOOL = ClientTool(
    name="local_shell",
    description="Run a program on the user's machine and return what it prints.",
    arguments=LocalShellArguments,
    to_fields=_local_shell_fields,
    to_arguments=lambda fields: {k: v for k, v in fields["action"].items() if k != "type"},
)

_make_call = make_typed_call(CLIENT_TOOL, LocalShellCall, "lsh", make_function_call)


def _open(start: d.CallStart, context: BuilderContext) -> BufferedCallBuilder:
    return BufferedCallBuilder(start, context, _make_call)


CALL = ItemKind(
    item=LocalShellCall,
    prefix="lsh",
    events=NO_EVENTS,
    next=LocalShellCallOutput,
    shown=Shown(call=lambda item, view: CLIENT_TOOL.call(item, view, "local_shell")),
    include={},
)

OUTPUT = ItemKind(
    item=LocalShellCallOutput,
    prefix="lsho",
    events=INPUT_ONLY,
    next="nobody",
    shown=Shown(result=lambda item, _: Result(body=item.output)),
    include={},
)

TOOL = ToolKind(
    tool=LocalShell,
    client_specs=lambda *_: (CLIENT_TOOL.spec("local_shell"),),
    server_specs=None,
    chosen=("local_shell",),
    stand_in=None,
    echo=AS_SENT,
)

LOCAL_SHELL = CallKind(
    name="local_shell",
    tool_type="local_shell",
    item=LocalShellCall,
    open=_open,
    arguments=CLIENT_TOOL,
)

KIND = Kind(name="local_shell", items=(CALL, OUTPUT), tools=(TOOL,), calls=(LOCAL_SHELL,))
