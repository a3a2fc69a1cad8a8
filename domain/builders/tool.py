"""Items of tools that the server runs, and those that open and close at once
(docs/reference/events.md#events-of-each-item).

Most kinds differ only in the events of their steps: TOOLS is that table. Shell items hold lists of
commands and outputs and have builders of their own.
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
    """How items of one type go.

    `opening` follow ItemAdded. `text` is the field that ArgumentsDelta fills, `written` its two
    events. `steps` must be passed in this order before `completed`; a step without an event only
    sets the status. `repeated` may come any number of times while the item is open. `ends` are the
    events of a last status.
    """

    item: type[i.Item]
    opening: tuple[EventType, ...] = ()
    text: str | None = None
    written: tuple[EventType, EventType] | None = None
    steps: Mapping[str, EventType | None] = {}
    repeated: Mapping[str, EventType] = {}
    ends: Mapping[str, EventType] = {}
    has_status: bool = True


TOOLS: Mapping[str, ToolItemKind] = {
    "mcp_list_tools": ToolItemKind(
        item=i.McpListTools,
        opening=(e.McpListToolsInProgress,),
        ends={"completed": e.McpListToolsCompleted, "failed": e.McpListToolsFailed},
        has_status=False,
    ),
    "mcp_call": ToolItemKind(
        item=i.McpCall,
        opening=(e.McpCallInProgress,),
        text="arguments",
        written=(e.McpArgumentsDelta, e.McpArgumentsDone),
        steps={"calling": None},
        ends={"completed": e.McpCallCompleted, "failed": e.McpCallFailed},
    ),
    "web_search_call": ToolItemKind(
        item=i.WebSearchCall,
        opening=(e.WebSearchInProgress,),
        steps={"searching": e.WebSearchSearching},
        ends={"completed": e.WebSearchCompleted},
    ),
    "file_search_call": ToolItemKind(
        item=i.FileSearchCall,
        opening=(e.FileSearchInProgress,),
        steps={"searching": e.FileSearchSearching},
        ends={"completed": e.FileSearchCompleted},
    ),
    "code_interpreter_call": ToolItemKind(
        item=i.CodeInterpreterCall,
        opening=(e.CodeInProgress,),
        text="code",
        written=(e.CodeDelta, e.CodeDone),
        steps={"interpreting": e.CodeInterpreting},
        ends={"completed": e.CodeCompleted},
    ),
    "image_generation_call": ToolItemKind(
        item=i.ImageGenerationCall,
        opening=(e.ImageInProgress,),
        steps={"generating": e.ImageGenerating},
        repeated={"partial_image": e.PartialImage},
        ends={"completed": e.ImageCompleted},
    ),
    "compaction": ToolItemKind(
        item=i.Compaction, repeated={"compacting": e.Compacting}, has_status=False
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
    """Steps that were left out are made up for, so that every end is a legal one."""

    def __init__(self, delta: d.Delta, seed: BuilderContext) -> None:
        assert isinstance(delta, d.ToolStart)
        self._kind = TOOLS[delta.kind]
        self._index = seed.output_index
        self._id = seed.new_id(i.ID_PREFIXES[self._kind.item])
        self._text: list[str] = []
        self._writing = self._kind.written is not None
        self._steps = list(self._kind.steps)
        self._end: str | None = None
        first: dict[str, Any] = {self._kind.text: ""} if self._kind.text else {}
        self.item: Any = self._kind.item(
            id=self._id, **self._status("in_progress"), **first, **delta.fields
        )

    def open(self) -> Sequence[e.Event]:
        added = e.ItemAdded(output_index=self._index, item=self.item)
        return (added, *(event(**self._place()) for event in self._kind.opening))

    def accepts(self, delta: d.Delta) -> bool:
        if self._end is not None:
            return False
        if isinstance(delta, d.ArgumentsDelta):
            # Some items show what a call asks for only once it is understood: no event tells of it.
            return self._writing or self._kind.text is None
        return isinstance(delta, d.ToolProgress | d.ToolEnd)

    def add(self, delta: d.Delta) -> Sequence[e.Event]:
        match delta:
            case d.ArgumentsDelta(text=text) if self._kind.written is not None:
                self._text.append(text)
                return (self._kind.written[0](delta=text, **self._place()),)
            case d.ToolProgress(step=step, fields=fields):
                return self._progress(step, fields)
            case d.ToolEnd(status=status, fields=fields):
                self._set(**fields)
                self._end = status
        return ()

    def close(self, status: str) -> Sequence[e.Event]:
        # A tool item that nobody ended was cut, whatever closes it: `completed` is only for
        # ToolEnd.
        if self._end is None and (self._kind.steps or self._kind.ends):
            status = "incomplete"
        end = self._end or status
        events = [*self._written()]
        if end == "completed":
            events += self._pass_steps(len(self._steps))
        if end in self._kind.ends:
            events.append(self._kind.ends[end](**self._place()))
        self._set(**self._status(end))
        return (*events, e.ItemDone(output_index=self._index, item=self.item))

    def _progress(self, step: str, fields: Mapping[str, Any]) -> Sequence[e.Event]:
        if step in self._kind.repeated:
            reach = self._pass_steps(len(self._steps))
            return (*self._written(), *reach, self._kind.repeated[step](**self._place(), **fields))
        self._set(**fields)
        if step not in self._steps:
            return ()
        written = self._written()
        passed = self._pass_steps(self._steps.index(step) + 1)
        return (*written, *passed)

    def _written(self) -> Sequence[e.Event]:
        if not self._writing or self._kind.written is None or self._kind.text is None:
            return ()
        self._writing = False
        text = {self._kind.text: "".join(self._text)}
        self._set(**text)
        return (self._kind.written[1](**self._place(), **text),)

    def _pass_steps(self, count: int) -> list[e.Event]:
        passed, self._steps = self._steps[:count], self._steps[count:]
        if passed:
            self._set(**self._status(passed[-1]))
        kinds = (self._kind.steps[step] for step in passed)
        return [kind(**self._place()) for kind in kinds if kind]

    def _set(self, **fields: Any) -> None:
        self.item = structs.replace(self.item, **fields)

    def _status(self, status: str) -> dict[str, str]:
        return {"status": status} if self._kind.has_status else {}

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._id, "output_index": self._index}


class ShellCallBuilder:
    """A shell_call: each `command` step begins a command, ArgumentsDelta writes it.

    ToolEnd may bring the rest of the action, and say that not all commands came.
    """

    def __init__(self, delta: d.Delta, seed: BuilderContext) -> None:
        assert isinstance(delta, d.ToolStart)
        self._index = seed.output_index
        self._commands: list[str] = []
        self._writing = False
        self._end = "completed"
        action: dict[str, Any] = {"commands": [], "timeout_ms": None, "max_output_length": None}
        self._action = action | dict(delta.fields.get("action", {}))
        self.item = i.ShellCall(
            id=seed.new_id("sh"),
            status="in_progress",
            call_id=delta.fields.get("call_id") or seed.new_id("call"),
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
                begun = () if self._writing else self._begin()
                self._commands[-1] += text
                return (*begun, e.CommandDelta(delta=text, **self._place()))
            case d.ToolProgress(step="command"):
                return (*self._end_command(), *self._begin())
            case d.ToolEnd(status=status, fields=fields):
                self._action |= fields.get("action", {})
                self._end = status
        return ()

    def close(self, status: str) -> Sequence[e.Event]:
        ended = self._end_command()
        action = self._action | {"commands": list(self._commands)}
        status = self._end if status == "completed" else status
        self.item = structs.replace(self.item, status=status, action=action)
        return (*ended, e.ItemDone(output_index=self._index, item=self.item))

    def _begin(self) -> Sequence[e.Event]:
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
    """A shell_call_output: `output` steps add to one command's output, `output_done` closes it.

    Fields of `output`: `command_index`, `delta` `{stdout?, stderr?}`; of `output_done`:
    `command_index`, `output` `[{stdout, stderr, outcome}]`.
    """

    def __init__(self, delta: d.Delta, seed: BuilderContext) -> None:
        assert isinstance(delta, d.ToolStart)
        self._index = seed.output_index
        self._id = seed.new_id("sho")
        self._outputs: list[dict[str, Any]] = []
        self._printed: dict[str, str] = {}
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
                    self._printed[name] = self._printed.get(name, "") + text
                return (e.ShellOutputDelta(**self._place(), **fields),)
            case d.ToolProgress(step="output_done", fields=fields):
                self._outputs.extend(fields["output"])
                self._printed = {}
                return (e.ShellOutputDone(**self._place(), **fields),)
            case d.ToolEnd(fields=fields) if not self._is_over:
                self._is_over = "why" not in fields
                return () if self._is_over else self._cut(fields["why"])
        return ()

    def close(self, status: str) -> Sequence[e.Event]:
        cut = self._cut() if self._printed else ()
        status = status if self._is_over else "incomplete"
        self.item = structs.replace(self.item, status=status, output=tuple(self._outputs))
        return (*cut, e.ItemDone(output_index=self._index, item=self.item))

    def _cut(self, why: str = "") -> Sequence[e.Event]:
        # The protocol has no other outcome of what did not exit.
        index = len(self._outputs)
        told: Sequence[e.Event] = ()
        if why:
            note = d.ToolProgress("output", {"command_index": index, "delta": {"stderr": why}})
            told = self.add(note)
        entry = {"stdout": "", "stderr": "", **self._printed, "outcome": {"type": "timeout"}}
        fields = {"command_index": index, "output": (entry,)}
        return (*told, *self.add(d.ToolProgress("output_done", fields)))

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._id, "output_index": self._index}


def open_tool(
    delta: d.Delta, seed: BuilderContext
) -> ToolBuilder | ShellCallBuilder | ShellOutputBuilder:
    """Return the builder of a ToolStart's kind."""
    assert isinstance(delta, d.ToolStart)
    if delta.kind == "shell_call":
        return ShellCallBuilder(delta, seed)
    if delta.kind == "shell_call_output":
        return ShellOutputBuilder(delta, seed)
    return ToolBuilder(delta, seed)
