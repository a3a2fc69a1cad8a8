"""How many events are handed on at a time."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.domain.events import TERMINAL, Event, ItemDone, PartDone, TextDone

LONG_RUN = 500
"""From so many events on, events that repeat a whole text may be long, and a log takes long to
free."""

WHOLE = {TextDone, PartDone, ItemDone, *TERMINAL}
"""Events that repeat what the deltas before them have said."""


def cut_batch(batch: Sequence[Event]) -> Sequence[Event]:
    """Return the first events of a batch, or all. Each long event of a long run comes alone, since
    it takes milliseconds to encode."""
    if batch and batch[-1].sequence_number > LONG_RUN:
        for position, event in enumerate(batch):
            if type(event) in WHOLE:
                return batch[: max(1, position)]
    return batch
