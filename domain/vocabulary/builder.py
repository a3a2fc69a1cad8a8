"""Builders of output items: open the item, add deltas to it, and close it.

A builder's events have no numbers yet. The same code closes an item whether it is complete or was
cut off by a limit or a failure; only the status differs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from msgspec import UNSET, Struct
from msgspec.structs import force_setattr

from antiphon.domain import deltas as d
from antiphon.domain.vocabulary.event import Event
from antiphon.domain.vocabulary.item import Agent, Item


class NewItemEvent(Protocol):
    """ItemAdded or ItemDone: they hold any item, so they are defined above all kinds."""

    def __call__(self, *, output_index: int, item: Any) -> Event: ...


class BuilderContext(Struct, frozen=True):
    """The context of a builder.

    `seal` encrypts reasoning for the client, None if not requested. `created_at` is when the
    response was created, in seconds since the epoch. `agent` makes the item, if the response has
    sub-agents.
    """

    output_index: int
    new_id: Callable[[str], str]
    item_added: NewItemEvent
    item_done: NewItemEvent
    seal: Callable[[str], str] | None = None
    created_at: int = 0
    agent: Agent | None = None

    def added(self, item: Item) -> Event:
        """Return the event that shows the item when it opens."""
        return self.item_added(
            output_index=self.output_index, item=self._mark(item) if self.agent else item
        )

    def done(self, item: Item) -> Event:
        """Return the event that shows the final item."""
        return self.item_done(
            output_index=self.output_index, item=self._mark(item) if self.agent else item
        )

    def _mark(self, item: Item) -> Item:
        # Builders keep the item that they show, and nobody else has seen it yet.
        if item.agent is UNSET:
            force_setattr(item, "agent", self.agent)
        return item


class Builder(Protocol):
    """Builds the open item for the sequencer."""

    def open(self) -> Sequence[Event]:
        """Return ItemAdded and what opens the item with it; nothing if it is too early."""

    def accepts(self, delta: d.Delta) -> bool: ...

    def add(self, delta: d.Delta) -> Sequence[Event]: ...

    def close(self, status: str) -> Sequence[Event]:
        """Return the closing events, ItemDone last; `item` is final afterwards."""

    @property
    def item(self) -> Any:
        """The current item."""


class BuilderFactory(Protocol):
    def __call__(self, delta: Any, context: BuilderContext, /) -> Builder: ...
