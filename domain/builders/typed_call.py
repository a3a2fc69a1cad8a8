"""Build calls of built-in client tools (client_tools.py): JSON arguments become a typed item.

A call whose arguments are cut off or invalid becomes a `function_call` with the arguments as the
model wrote them, so nothing is lost and no client runs half a call (docs/decisions/0017). A shell
call shows its commands while they arrive. Once shown, it stays a shell call, and it is incomplete
if commands are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from antiphon.domain import deltas as d
from antiphon.domain import events as e
from antiphon.domain import items as i
from antiphon.domain import mcp
from antiphon.domain.builders.builder_context import BuilderContext
from antiphon.domain.builders.call import KINDS, CallBuilder
from antiphon.domain.builders.commands import CommandReader
from antiphon.domain.builders.tool import ShellCallBuilder, ToolBuilder
from antiphon.domain.client_tools import CLIENT_TOOLS, item_fields_of, normalize_arguments
from antiphon.domain.tools import CONTAINER

EventsAndItem = tuple[Sequence[e.Event], Any]
"""All events of an item, and the item."""

ItemFactory = Callable[[d.CallStart, str, str, BuilderContext], EventsAndItem]
"""(start, arguments, status, context) -> the item of a call, with its events."""


class BufferedCallBuilder:
    """Shows nothing until the call is complete; then `make_item` decides which item it is."""

    def __init__(self, start: d.CallStart, context: BuilderContext, make_item: ItemFactory) -> None:
        self._start = start
        self._context = context
        self._make_item = make_item
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
        events, self.item = self._make_item(self._start, self.arguments, status, self._context)
        return events


def _make_typed_call(
    start: d.CallStart, arguments: str, status: str, context: BuilderContext
) -> EventsAndItem:
    fields = item_fields_of(start.kind, arguments) if status == "completed" else None
    if fields is None:
        return _make_function_call(start, arguments, status, context)
    kind = CLIENT_TOOLS[start.kind].item
    call_id = start.call_id or context.new_id("call")
    item_id = context.new_id(i.ID_PREFIXES[kind])
    common_fields: dict[str, Any] = {"id": item_id, "call_id": call_id, "status": status}
    item = kind(**common_fields | fields)
    added = replace(item, status="in_progress")
    events = (
        e.ItemAdded(output_index=context.output_index, item=added),
        e.ItemDone(output_index=context.output_index, item=item),
    )
    return events, item


def _make_function_call(
    start: d.CallStart, arguments: str, status: str, context: BuilderContext
) -> EventsAndItem:
    builder = CallBuilder(replace(start, kind="function"), context)
    events = (*builder.open(), *builder.add(d.ArgumentsDelta(arguments)), *builder.close(status))
    return events, builder.item


def _make_approval_request(
    start: d.CallStart, arguments: str, status: str, context: BuilderContext
) -> EventsAndItem:
    fields, delta = _server_fields(start), d.ArgumentsDelta(arguments)
    if status != "completed":  # half a call must not be approved
        call = ToolBuilder(d.ToolStart("mcp_call", fields), context)
        return (*call.open(), *call.add(delta), *call.close(status)), call.item
    if start.approval_key is not None:
        key, new_id = start.approval_key, context.new_id
        context = replace(context, new_id=lambda prefix: mcp.with_approval_key(new_id(prefix), key))
    request = ToolBuilder(
        d.ToolStart("mcp_approval_request", fields | {"arguments": arguments}), context
    )
    return (*request.open(), *request.close(status)), request.item


class ShellArgumentsBuilder:
    """Builds a shell call from JSON arguments; it shows nothing before the first command.

    A call that this server runs is a shell call even if its arguments are invalid: its output
    reports the error. It is incomplete if it did not run.
    """

    def __init__(self, delta: d.Delta, context: BuilderContext) -> None:
        assert isinstance(delta, d.CallStart)
        self._buffered_call = BufferedCallBuilder(delta, context, _make_typed_call)
        self._is_run_here = isinstance(delta, d.HostedCallStart)
        fields = delta.fields if isinstance(delta, d.HostedCallStart) else {}
        self._start = d.ToolStart("shell_call", {"call_id": delta.call_id, **fields})
        self._has_run = False
        self._context = context
        self._reader = CommandReader()
        self._shell_call: ShellCallBuilder | None = None

    @property
    def item(self) -> Any:
        return self._shell_call.item if self._shell_call else self._buffered_call.item

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
        self._buffered_call.add(delta)
        return self._read(delta.text)

    def close(self, status: str) -> Sequence[e.Event]:
        if self._is_run_here and not self._has_run:
            status = "incomplete"
        normalized = None
        if self._shell_call is None and status == "completed":
            # The normalized arguments have the commands first.
            normalized = normalize_arguments("shell", self._buffered_call.arguments)
        events: Sequence[e.Event] = ()
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

    def _read(self, text: str) -> Sequence[e.Event]:
        events: list[e.Event] = []
        for delta in self._reader.feed(text):
            if self._shell_call is None:
                events += self._open()
            assert self._shell_call is not None
            events += self._shell_call.add(delta)
        return events

    def _open(self) -> Sequence[e.Event]:
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


def _server_fields(start: d.CallStart) -> dict[str, Any]:
    return {"server_label": start.namespace or "", "name": start.name}


def open_call(
    delta: d.Delta, context: BuilderContext
) -> CallBuilder | BufferedCallBuilder | ShellArgumentsBuilder | ToolBuilder:
    """Return the builder for a CallStart."""
    assert isinstance(delta, d.CallStart)
    if delta.kind in KINDS:
        return CallBuilder(delta, context)
    if delta.kind == "mcp":
        return ToolBuilder(d.ToolStart("mcp_call", _server_fields(delta)), context)
    if delta.kind == "mcp_approval":
        return BufferedCallBuilder(delta, context, _make_approval_request)
    if delta.kind in ("shell", CONTAINER):
        return ShellArgumentsBuilder(delta, context)
    return BufferedCallBuilder(delta, context, _make_typed_call)
