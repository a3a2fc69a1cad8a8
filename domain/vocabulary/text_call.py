"""Calls of tools that the client names: functions (JSON) and custom tools (free text)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import UNSET, Struct

from antiphon.domain import deltas as d
from antiphon.domain.vocabulary.builder import BuilderContext
from antiphon.domain.vocabulary.event import Event
from antiphon.domain.vocabulary.item import Item
from antiphon.domain.vocabulary.steps import ITEM_FULL, EventTable, State, to_arguments_delta

Place = dict[str, Any]


class TextCall(Struct, frozen=True, kw_only=True):
    """A kind of call: its item, and the field and the events of its text.

    `no_text` is the text of a complete call for which the model wrote none.
    """

    kind: str
    prefix: str
    item: type[Item]
    text_field: str
    delta_event: type[Any]
    done_event: Callable[[Place, str, str], Event]
    no_text: str = ""

    def open(self, start: d.CallStart, context: BuilderContext) -> TextCallBuilder:
        """Return the builder of a call that starts."""
        return TextCallBuilder(self, start, context)

    def events(self, first: State, done: type[Event]) -> EventTable:
        """Return the events of the call: deltas, and `done` with the whole text."""
        return EventTable(
            first=first,
            transitions={first: {self.delta_event: first, done: ITEM_FULL}},
            closable=(),
            opened_by=(),
            open=self.open,
            reopen=self._reopen,
            deltas={self.delta_event: to_arguments_delta},
        )

    def _reopen(self, item: Any, context: BuilderContext) -> TextCallBuilder:
        start = d.CallStart(
            item.name,
            item.call_id,
            item.namespace or None,
            self.kind,
            caller=item.caller or None,
        )
        return TextCallBuilder(self, start, context)


class TextCallBuilder:
    """Builds a call; one without arguments closes like any other."""

    def __init__(self, kind: TextCall, start: d.CallStart, context: BuilderContext) -> None:
        self._kind = kind
        self._start = start
        self._context = context
        self._index = context.output_index
        self._id = context.new_id(self._kind.prefix)
        self._call_id = start.call_id or context.new_id("call")
        self._text: list[str] = []
        self.item: Any = self._build("in_progress", "")

    def open(self) -> Sequence[Event]:
        return (self._context.added(self.item),)

    def accepts(self, delta: d.Delta) -> bool:
        return type(delta) is d.ArgumentsDelta

    def add(self, delta: d.Delta) -> Sequence[Event]:
        if type(delta) is not d.ArgumentsDelta:
            return ()  # the CallStart itself, which has no text
        self._text.append(delta.text)
        return (
            self._kind.delta_event(item_id=self._id, output_index=self._index, delta=delta.text),
        )

    def close(self, status: str) -> Sequence[Event]:
        text = "".join(self._text)
        added: Sequence[Event] = ()
        if status == "completed" and self._kind.no_text and not text.strip():
            added = self.add(d.ArgumentsDelta(self._kind.no_text))
            text += self._kind.no_text
        self.item = self._build(status, text)
        place: Place = {"item_id": self._id, "output_index": self._index}
        return (
            *added,
            self._kind.done_event(place, self._start.name, text),
            self._context.done(self.item),
        )

    def _build(self, status: str, text: str) -> Item:
        fields: dict[str, Any] = {
            "status": status,
            "call_id": self._call_id,
            "name": self._start.name,
            "namespace": self._start.namespace or UNSET,
            "caller": self._start.caller or UNSET,
            self._kind.text_field: text,
        }
        return self._kind.item(id=self._id, **fields)
