"""The events of an item, and their order: as the steps that most tools take, or as a table.

A state is a name; the table of all states is in domain/lifecycle.py. `RUNNING` is the state between
items. Every state of an item that may be followed by ItemDone is `closable`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import UNSET, Struct, structs

from antiphon.domain import deltas as d
from antiphon.domain.vocabulary.builder import Builder, BuilderContext, BuilderFactory
from antiphon.domain.vocabulary.event import Event, ItemEvent
from antiphon.domain.vocabulary.item import Item, type_of

State = str
"""A state of a stream. Strings are interned and know their hash: every event looks its state up."""

Transitions = Mapping[State, Mapping[type[Event], State]]

ITEM_FULL: State = "ITEM_FULL"
"""The state of an item that has had all its events, so that only ItemDone can follow."""


class EventTable(Struct, frozen=True, kw_only=True):
    """The events of an item that has a builder of its own.

    The item opens in `first` and may be done in the states of `closable`. `opened_by` are the
    deltas that open the item by themselves; calls and tools open theirs by name. `reopen` returns
    the builder of an item that another server had opened, and `deltas` what caused its events.
    """

    first: State
    transitions: Transitions
    closable: tuple[State, ...]
    opened_by: tuple[type[d.Delta], ...]
    open: BuilderFactory
    reopen: Callable[[Any, BuilderContext], Builder]
    deltas: Mapping[type[Event], Callable[[Any], d.Delta]]


class ItemSteps(Struct, frozen=True, kw_only=True):
    """The events of an item whose tool takes one step after another.

    `opening_events` follow ItemAdded. `text_field` is the field that ArgumentsDelta fills, and
    `text_events` are its delta and done events. `steps` must be passed in this order before
    `completed`; a step without an event only sets the status. `repeatable_steps` may occur any
    number of times while the item is open. `end_events` are the events of each final status.
    """

    opening_events: tuple[type[Any], ...] = ()
    text_field: str | None = None
    text_events: tuple[type[Any], type[Any]] | None = None
    steps: Mapping[str, type[Any] | None] = {}
    repeatable_steps: Mapping[str, type[Any]] = {}
    end_events: Mapping[str, type[Any]] = {}

    def table(self, item: type[Item], prefix: str) -> EventTable:
        """Return the order of an item's events, and the builder that keeps it.

        A state is named for the event that led to it. From the first event after the text on, the
        item may be done at any time: a failure that has no event goes straight to ItemDone.
        """
        first = _name_of(item) if self != NO_EVENTS else ITEM_FULL
        transitions: dict[State, dict[type[Event], State]] = {}
        state, closable = first, []
        for event in self.opening_events:
            transitions[state] = {event: _name_of(event)}
            state = _name_of(event)
        if self.text_events is not None:
            delta, done = self.text_events
            transitions[state] = {delta: state, done: _name_of(done)}
            state = _name_of(done)
        for event in filter(None, self.steps.values()):
            transitions[state] = {event: _name_of(event)}
            closable.append(state)
            state = _name_of(event)
        if state != ITEM_FULL:
            transitions[state] = {
                **dict.fromkeys(self.repeatable_steps.values(), state),
                **dict.fromkeys(self.end_events.values(), ITEM_FULL),
            }
            closable.append(state)

        def open_item(start: d.ToolStart, context: BuilderContext) -> Builder:
            return ToolBuilder(item, prefix, self, start.fields, context)

        def reopen_item(restored: Any, context: BuilderContext) -> Builder:
            fields = fields_to_reopen(restored, but=self.text_field)
            return ToolBuilder(item, prefix, self, fields, context)

        return EventTable(
            first=first,
            transitions=transitions,
            closable=tuple(closable),
            opened_by=(),
            open=open_item,
            reopen=reopen_item,
            deltas=dict(self._deltas()),
        )

    def _deltas(self) -> Iterator[tuple[type[Event], Callable[[Any], d.Delta]]]:
        if self.text_events is not None:
            yield self.text_events[0], to_arguments_delta
        own = set(ItemEvent.__struct_fields__)
        for step, event in (*self.steps.items(), *self.repeatable_steps.items()):
            if event is not None:
                yield event, to_progress(step, *(set(event.__struct_fields__) - own))


NO_EVENTS = ItemSteps()
"""The item has no events between ItemAdded and ItemDone."""


class InputOnly(Struct, frozen=True):
    """The item is never output, so it has no events."""


INPUT_ONLY = InputOnly()

Events = ItemSteps | EventTable | InputOnly


def _name_of(kind: type[Struct]) -> State:
    return type_of(kind).removeprefix("response.").replace(".", "_").upper()


def to_arguments_delta(event: Any) -> d.Delta:
    """Return the delta that caused an event with a piece of text."""
    return d.ArgumentsDelta(event.delta)


def to_progress(step: str, *fields: str) -> Callable[[Any], d.Delta]:
    """Return a function that returns the step that caused an event, with the event's fields."""
    return lambda event: d.ToolProgress(step, {name: getattr(event, name) for name in fields})


def fields_to_reopen(item: Any, *, but: str | None = None) -> dict[str, Any]:
    """Return the fields that the builder of a logged item starts with."""
    return {
        name: value
        for name, value in structs.asdict(item).items()
        if name not in ("id", "status", but) and value is not UNSET
    }


class ToolBuilder:
    """Builds a tool's item; it adds the events of skipped steps, so that every end is legal."""

    def __init__(
        self,
        item: type[Item],
        prefix: str,
        events: ItemSteps,
        fields: Mapping[str, Any],
        context: BuilderContext,
    ) -> None:
        self._events = events
        self._context = context
        self._id = context.new_id(prefix)
        self._text: list[str] = []
        self._writing = events.text_events is not None
        self._steps = list(events.steps)
        self._end: str | None = None
        self._has_status = "status" in item.__struct_fields__
        empty_text: dict[str, Any] = {events.text_field: ""} if events.text_field else {}
        values = {**self._status("in_progress"), **empty_text, **fields}
        self.item: Any = item(id=self._id, **values)

    def open(self) -> Sequence[Event]:
        opening = (event(**self._place()) for event in self._events.opening_events)
        return (self._context.added(self.item), *opening)

    def accepts(self, delta: d.Delta) -> bool:
        if self._end is not None:
            return False
        if isinstance(delta, d.ArgumentsDelta):
            # Items without a text field show their arguments only once they are parsed, without
            # an event for the text.
            return self._writing or self._events.text_field is None
        return isinstance(delta, d.ToolProgress | d.ToolEnd)

    def add(self, delta: d.Delta) -> Sequence[Event]:
        match delta:
            case d.ArgumentsDelta(text=text) if self._events.text_events is not None:
                self._text.append(text)
                return (self._events.text_events[0](delta=text, **self._place()),)
            case d.ToolProgress(step=step, fields=fields):
                return self._take_step(step, fields)
            case d.ToolEnd(status=status, fields=fields):
                self._set(**fields)
                self._end = status
        return ()

    def close(self, status: str) -> Sequence[Event]:
        # A tool item without a ToolEnd was cut off, whatever closes it.
        if self._end is None and (self._events.steps or self._events.end_events):
            status = "incomplete"
        end = self._end or status
        events = [*self._finish_text()]
        if end == "completed":
            events += self._pass_steps(len(self._steps))
        if end in self._events.end_events:
            events.append(self._events.end_events[end](**self._place()))
        self._set(**self._status(end))
        return (*events, self._context.done(self.item))

    def _take_step(self, step: str, fields: Mapping[str, Any]) -> Sequence[Event]:
        if step in self._events.repeatable_steps:
            skipped = self._pass_steps(len(self._steps))
            event = self._events.repeatable_steps[step](**self._place(), **fields)
            return (*self._finish_text(), *skipped, event)
        self._set(**fields)
        if step not in self._steps:
            return ()
        text_events = self._finish_text()
        step_events = self._pass_steps(self._steps.index(step) + 1)
        return (*text_events, *step_events)

    def _finish_text(self) -> Sequence[Event]:
        if not self._writing or self._events.text_events is None or not self._events.text_field:
            return ()
        self._writing = False
        text = {self._events.text_field: "".join(self._text)}
        self._set(**text)
        return (self._events.text_events[1](**self._place(), **text),)

    def _pass_steps(self, count: int) -> list[Event]:
        steps, self._steps = self._steps[:count], self._steps[count:]
        if steps:
            self._set(**self._status(steps[-1]))
        event_types = (self._events.steps[step] for step in steps)
        return [event_type(**self._place()) for event_type in event_types if event_type]

    def _set(self, **fields: Any) -> None:
        self.item = structs.replace(self.item, **fields)

    def _status(self, status: str) -> dict[str, str]:
        return {"status": status} if self._has_status else {}

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._id, "output_index": self._context.output_index}
