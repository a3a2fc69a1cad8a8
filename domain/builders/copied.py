"""Show an item of a sub-agent's response again, in the response of the agent that started it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from antiphon.domain import deltas as d
from antiphon.domain.events import EVENT_TYPES, Event, ItemDone
from antiphon.domain.vocabulary.builder import BuilderContext


class CopiedItem:
    """An item with all of its events, which keep their agent; only their places are new."""

    def __init__(self, update: d.AgentUpdate, context: BuilderContext) -> None:
        events = (msgspec.convert(each, EVENT_TYPES[each["type"]]) for each in update.events)
        *self._events, self._done = (
            replace(event, output_index=context.output_index) for event in events
        )

    @property
    def item(self) -> Any:
        assert isinstance(self._done, ItemDone)
        return self._done.item

    def open(self) -> Sequence[Event]:
        return self._events

    def accepts(self, delta: d.Delta) -> bool:  # noqa: ARG002 - it is complete
        return False

    def add(self, delta: d.Delta) -> Sequence[Event]:  # noqa: ARG002
        return ()

    def close(self, status: str) -> Sequence[Event]:  # noqa: ARG002
        return (self._done,)
