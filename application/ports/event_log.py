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
    """The events of each run, in order, for any number of readers that do not slow the run.

    Each reader has its own pace: one that is slow, cancelled or closed affects no other. A reader
    of a long log lets other tasks run in between. A terminal event ends every reader.
    """

    async def create(self, response_id: str) -> None:
        """Start an empty log, also in place of one that was abandoned."""

    async def append(self, response_id: str, events: Sequence[Event]) -> None:
        """Add events; their numbers start at 0 and continue those before them.

        Does nothing if there is no such log and no reader has it open.
        """

    async def open(self, response_id: str, *, after: int = -1) -> EventBatches:
        """Return the events numbered above `after`, then live ones, up to a terminal event.

        What is ready comes in one batch. `after` may be a number that the log has not reached yet,
        or never reaches. Raises: NotFound, here, before the first batch.
        """

    async def drop(self, response_id: str) -> None:
        """Forget the log, if there is one; readers that have it open still read to its end."""

    async def abandon(self, response_id: str) -> None:
        """Forget a log that gets no terminal event here: its run goes on elsewhere, or nowhere.

        Readers that have it open get what it has, then no more. One that has its end is kept. It
        may be unknown, dropped or abandoned already.
        """
