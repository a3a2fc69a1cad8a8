"""The open item of a run that went on elsewhere, out of the events that were logged of it.

A builder of its kind is given the deltas that those events tell of, so one code closes every item.
What a builder knew beyond its events is lost with the server that ran it: how a tool ended that was
not done yet, and what followed the commands in the arguments of a shell call.
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
"""A Builder (its protocol is the package's, which imports this)."""


def _call(kind: str) -> Callable[[Any, BuilderContext], AnyBuilder]:
    def build(item: Any, seed: BuilderContext) -> AnyBuilder:
        start = d.CallStart(item.name, item.call_id, item.namespace or None, kind)
        return CallBuilder(start, seed)

    return build


def _tool(item: Any, seed: BuilderContext) -> AnyBuilder:
    kind = item.__struct_config__.tag
    set_by_builder = {"id", "status", TOOLS[kind].text if kind in TOOLS else None}
    fields = {
        name: getattr(item, name)
        for name in item.__struct_fields__
        if name not in set_by_builder and getattr(item, name) is not UNSET
    }
    return open_tool(d.ToolStart(kind, fields), seed)


_BUILDERS: Mapping[type[i.Item], Callable[[Any, BuilderContext], AnyBuilder]] = {
    i.Message: lambda item, seed: MessageBuilder(d.TextDelta("", phase=item.phase or None), seed),
    i.Reasoning: lambda _, seed: ReasoningBuilder(d.ReasoningDelta(""), seed),
    i.FunctionCall: _call("function"),
    i.CustomToolCall: _call("custom"),
}
"""How the builder of an added item is made; all others are tools."""


def _written(event: Any) -> d.Delta:
    return d.ArgumentsDelta(event.delta)


def _step(step: str, *fields: str) -> Callable[[Any], d.Delta]:
    return lambda event: d.ToolProgress(step, {name: getattr(event, name) for name in fields})


_STEPS = {
    event: _step(step, *(set(event.__struct_fields__) - set(e.Compacting.__struct_fields__)))
    for kind in TOOLS.values()
    for step, event in (*kind.steps.items(), *kind.repeated.items())
    if event is not None
}

_DELTAS: Mapping[type[e.Event], Callable[[Any], d.Delta]] = {
    e.TextDelta: lambda event: d.TextDelta(event.delta, event.logprobs),
    e.RefusalDelta: lambda event: d.RefusalDelta(event.delta),
    e.AnnotationAdded: lambda event: d.AnnotationDelta(event.annotation),
    e.ReasoningDelta: lambda event: d.ReasoningDelta(event.delta),
    e.SummaryDelta: lambda event: d.SummaryDelta(event.delta),
    e.ArgumentsDelta: _written,
    e.CustomInputDelta: _written,
    e.McpArgumentsDelta: _written,
    e.CodeDelta: _written,
    e.CommandDelta: _written,
    e.CommandAdded: _step("command"),
    e.ShellOutputDelta: _step("output", "command_index", "delta"),
    e.ShellOutputDone: _step("output_done", "command_index", "output"),
    **_STEPS,
}
"""The delta that an event tells of; the others follow from those."""

_FIRST: Mapping[type[Any], d.Delta] = {
    OutputText: d.TextDelta(""),
    Refusal: d.RefusalDelta(""),
    ReasoningText: d.ReasoningDelta(""),
}


def _begun(last: e.Event) -> d.Delta | None:
    """Return what opens a part of which nothing but its beginning was logged."""
    if isinstance(last, e.SummaryPartAdded):
        return d.SummaryDelta("")
    return _FIRST[type(last.part)] if isinstance(last, e.PartAdded) else None


class RestoredItem:
    """An item of which `events` were logged, ItemAdded first; it can only be closed."""

    def __init__(self, events: Sequence[e.Event], seal: Callable[[str], str] | None) -> None:
        added = events[0]
        assert isinstance(added, e.ItemAdded)
        logged_id = str(added.item.id)
        seed = BuilderContext(added.output_index, lambda _prefix: logged_id, seal)
        self._builder = _BUILDERS.get(type(added.item), _tool)(added.item, seed)
        self._logged = len(events)
        self._said = [*self._builder.open()]
        for event in events:
            if type(event) in _DELTAS:
                self._said += self._builder.add(_DELTAS[type(event)](event))
        if first := _begun(events[-1]):
            self._said += self._builder.add(first)

    @property
    def item(self) -> Any:
        return self._builder.item

    def open(self) -> Sequence[e.Event]:
        return ()

    def accepts(self, delta: d.Delta) -> bool:  # noqa: ARG002 - whoever sent deltas is gone
        return False

    def add(self, delta: d.Delta) -> Sequence[e.Event]:  # noqa: ARG002
        return ()

    def close(self, status: str) -> Sequence[e.Event]:
        # All that is ever said of the item, less what was logged: a log may end in the middle of
        # what one delta gave.
        *closing, done = self._builder.close(status)
        return (*[*self._said, *closing][self._logged :], done)
