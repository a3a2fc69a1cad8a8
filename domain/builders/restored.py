"""Restore the open item of another server's run from its logged events.

The events are turned back into deltas and fed to the item's builder, so the same code closes every
item. Whatever a builder knew beyond its events was lost with its server: the result of a tool that
was still running, and the fields after the commands in a shell call's arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import UNSET

from antiphon.domain import deltas as d
from antiphon.domain import events as e
from antiphon.domain import items as i
from antiphon.domain.builders.builder_context import BuilderContext
from antiphon.domain.builders.call import CallBuilder
from antiphon.domain.builders.message import MessageBuilder
from antiphon.domain.builders.reasoning import ReasoningBuilder
from antiphon.domain.builders.tool import TOOLS, open_tool
from antiphon.domain.content import OutputText, ReasoningText, Refusal

AnyBuilder = Any
"""A Builder; its protocol is defined in the package, which imports this module."""


def _call_builder(kind: str) -> Callable[[Any, BuilderContext], AnyBuilder]:
    def build(item: Any, context: BuilderContext) -> AnyBuilder:
        start = d.CallStart(item.name, item.call_id, item.namespace or None, kind)
        return CallBuilder(start, context)

    return build


def _tool_builder(item: Any, context: BuilderContext) -> AnyBuilder:
    kind = item.__struct_config__.tag
    set_by_builder = {"id", "status", TOOLS[kind].text_field if kind in TOOLS else None}
    fields = {
        name: getattr(item, name)
        for name in item.__struct_fields__
        if name not in set_by_builder and getattr(item, name) is not UNSET
    }
    return open_tool(d.ToolStart(kind, fields), context)


_BUILDERS: Mapping[type[i.Item], Callable[[Any, BuilderContext], AnyBuilder]] = {
    i.Message: lambda item, context: MessageBuilder(
        d.TextDelta("", phase=item.phase or None), context
    ),
    i.Reasoning: lambda _, context: ReasoningBuilder(d.ReasoningDelta(""), context),
    i.FunctionCall: _call_builder("function"),
    i.CustomToolCall: _call_builder("custom"),
}
"""How to make the builder of an item; all other items are those of tools."""


def _arguments_delta(event: Any) -> d.Delta:
    return d.ArgumentsDelta(event.delta)


def _to_progress(step: str, *fields: str) -> Callable[[Any], d.Delta]:
    return lambda event: d.ToolProgress(step, {name: getattr(event, name) for name in fields})


_STEPS = {
    event: _to_progress(step, *(set(event.__struct_fields__) - set(e.Compacting.__struct_fields__)))
    for kind in TOOLS.values()
    for step, event in (*kind.steps.items(), *kind.repeatable_steps.items())
    if event is not None
}

_DELTAS: Mapping[type[e.Event], Callable[[Any], d.Delta]] = {
    e.TextDelta: lambda event: d.TextDelta(event.delta, event.logprobs),
    e.RefusalDelta: lambda event: d.RefusalDelta(event.delta),
    e.AnnotationAdded: lambda event: d.AnnotationDelta(event.annotation),
    e.ReasoningDelta: lambda event: d.ReasoningDelta(event.delta),
    e.SummaryDelta: lambda event: d.SummaryDelta(event.delta),
    e.ArgumentsDelta: _arguments_delta,
    e.CustomInputDelta: _arguments_delta,
    e.McpArgumentsDelta: _arguments_delta,
    e.CodeDelta: _arguments_delta,
    e.CommandDelta: _arguments_delta,
    e.CommandAdded: _to_progress("command"),
    e.ShellOutputDelta: _to_progress("output", "command_index", "delta"),
    e.ShellOutputDone: _to_progress("output_done", "command_index", "output"),
    **_STEPS,
}
"""The delta that causes each event; the builders add all other events themselves."""

_PART_OPENERS: Mapping[type[Any], d.Delta] = {
    OutputText: d.TextDelta(""),
    Refusal: d.RefusalDelta(""),
    ReasoningText: d.ReasoningDelta(""),
}


def _empty_delta_of(last_event: e.Event) -> d.Delta | None:
    """Return the delta that opens a part again if the log ends with the part's first event."""
    if isinstance(last_event, e.SummaryPartAdded):
        return d.SummaryDelta("")
    return _PART_OPENERS[type(last_event.part)] if isinstance(last_event, e.PartAdded) else None


class RestoredItem:
    """An item restored from its logged events, beginning with ItemAdded; it can only be closed."""

    def __init__(self, events: Sequence[e.Event], seal: Callable[[str], str] | None) -> None:
        added = events[0]
        assert isinstance(added, e.ItemAdded)
        logged_id = str(added.item.id)
        context = BuilderContext(added.output_index, lambda _prefix: logged_id, seal)
        self._builder = _BUILDERS.get(type(added.item), _tool_builder)(added.item, context)
        self._logged_count = len(events)
        self._rebuilt_events = [*self._builder.open()]
        for event in events:
            if type(event) in _DELTAS:
                self._rebuilt_events += self._builder.add(_DELTAS[type(event)](event))
        if delta := _empty_delta_of(events[-1]):
            self._rebuilt_events += self._builder.add(delta)

    @property
    def item(self) -> Any:
        return self._builder.item

    def open(self) -> Sequence[e.Event]:
        return ()

    def accepts(self, delta: d.Delta) -> bool:  # noqa: ARG002 - the engine run is gone
        return False

    def add(self, delta: d.Delta) -> Sequence[e.Event]:  # noqa: ARG002
        return ()

    def close(self, status: str) -> Sequence[e.Event]:
        # All events of the item except the logged ones: a log may end between two events of the
        # same delta.
        *closing, done = self._builder.close(status)
        return (*[*self._rebuilt_events, *closing][self._logged_count :], done)
