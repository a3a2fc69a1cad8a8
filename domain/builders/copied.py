"""Show an item of a sub-agent's response again, in the response of the agent that started it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, groupby
from typing import Any

import msgspec
from msgspec.structs import replace

from antiphon.domain import deltas as d
from antiphon.domain.events import EVENT_TYPES, Event, ItemDone
from antiphon.domain.vocabulary.builder import BuilderContext

_OF_ONE_DELTA = frozenset({"sequence_number", "delta", "logprobs"})


def join_deltas(events: Iterable[Event]) -> list[Event]:
    """Return the events with those joined that add text to the same place, one after the other.

    The item is shown when it is complete, so nobody sees its text sooner by more events; and a long
    text is hundreds of thousands of them.
    """
    joined: list[Event] = []
    for place, group in groupby(events, _place_of):
        deltas: list[Any] = [*group]
        first = deltas[0]
        if place is None or len(deltas) == 1:
            joined += deltas
        else:
            changes: dict[str, Any] = {"delta": "".join(each.delta for each in deltas)}
            if hasattr(first, "logprobs"):
                changes["logprobs"] = tuple(chain.from_iterable(each.logprobs for each in deltas))
            joined.append(replace(first, **changes))
    return joined


def _place_of(event: Any) -> tuple[Any, ...] | None:
    """Return where a delta of a text belongs; None for any other event."""
    if type(getattr(event, "delta", None)) is not str:
        return None
    names = event.__struct_fields__
    return (type(event), *(getattr(event, name) for name in names if name not in _OF_ONE_DELTA))


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
