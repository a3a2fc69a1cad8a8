"""The shell: commands that the client runs, or that this server runs in a container."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from antiphon.domain import deltas as d
from antiphon.domain.bounds import Int, Long, Many, Text
from antiphon.domain.json import Json
from antiphon.domain.kinds.function import make_function_call
from antiphon.domain.requests.skills import describe_skills, local_skills, without_data
from antiphon.domain.vocabulary.builder import BuilderContext
from antiphon.domain.vocabulary.command_reader import CommandReader
from antiphon.domain.vocabulary.event import Event, ItemEvent
from antiphon.domain.vocabulary.item import CallId, Item
from antiphon.domain.vocabulary.kind import CallKind, Echo, ItemKind, Kind, Shown, ToolKind
from antiphon.domain.vocabulary.shown import Call, JsonBody, Result, View
from antiphon.domain.vocabulary.steps import (
    EventTable,
    fields_to_reopen,
    to_arguments_delta,
    to_progress,
)
from antiphon.domain.vocabulary.tool import (
    Tool,
    ToolCallerName,
    ToolSpec,
)
from antiphon.domain.vocabulary.typed_call import (
    Arguments,
    BufferedCallBuilder,
    ClientTool,
    make_typed_call,
    to_builtins,
)

CONTAINER: Literal["container"] = "container"
"""The kind of the shell that this server runs in a container."""

CONTAINER_REFERENCE = "container_reference"
"""The environment type of a shell call that ran in one of the server's containers."""


class ShellCall(Item, frozen=True, kw_only=True, tag="shell_call"):
    status: Text | None = None
    call_id: CallId
    action: Json
    environment: Json | None = None
    caller: Json | None | UnsetType = UNSET


class ShellCallOutput(Item, frozen=True, kw_only=True, tag="shell_call_output"):
    status: Text | None | UnsetType = UNSET
    call_id: CallId
    output: Long[Json]
    max_output_length: Int | None = None
    caller: Json | None | UnsetType = UNSET


class CommandEvent(Event, frozen=True, kw_only=True, gc=False):
    output_index: int
    command_index: int


class CommandAdded(
    CommandEvent, frozen=True, kw_only=True, tag="response.shell_call_command.added"
):
    command: str


class CommandDelta(
    CommandEvent, frozen=True, kw_only=True, tag="response.shell_call_command.delta"
):
    delta: str


class CommandDone(CommandEvent, frozen=True, kw_only=True, tag="response.shell_call_command.done"):
    command: str


class ShellOutputDelta(
    ItemEvent, frozen=True, kw_only=True, tag="response.shell_call_output_content.delta"
):
    command_index: int
    delta: Json


class ShellOutputDone(
    ItemEvent, frozen=True, kw_only=True, tag="response.shell_call_output_content.done"
):
    command_index: int
    output: tuple[Json, ...]


class Shell(Tool, frozen=True, kw_only=True, tag="shell"):
    environment: Json | None | UnsetType = UNSET
    allowed_callers: Many[ToolCallerName] | None | UnsetType = UNSET

    @property
    def is_local(self) -> bool:
        """Whether the client runs the commands."""
        return bool((self.environment or {}).get("type", "local") == "local")


def is_container_call(item: Item) -> bool:
    """Return whether the server runs this call, in one of its containers."""
    return (
        isinstance(item, ShellCall) and (item.environment or {}).get("type") == CONTAINER_REFERENCE
    )


class ShellArguments(Arguments, frozen=True, kw_only=True):
    commands: Annotated[
        tuple[str, ...],
        Meta(min_length=1, description="Shell commands; each runs in a shell of its own."),
    ]
    timeout_ms: Annotated[int | None, Meta(description="Longest time for each command.")] = None
    max_output_length: Annotated[
        int | None, Meta(description="Characters of output to return at most, of each command.")
    ] = None


def _shell_fields(arguments: ShellArguments) -> Json:
    limits = {"timeout_ms": None, "max_output_length": None}
    return {"action": limits | to_builtins(arguments)}


CLIENT_TOOL = ClientTool(
    name="shell",
    description="Run shell commands on the user's machine and return what they print.",
    arguments=ShellArguments,
    to_fields=_shell_fields,
    to_arguments=lambda fields: fields["action"],
)
CONTAINER_TOOL = replace(
    CLIENT_TOOL,
    description=(
        "Run shell commands in a container and return what they print. Files are in /mnt/data "
        "and stay from call to call; processes end with their command. There is no network."
    ),
)

_make_call = make_typed_call(CLIENT_TOOL, ShellCall, "sh", make_function_call)


class ShellCallBuilder:
    """Builds a shell_call: each `command` step starts a command, and ArgumentsDelta extends it.

    ToolEnd may bring the rest of the action, and a status that says that commands are missing.
    """

    def __init__(self, start: d.ToolStart, context: BuilderContext) -> None:
        self._context = context
        self._commands: list[str] = []
        self._writing = False
        self._end = "completed"
        action: dict[str, Any] = {"commands": [], "timeout_ms": None, "max_output_length": None}
        self._action = action | dict(start.fields.get("action", {}))
        self.item = ShellCall(
            id=context.new_id("sh"),
            status="in_progress",
            call_id=start.fields.get("call_id") or context.new_id("call"),
            action=self._action | {"commands": []},
            environment=start.fields.get("environment"),
            caller=start.fields.get("caller") or UNSET,
        )

    def open(self) -> Sequence[Event]:
        return (self._context.added(self.item),)

    def accepts(self, delta: d.Delta) -> bool:
        return isinstance(delta, d.ArgumentsDelta | d.ToolProgress | d.ToolEnd)

    def add(self, delta: d.Delta) -> Sequence[Event]:
        match delta:
            case d.ArgumentsDelta(text=text):
                added = () if self._writing else self._start_command()
                self._commands[-1] += text
                return (*added, CommandDelta(delta=text, **self._place()))
            case d.ToolProgress(step="command"):
                return (*self._end_command(), *self._start_command())
            case d.ToolEnd(status=status, fields=fields):
                self._action |= fields.get("action", {})
                self._end = status
        return ()

    def close(self, status: str) -> Sequence[Event]:
        command_done = self._end_command()
        action = self._action | {"commands": list(self._commands)}
        status = self._end if status == "completed" else status
        self.item = replace(self.item, status=status, action=action)
        return (*command_done, self._context.done(self.item))

    def _start_command(self) -> Sequence[Event]:
        self._commands.append("")
        self._writing = True
        return (CommandAdded(command="", **self._place()),)

    def _end_command(self) -> Sequence[Event]:
        if not self._writing:
            return ()
        self._writing = False
        return (CommandDone(command=self._commands[-1], **self._place()),)

    def _place(self) -> dict[str, Any]:
        return {
            "output_index": self._context.output_index,
            "command_index": len(self._commands) - 1,
        }


class ShellOutputBuilder:
    """Builds a shell_call_output: `output` steps extend a command's output, `output_done` ends it.

    `output` has the fields `command_index` and `delta` `{stdout?, stderr?}`; `output_done` has
    `command_index` and `output` `[{stdout, stderr, outcome}]`.
    """

    def __init__(self, start: d.ToolStart, context: BuilderContext) -> None:
        self._context = context
        self._id = context.new_id("sho")
        self._outputs: list[dict[str, Any]] = []
        self._open_output: dict[str, str] = {}
        self._is_over = False
        self.item = ShellCallOutput(
            id=self._id,
            status="in_progress",
            call_id=start.fields["call_id"],
            output=(),
            max_output_length=start.fields.get("max_output_length"),
            caller=start.fields.get("caller") or UNSET,
        )

    def open(self) -> Sequence[Event]:
        return (self._context.added(self.item),)

    def accepts(self, delta: d.Delta) -> bool:
        return isinstance(delta, d.ToolProgress | d.ToolEnd)

    def add(self, delta: d.Delta) -> Sequence[Event]:
        match delta:
            case d.ToolProgress(step="output", fields=fields):
                for name, text in fields["delta"].items():
                    self._open_output[name] = self._open_output.get(name, "") + text
                return (ShellOutputDelta(**self._place(), **fields),)
            case d.ToolProgress(step="output_done", fields=fields):
                self._outputs.extend(fields["output"])
                self._open_output = {}
                return (ShellOutputDone(**self._place(), **fields),)
            case d.ToolEnd(fields=fields) if not self._is_over:
                self._is_over = "why" not in fields
                return () if self._is_over else self._end_with_timeout(fields["why"])
        return ()

    def close(self, status: str) -> Sequence[Event]:
        output_done = self._end_with_timeout() if self._open_output else ()
        status = status if self._is_over else "incomplete"
        self.item = replace(self.item, status=status, output=tuple(self._outputs))
        return (*output_done, self._context.done(self.item))

    def _end_with_timeout(self, why: str = "") -> Sequence[Event]:
        # The API has no other outcome for a command that did not exit.
        index = len(self._outputs)
        stderr_events: Sequence[Event] = ()
        if why:
            delta = d.ToolProgress("output", {"command_index": index, "delta": {"stderr": why}})
            stderr_events = self.add(delta)
        entry = {"stdout": "", "stderr": "", **self._open_output, "outcome": {"type": "timeout"}}
        fields = {"command_index": index, "output": (entry,)}
        return (*stderr_events, *self.add(d.ToolProgress("output_done", fields)))

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._id, "output_index": self._context.output_index}


class ShellArgumentsBuilder:
    """Builds a shell call from JSON arguments; it shows nothing before the first command.

    A call that this server runs is a shell call even if its arguments are invalid: its output
    reports the error. It is incomplete if it did not run.
    """

    def __init__(self, start: d.CallStart, context: BuilderContext) -> None:
        self._buffered_call = BufferedCallBuilder(start, context, _make_call)
        self._is_run_here = isinstance(start, d.HostedCallStart)
        fields = start.fields if isinstance(start, d.HostedCallStart) else {}
        self._start = d.ToolStart(
            "shell_call", {"call_id": start.call_id, "caller": start.caller, **fields}
        )
        self._has_run = False
        self._context = context
        self._reader = CommandReader()
        self._shell_call: ShellCallBuilder | None = None

    @property
    def item(self) -> Any:
        return self._shell_call.item if self._shell_call else self._buffered_call.item

    def open(self) -> Sequence[Event]:
        return ()

    def accepts(self, delta: d.Delta) -> bool:
        runs = self._is_run_here and isinstance(delta, d.ToolProgress)
        return runs or isinstance(delta, d.ArgumentsDelta)

    def add(self, delta: d.Delta) -> Sequence[Event]:
        if isinstance(delta, d.ToolProgress):
            self._has_run = True
        if not isinstance(delta, d.ArgumentsDelta):
            return ()
        self._buffered_call.add(delta)
        return self._read(delta.text)

    def close(self, status: str) -> Sequence[Event]:
        if self._is_run_here and not self._has_run:
            status = "incomplete"
        normalized = None
        if self._shell_call is None and status == "completed":
            # The normalized arguments have the commands first.
            normalized = CLIENT_TOOL.normalize(self._buffered_call.arguments)
        events: Sequence[Event] = ()
        if normalized is not None:
            self._reader = CommandReader()
            events = self._read(normalized)
        if self._shell_call is None and self._is_run_here:
            events = self._open()
        if self._shell_call is None:
            return self._buffered_call.close(status)
        end = d.ToolEnd(
            "completed" if self._reader.is_complete else "incomplete",
            {"action": _parse_rest(self._reader.rest)},
        )
        return (*events, *self._shell_call.add(end), *self._shell_call.close(status))

    def _read(self, text: str) -> Sequence[Event]:
        events: list[Event] = []
        for delta in self._reader.feed(text):
            if self._shell_call is None:
                events += self._open()
            assert self._shell_call is not None
            events += self._shell_call.add(delta)
        return events

    def _open(self) -> Sequence[Event]:
        self._shell_call = ShellCallBuilder(self._start, self._context)
        return self._shell_call.open()


def _parse_rest(rest: str) -> dict[str, Any]:
    """Return the action's fields that follow the commands; invalid text is kept as `unread`."""
    try:
        fields: dict[str, Any] = msgspec.json.decode('{"commands":[]' + rest, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return {"unread": rest} if rest.strip() else {}
    limits = {"timeout_ms", "max_output_length"}
    return {
        key: value
        for key, value in fields.items()
        if key != "commands" and (key not in limits or type(value) is int)
    }


CALL_EVENTS = EventTable(
    first="SHELL_CALL",
    transitions={
        "SHELL_CALL": {CommandAdded: "COMMAND"},
        "COMMAND": {CommandDelta: "COMMAND", CommandDone: "SHELL_CALL"},
    },
    closable=("SHELL_CALL",),
    opened_by=(),
    open=ShellCallBuilder,
    reopen=lambda item, context: ShellCallBuilder(
        d.ToolStart("shell_call", fields_to_reopen(item)), context
    ),
    deltas={CommandAdded: to_progress("command"), CommandDelta: to_arguments_delta},
)
OUTPUT_EVENTS = EventTable(
    first="SHELL_OUTPUT",
    transitions={
        "SHELL_OUTPUT": {ShellOutputDelta: "SHELL_OUTPUT", ShellOutputDone: "SHELL_OUTPUT"}
    },
    closable=("SHELL_OUTPUT",),
    opened_by=(),
    open=ShellOutputBuilder,
    reopen=lambda item, context: ShellOutputBuilder(
        d.ToolStart("shell_call_output", fields_to_reopen(item)), context
    ),
    deltas={
        ShellOutputDelta: to_progress("output", "command_index", "delta"),
        ShellOutputDone: to_progress("output_done", "command_index", "output"),
    },
)


def _client_specs(tool: Shell, path: str) -> tuple[ToolSpec, ...]:
    if not tool.is_local:
        return ()
    spec = CLIENT_TOOL.spec("shell")
    skills = describe_skills(local_skills(tool.environment or {}, f"{path}.environment"))
    if skills:
        spec = replace(spec, description=f"{spec.description}\n{skills}")
    return (spec,)


def _echo(tool: Shell) -> Shell:
    environment = tool.environment
    if not isinstance(environment, dict):
        return tool
    return replace(tool, environment=without_data(environment))


def _shown_call(item: ShellCall, view: View) -> Call:
    return CLIENT_TOOL.call(item, view, CONTAINER if is_container_call(item) else "shell")


CALL = ItemKind(
    item=ShellCall,
    prefix="sh",
    events=CALL_EVENTS,
    next=ShellCallOutput,
    shown=Shown(call=_shown_call),
    include={},
)

OUTPUT = ItemKind(
    item=ShellCallOutput,
    prefix="sho",
    events=OUTPUT_EVENTS,
    next="model",
    shown=Shown(result=lambda item, _: Result(body=JsonBody(item.output))),
    include={},
)

TOOL = ToolKind(
    tool=Shell,
    client_specs=_client_specs,
    server_specs=lambda *_: (CONTAINER_TOOL.spec(CONTAINER),),
    chosen=("shell", CONTAINER),
    stand_in=None,
    echo=Echo(echo=_echo),
)
SHELL = CallKind(
    name="shell",
    tool_type="shell",
    item=ShellCall,
    open=ShellArgumentsBuilder,
    arguments=CLIENT_TOOL,
)
HOSTED_SHELL = CallKind(
    name=CONTAINER,
    tool_type="shell",
    item=ShellCall,
    open=ShellArgumentsBuilder,
    arguments=CONTAINER_TOOL,
)

KIND = Kind(name="shell", items=(CALL, OUTPUT), tools=(TOOL,), calls=(SHELL, HOSTED_SHELL))
