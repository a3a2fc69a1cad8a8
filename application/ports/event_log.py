"""The events of the runs of this process, for their readers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol

from antiphon.domain.events import Event

WriteBatch = Callable[[Sequence[Event]], Awaitable[None] | None]
"""Writes a batch. If it cannot be written at once, returns what the reader must await."""


class EventBatches(Protocol):
    """Events of one run, read once, in batches of those that are ready."""

    @abstractmethod
    def __aiter__(self) -> AsyncIterator[Sequence[Event]]: ...

    @abstractmethod
    async def __anext__(self) -> Sequence[Event]: ...

    @abstractmethod
    async def aclose(self) -> None: ...

    async def forward(self, write: WriteBatch) -> None:
        """Write each batch as soon as it is ready, up to the last one.

        A log that calls `write` when events are appended saves a task's wake-up for each batch.
        Raises what `write` raises.
        """
        async for batch in self:
            if (unwritten := write(batch)) is not None:
                await unwritten


class EventLog(Protocol):
    """The events of each run, in order. Any number of readers may read them.

    A reader that is slow, cancelled or closed affects no other. A reader of a long log lets other
    tasks run in between. A terminal event ends every reader.
    """

    @abstractmethod
    async def create(self, response_id: str, tenant: str, *, is_stored: bool = False) -> None:
        """Start an empty log. It may replace an abandoned one.

        `is_stored`: the store has its events, too. A log may then end a reader that is too slow
        before the terminal event.
        """

    @abstractmethod
    async def append(self, response_id: str, events: Sequence[Event]) -> None:
        """Add events; their numbers start at 0 and continue those before them.

        Does nothing if the log does not exist and no reader has it open. A log may wait for readers
        if the tenant has too much that is not read, but never for a terminal event. Raises:
        ConcurrencyLimitExceeded, ServerOverloaded if they do not read on in time; the events are
        in the log all the same.
        """

    @abstractmethod
    async def open(self, response_id: str, *, after: int = -1) -> EventBatches:
        """Return the events after number `after`, then live ones, up to a terminal event.

        Events that are ready come in one batch. The log may not have reached `after` yet, or may
        never reach it. Raises: NotFound, before the first batch; ConcurrencyLimitExceeded,
        ServerOverloaded if the tenant reads too much at a time.
        """

    @abstractmethod
    async def drop(self, response_id: str) -> None:
        """Remove the log, if it exists. Readers that have it open still read to its end."""

    @abstractmethod
    async def abandon(self, response_id: str) -> None:
        """Remove a log that gets no terminal event here, because this server stopped its run.

        Readers that have it open get its events and then end. A log with a terminal event is not
        removed. The log may be unknown, dropped or abandoned already.
        """
