"""The events of the runs of this process, for their readers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from antiphon.domain.events import Event


class EventBatches(Protocol):
    """Events of one run, read once, in batches of what is ready."""

    def __aiter__(self) -> AsyncIterator[Sequence[Event]]: ...

    async def __anext__(self) -> Sequence[Event]: ...

    async def aclose(self) -> None: ...


class EventLog(Protocol):
    """The events of each run, in order, for any number of readers that do not slow the run."""

    async def create(self, response_id: str) -> None: ...

    async def append(self, response_id: str, events: Sequence[Event]) -> None:
        """Add events; their numbers continue those before them."""

    async def open(self, response_id: str, *, after: int = -1) -> EventBatches:
        """Return the events numbered above `after`, then live ones, up to a terminal event.

        What is ready comes in one batch. Raises: NotFound, here, before the first batch.
        """

    async def drop(self, response_id: str) -> None:
        """Forget the log; readers that have it open still read to its end."""

    async def abandon(self, response_id: str) -> None:
        """Forget a log that gets no terminal event here: its run goes on elsewhere, or nowhere.

        Readers that have it open get what it has, then no more. One that has its end is kept.
        """
