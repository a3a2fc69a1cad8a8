"""Restore the open item of another server's run from its logged events.

The events are turned back into deltas and fed to the item's builder, so the same code closes every
item. Whatever a builder knew beyond its events was lost with its server: the result of a tool that
was still running, and the fields after the commands in a shell call's arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from antiphon.domain import deltas as d
from antiphon.domain import events as e
from antiphon.domain.content import OutputText, ReasoningText, Refusal
from antiphon.domain.lifecycle import EVENT_TABLES
from antiphon.domain.vocabulary.builder import BuilderContext

_DELTAS: Mapping[type[e.Event], Callable[[Any], d.Delta]] = {
    event: delta for table in EVENT_TABLES.values() for event, delta in table.deltas.items()
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
        context = BuilderContext(
            added.output_index, lambda _prefix: logged_id, e.ItemAdded, e.ItemDone, seal
        )
        self._builder = EVENT_TABLES[type(added.item)].reopen(added.item, context)
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
