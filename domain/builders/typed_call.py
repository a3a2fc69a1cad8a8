"""Calls of the tools of a fixed shape (client_tools.py): JSON arguments become a typed item.

One rule for what does not fit: a call whose arguments are cut or are not those of its tool is a
`function_call` with the arguments as the model wrote them, so nothing is lost and no client runs
half of what was asked for (docs/decisions/0017). A shell call shows its commands while they
arrive; one that was shown already stays a shell call, and is incomplete if not all commands came.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from antiphon.domain import deltas as d
from antiphon.domain import events as e
from antiphon.domain import items as i
from antiphon.domain.builders.builder_context import BuilderContext
from antiphon.domain.builders.call import KINDS, CallBuilder
from antiphon.domain.builders.commands import CommandReader
from antiphon.domain.builders.tool import ShellCallBuilder, ToolBuilder
from antiphon.domain.client_tools import CLIENT_TOOLS, item_fields_of, normalize_arguments
from antiphon.domain.tools import CONTAINER

Made = tuple[Sequence[e.Event], Any]
"""All events of an item, and the item."""

Make = Callable[[d.CallStart, str, str, BuilderContext], Made]
"""(start, arguments, status, seed) -> what became of a call."""


class WholeCallBuilder:
    """Shows nothing until its call is over; then `make` says what item that is."""

    def __init__(self, start: d.CallStart, seed: BuilderContext, make: Make) -> None:
        self._start = start
        self._seed = seed
        self._make = make
        self._arguments: list[str] = []
        self.item: Any = None

    @property
    def arguments(self) -> str:
        return "".join(self._arguments)

    def open(self) -> Sequence[e.Event]:
        return ()

    def accepts(self, delta: d.Delta) -> bool:
        return isinstance(delta, d.ArgumentsDelta)

    def add(self, delta: d.Delta) -> Sequence[e.Event]:
        if isinstance(delta, d.ArgumentsDelta):
            self._arguments.append(delta.text)
        return ()

    def close(self, status: str) -> Sequence[e.Event]:
        events, self.item = self._make(self._start, self.arguments, status, self._seed)
        return events


def _typed_call(start: d.CallStart, arguments: str, status: str, seed: BuilderContext) -> Made:
    fields = item_fields_of(start.kind, arguments) if status == "completed" else None
    if fields is None:
        return _function_call(start, arguments, status, seed)
    kind = CLIENT_TOOLS[start.kind].item
    call_id = start.call_id or seed.new_id("call")
    item_id = seed.new_id(i.ID_PREFIXES[kind])
    given: dict[str, Any] = {"id": item_id, "call_id": call_id, "status": status}
    item = kind(**given | fields)
    added = replace(item, status="in_progress")
    events = (
        e.ItemAdded(output_index=seed.output_index, item=added),
        e.ItemDone(output_index=seed.output_index, item=item),
    )
    return events, item


def _function_call(start: d.CallStart, arguments: str, status: str, seed: BuilderContext) -> Made:
    plain = CallBuilder(replace(start, kind="function"), seed)
    events = (*plain.open(), *plain.add(d.ArgumentsDelta(arguments)), *plain.close(status))
    return events, plain.item


def _approval_request(
    start: d.CallStart, arguments: str, status: str, seed: BuilderContext
) -> Made:
    asked, written = _of_server(start), d.ArgumentsDelta(arguments)
    if status != "completed":  # nobody may approve of half a call
        cut = ToolBuilder(d.ToolStart("mcp_call", asked), seed)
        return (*cut.open(), *cut.add(written), *cut.close(status)), cut.item
    request = ToolBuilder(
        d.ToolStart("mcp_approval_request", asked | {"arguments": arguments}), seed
    )
    return (*request.open(), *request.close(status)), request.item


class ShellArgumentsBuilder:
    """A shell call out of JSON arguments: nothing until the first command begins.

    One that this server runs is a shell call whatever its arguments: its output says what is wrong
    with them. It is incomplete unless it was run.
    """

    def __init__(self, delta: d.Delta, seed: BuilderContext) -> None:
        assert isinstance(delta, d.CallStart)
        self._whole = WholeCallBuilder(delta, seed, _typed_call)
        self._is_run_here = isinstance(delta, d.HostedCallStart)
        fields = delta.fields if isinstance(delta, d.HostedCallStart) else {}
        self._start = d.ToolStart("shell_call", {"call_id": delta.call_id, **fields})
        self._has_run = False
        self._seed = seed
        self._reader = CommandReader()
        self._call: ShellCallBuilder | None = None

    @property
    def item(self) -> Any:
        return self._call.item if self._call else self._whole.item

    def open(self) -> Sequence[e.Event]:
        return ()

    def accepts(self, delta: d.Delta) -> bool:
        runs = self._is_run_here and isinstance(delta, d.ToolProgress)
        return runs or isinstance(delta, d.ArgumentsDelta)

    def add(self, delta: d.Delta) -> Sequence[e.Event]:
        if isinstance(delta, d.ToolProgress):
            self._has_run = True
        if not isinstance(delta, d.ArgumentsDelta):
            return ()
        self._whole.add(delta)
        return self._read(delta.text)

    def close(self, status: str) -> Sequence[e.Event]:
        if self._is_run_here and not self._has_run:
            status = "incomplete"
        late = None
        if self._call is None and status == "completed":
            late = normalize_arguments(
                "shell", self._whole.arguments
            )  # the commands come first there
        events: Sequence[e.Event] = ()
        if late is not None:
            self._reader = CommandReader()
            events = self._read(late)
        if self._call is None and self._is_run_here:
            events = self._open()
        if self._call is None:
            return self._whole.close(status)
        end = d.ToolEnd(
            "completed" if self._reader.is_whole else "incomplete",
            {"action": _rest_of(self._reader.rest)},
        )
        return (*events, *self._call.add(end), *self._call.close(status))

    def _read(self, text: str) -> Sequence[e.Event]:
        events: list[e.Event] = []
        for delta in self._reader.feed(text):
            if self._call is None:
                events += self._open()
            assert self._call is not None
            events += self._call.add(delta)
        return events

    def _open(self) -> Sequence[e.Event]:
        self._call = ShellCallBuilder(self._start, self._seed)
        return self._call.open()


def _rest_of(rest: str) -> dict[str, Any]:
    """Return what follows the commands: further fields of the action, or text that is none."""
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


def _of_server(start: d.CallStart) -> dict[str, Any]:
    return {"server_label": start.namespace or "", "name": start.name}


def open_call(
    delta: d.Delta, seed: BuilderContext
) -> CallBuilder | WholeCallBuilder | ShellArgumentsBuilder | ToolBuilder:
    """Return the builder of a CallStart's kind."""
    assert isinstance(delta, d.CallStart)
    if delta.kind in KINDS:
        return CallBuilder(delta, seed)
    if delta.kind == "mcp":
        return ToolBuilder(d.ToolStart("mcp_call", _of_server(delta)), seed)
    if delta.kind == "mcp_approval":
        return WholeCallBuilder(delta, seed, _approval_request)
    if delta.kind in ("shell", CONTAINER):
        return ShellArgumentsBuilder(delta, seed)
    return WholeCallBuilder(delta, seed, _typed_call)
