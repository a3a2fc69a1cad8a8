"""Build items of tools that the server runs, and items without events in between
(docs/reference/events.md#events-of-each-item).

Most kinds differ only in the events of their steps, listed in TOOLS. Shell items hold lists of
commands and outputs and have their own builders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, structs

from antiphon.domain import deltas as d
from antiphon.domain import events as e
from antiphon.domain import items as i
from antiphon.domain.builders.builder_context import BuilderContext

EventType = type[Any]


class ToolItemKind(Struct, frozen=True, kw_only=True):
    """The events of one type of item.

    `opening_events` follow ItemAdded. `text_field` is the field that ArgumentsDelta fills, and
    `text_events` are its delta and done events. `steps` must be passed in this order before
    `completed`; a step without an event only sets the status. `repeatable_steps` may occur any
    number of times while the item is open. `end_events` are the events of each final status.
    """

    item: type[i.Item]
    opening_events: tuple[EventType, ...] = ()
    text_field: str | None = None
    text_events: tuple[EventType, EventType] | None = None
    steps: Mapping[str, EventType | None] = {}
    repeatable_steps: Mapping[str, EventType] = {}
    end_events: Mapping[str, EventType] = {}
    has_status: bool = True


TOOLS: Mapping[str, ToolItemKind] = {
    "mcp_list_tools": ToolItemKind(
        item=i.McpListTools,
        opening_events=(e.McpListToolsInProgress,),
        end_events={"completed": e.McpListToolsCompleted, "failed": e.McpListToolsFailed},
        has_status=False,
    ),
    "mcp_call": ToolItemKind(
        item=i.McpCall,
        opening_events=(e.McpCallInProgress,),
        text_field="arguments",
        text_events=(e.McpArgumentsDelta, e.McpArgumentsDone),
        steps={"calling": None},
        end_events={"completed": e.McpCallCompleted, "failed": e.McpCallFailed},
    ),
    "web_search_call": ToolItemKind(
        item=i.WebSearchCall,
        opening_events=(e.WebSearchInProgress,),
        steps={"searching": e.WebSearchSearching},
        end_events={"completed": e.WebSearchCompleted},
    ),
    "file_search_call": ToolItemKind(
        item=i.FileSearchCall,
        opening_events=(e.FileSearchInProgress,),
        steps={"searching": e.FileSearchSearching},
        end_events={"completed": e.FileSearchCompleted},
    ),
    "code_interpreter_call": ToolItemKind(
        item=i.CodeInterpreterCall,
        opening_events=(e.CodeInProgress,),
        text_field="code",
        text_events=(e.CodeDelta, e.CodeDone),
        steps={"interpreting": e.CodeInterpreting},
        end_events={"completed": e.CodeCompleted},
    ),
    "image_generation_call": ToolItemKind(
        item=i.ImageGenerationCall,
        opening_events=(e.ImageInProgress,),
        steps={"generating": e.ImageGenerating},
        repeatable_steps={"partial_image": e.PartialImage},
        end_events={"completed": e.ImageCompleted},
    ),
    "compaction": ToolItemKind(
        item=i.Compaction, repeatable_steps={"compacting": e.Compacting}, has_status=False
    ),
    "mcp_approval_request": ToolItemKind(item=i.McpApprovalRequest, has_status=False),
    "computer_call": ToolItemKind(item=i.ComputerCall),
    "local_shell_call": ToolItemKind(item=i.LocalShellCall),
    "apply_patch_call": ToolItemKind(item=i.ApplyPatchCall),
    "tool_search_call": ToolItemKind(item=i.ToolSearchCall),
    "tool_search_output": ToolItemKind(item=i.ToolSearchOutput),
    "program": ToolItemKind(item=i.Program, has_status=False),
    "program_output": ToolItemKind(item=i.ProgramOutput),
}


class ToolBuilder:
    """Builds a tool's item; it adds the events of skipped steps, so that every end is legal."""

    def __init__(self, delta: d.Delta, context: BuilderContext) -> None:
        assert isinstance(delta, d.ToolStart)
        self._kind = TOOLS[delta.kind]
        self._index = context.output_index
        self._id = context.new_id(i.ID_PREFIXES[self._kind.item])
        self._text: list[str] = []
        self._writing = self._kind.text_events is not None
        self._steps = list(self._kind.steps)
        self._end: str | None = None
        empty_text: dict[str, Any] = {self._kind.text_field: ""} if self._kind.text_field else {}
        self.item: Any = self._kind.item(
            id=self._id, **self._status("in_progress"), **empty_text, **delta.fields
        )

    def open(self) -> Sequence[e.Event]:
        added = e.ItemAdded(output_index=self._index, item=self.item)
        return (added, *(event(**self._place()) for event in self._kind.opening_events))

    def accepts(self, delta: d.Delta) -> bool:
        if self._end is not None:
            return False
        if isinstance(delta, d.ArgumentsDelta):
            # Items without a text field show their arguments only once they are parsed, without
            # an event for the text.
            return self._writing or self._kind.text_field is None
        return isinstance(delta, d.ToolProgress | d.ToolEnd)

    def add(self, delta: d.Delta) -> Sequence[e.Event]:
        match delta:
            case d.ArgumentsDelta(text=text) if self._kind.text_events is not None:
                self._text.append(text)
                return (self._kind.text_events[0](delta=text, **self._place()),)
            case d.ToolProgress(step=step, fields=fields):
                return self._take_step(step, fields)
            case d.ToolEnd(status=status, fields=fields):
                self._set(**fields)
                self._end = status
        return ()

    def close(self, status: str) -> Sequence[e.Event]:
        # A tool item without a ToolEnd was cut off, whatever closes it.
        if self._end is None and (self._kind.steps or self._kind.end_events):
            status = "incomplete"
        end = self._end or status
        events = [*self._finish_text()]
        if end == "completed":
            events += self._pass_steps(len(self._steps))
        if end in self._kind.end_events:
            events.append(self._kind.end_events[end](**self._place()))
        self._set(**self._status(end))
        return (*events, e.ItemDone(output_index=self._index, item=self.item))

    def _take_step(self, step: str, fields: Mapping[str, Any]) -> Sequence[e.Event]:
        if step in self._kind.repeatable_steps:
            skipped = self._pass_steps(len(self._steps))
            event = self._kind.repeatable_steps[step](**self._place(), **fields)
            return (*self._finish_text(), *skipped, event)
        self._set(**fields)
        if step not in self._steps:
            return ()
        text_events = self._finish_text()
        step_events = self._pass_steps(self._steps.index(step) + 1)
        return (*text_events, *step_events)

    def _finish_text(self) -> Sequence[e.Event]:
        if not self._writing or self._kind.text_events is None or self._kind.text_field is None:
            return ()
        self._writing = False
        text = {self._kind.text_field: "".join(self._text)}
        self._set(**text)
        return (self._kind.text_events[1](**self._place(), **text),)

    def _pass_steps(self, count: int) -> list[e.Event]:
        steps, self._steps = self._steps[:count], self._steps[count:]
        if steps:
            self._set(**self._status(steps[-1]))
        event_types = (self._kind.steps[step] for step in steps)
        return [event_type(**self._place()) for event_type in event_types if event_type]

    def _set(self, **fields: Any) -> None:
        self.item = structs.replace(self.item, **fields)

    def _status(self, status: str) -> dict[str, str]:
        return {"status": status} if self._kind.has_status else {}

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._id, "output_index": self._index}


class ShellCallBuilder:
    """Builds a shell_call: each `command` step starts a command, and ArgumentsDelta extends it.

    ToolEnd may bring the rest of the action, and a status that says that commands are missing.
    """

    def __init__(self, delta: d.Delta, context: BuilderContext) -> None:
        assert isinstance(delta, d.ToolStart)
        self._index = context.output_index
        self._commands: list[str] = []
        self._writing = False
        self._end = "completed"
        action: dict[str, Any] = {"commands": [], "timeout_ms": None, "max_output_length": None}
        self._action = action | dict(delta.fields.get("action", {}))
        self.item = i.ShellCall(
            id=context.new_id("sh"),
            status="in_progress",
            call_id=delta.fields.get("call_id") or context.new_id("call"),
            action=self._action | {"commands": []},
            environment=delta.fields.get("environment"),
        )

    def open(self) -> Sequence[e.Event]:
        return (e.ItemAdded(output_index=self._index, item=self.item),)

    def accepts(self, delta: d.Delta) -> bool:
        return isinstance(delta, d.ArgumentsDelta | d.ToolProgress | d.ToolEnd)

    def add(self, delta: d.Delta) -> Sequence[e.Event]:
        match delta:
            case d.ArgumentsDelta(text=text):
                added = () if self._writing else self._start_command()
                self._commands[-1] += text
                return (*added, e.CommandDelta(delta=text, **self._place()))
            case d.ToolProgress(step="command"):
                return (*self._end_command(), *self._start_command())
            case d.ToolEnd(status=status, fields=fields):
                self._action |= fields.get("action", {})
                self._end = status
        return ()

    def close(self, status: str) -> Sequence[e.Event]:
        command_done = self._end_command()
        action = self._action | {"commands": list(self._commands)}
        status = self._end if status == "completed" else status
        self.item = structs.replace(self.item, status=status, action=action)
        return (*command_done, e.ItemDone(output_index=self._index, item=self.item))

    def _start_command(self) -> Sequence[e.Event]:
        self._commands.append("")
        self._writing = True
        return (e.CommandAdded(command="", **self._place()),)

    def _end_command(self) -> Sequence[e.Event]:
        if not self._writing:
            return ()
        self._writing = False
        return (e.CommandDone(command=self._commands[-1], **self._place()),)

    def _place(self) -> dict[str, Any]:
        return {"output_index": self._index, "command_index": len(self._commands) - 1}


class ShellOutputBuilder:
    """Builds a shell_call_output: `output` steps extend a command's output, `output_done` ends it.

    `output` has the fields `command_index` and `delta` `{stdout?, stderr?}`; `output_done` has
    `command_index` and `output` `[{stdout, stderr, outcome}]`.
    """

    def __init__(self, delta: d.Delta, context: BuilderContext) -> None:
        assert isinstance(delta, d.ToolStart)
        self._index = context.output_index
        self._id = context.new_id("sho")
        self._outputs: list[dict[str, Any]] = []
        self._open_output: dict[str, str] = {}
        self._is_over = False
        self.item = i.ShellCallOutput(
            id=self._id,
            status="in_progress",
            call_id=delta.fields["call_id"],
            output=(),
            max_output_length=delta.fields.get("max_output_length"),
        )

    def open(self) -> Sequence[e.Event]:
        return (e.ItemAdded(output_index=self._index, item=self.item),)

    def accepts(self, delta: d.Delta) -> bool:
        return isinstance(delta, d.ToolProgress | d.ToolEnd)

    def add(self, delta: d.Delta) -> Sequence[e.Event]:
        match delta:
            case d.ToolProgress(step="output", fields=fields):
                for name, text in fields["delta"].items():
                    self._open_output[name] = self._open_output.get(name, "") + text
                return (e.ShellOutputDelta(**self._place(), **fields),)
            case d.ToolProgress(step="output_done", fields=fields):
                self._outputs.extend(fields["output"])
                self._open_output = {}
                return (e.ShellOutputDone(**self._place(), **fields),)
            case d.ToolEnd(fields=fields) if not self._is_over:
                self._is_over = "why" not in fields
                return () if self._is_over else self._end_with_timeout(fields["why"])
        return ()

    def close(self, status: str) -> Sequence[e.Event]:
        output_done = self._end_with_timeout() if self._open_output else ()
        status = status if self._is_over else "incomplete"
        self.item = structs.replace(self.item, status=status, output=tuple(self._outputs))
        return (*output_done, e.ItemDone(output_index=self._index, item=self.item))

    def _end_with_timeout(self, why: str = "") -> Sequence[e.Event]:
        # The API has no other outcome for a command that did not exit.
        index = len(self._outputs)
        stderr_events: Sequence[e.Event] = ()
        if why:
            delta = d.ToolProgress("output", {"command_index": index, "delta": {"stderr": why}})
            stderr_events = self.add(delta)
        entry = {"stdout": "", "stderr": "", **self._open_output, "outcome": {"type": "timeout"}}
        fields = {"command_index": index, "output": (entry,)}
        return (*stderr_events, *self.add(d.ToolProgress("output_done", fields)))

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._id, "output_index": self._index}


def open_tool(
    delta: d.Delta, context: BuilderContext
) -> ToolBuilder | ShellCallBuilder | ShellOutputBuilder:
    """Return the builder for a ToolStart."""
    assert isinstance(delta, d.ToolStart)
    if delta.kind == "shell_call":
        return ShellCallBuilder(delta, context)
    if delta.kind == "shell_call_output":
        return ShellOutputBuilder(delta, context)
    return ToolBuilder(delta, context)
