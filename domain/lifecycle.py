"""The order of events: which event may follow which (docs/reference/events.md#order).

The order is a table, from which docs/explanation/lifecycle.md is drawn; the part of each item comes
from its kind. There are three rules:
1. Every stream begins in `START`; nothing follows `OVER`.
2. An event moves the stream along TRANSITIONS; a pair that is not in the table is illegal.
3. `ItemAdded` moves the stream to the state that OPENS names for the item's type, so at most one
item is open.
"""

from __future__ import annotations

from collections.abc import Mapping

from antiphon.domain import events as e
from antiphon.domain.errors import EventOutOfOrder
from antiphon.domain.kinds import ITEM_KINDS
from antiphon.domain.vocabulary.item import Item
from antiphon.domain.vocabulary.kind import IncompleteKind
from antiphon.domain.vocabulary.steps import ITEM_FULL, EventTable, State, Transitions

START: State = "START"
CREATED: State = "CREATED"
RUNNING: State = "RUNNING"
ERROR: State = "ERROR"
OVER: State = "OVER"

_ENDS: Mapping[type[e.Event], State] = {
    e.Completed: OVER,
    e.Incomplete: OVER,
    e.Failed: OVER,
    e.Error: ERROR,
}
_CLOSE: Mapping[type[e.Event], State] = {e.ItemDone: RUNNING}

EVENT_TABLES: Mapping[type[Item], EventTable] = {
    kind.item: table for kind in ITEM_KINDS.values() if (table := kind.event_table()) is not None
}
"""The events of each type of item that can be output."""

OPENS: Mapping[type[Item], State] = {item: table.first for item, table in EVENT_TABLES.items()}
"""The state that each type of item opens in."""


def _make_transitions() -> Transitions:
    transitions: dict[State, Mapping[type[e.Event], State]] = {
        START: {e.Created: CREATED},
        CREATED: {e.Queued: CREATED, e.InProgress: RUNNING, **_ENDS},
        RUNNING: {**_ENDS},
        ERROR: {e.Failed: OVER},
        OVER: {},
    }
    for item, table in EVENT_TABLES.items():
        for state in dict.fromkeys((*table.transitions, *table.closable)):
            if state in transitions:
                raise IncompleteKind(f"The state {state} of {item.__name__} exists already.")
            close = _CLOSE if state in table.closable else {}
            transitions[state] = {**table.transitions.get(state, {}), **close}
    transitions[ITEM_FULL] = _CLOSE
    for state in (
        *OPENS.values(),
        *(after for row in transitions.values() for after in row.values()),
    ):
        if state not in transitions:
            raise IncompleteKind(f"A kind has no row for its state {state}.")
    return transitions


TRANSITIONS = _make_transitions()
"""The states that may follow each state, by the event that leads there."""


def advance(state: State, event: e.Event) -> State:
    """Return the state after `event`. Raises: EventOutOfOrder."""
    kind = type(event)
    try:
        return TRANSITIONS[state][kind]
    except KeyError:
        pass
    if state == RUNNING and isinstance(event, e.ItemAdded) and type(event.item) in OPENS:
        return OPENS[type(event.item)]
    raise EventOutOfOrder(f"{kind.__name__} cannot follow {state}")
