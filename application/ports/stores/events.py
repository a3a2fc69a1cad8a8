"""The logs of runs that outlive their process."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from antiphon.application.ports.stores.runs import Lease


class EventChunk(Struct, frozen=True, kw_only=True):
    """`count` consecutive events of one run, encoded (event_chunks.py).

    The first has the number `first`. `body` may be any bytes, which a store does not change.
    """

    first: int
    count: int
    body: bytes


class LogSlice(Struct, frozen=True, kw_only=True):
    """A part of a log. `ends`: no chunk follows these."""

    chunks: Sequence[EventChunk]
    ends: bool


LOG_READ_BYTES = 4 * 2**20
"""The default size of a read from a log."""


class EventStore(Protocol):
    """The events of runs whose log is in the store, in order and without gaps."""

    @abstractmethod
    async def append_events(self, lease: Lease, events: EventChunk) -> bool:
        """Add events to a log that was created with its response; a log has no gaps.

        Return False, and write nothing, if the lease is void. Adding the same chunk again changes
        nothing and returns True. Raises: StoreError, and writes nothing, for any other chunk whose
        first number does not follow the last one, and for a response without a log.
        """

    @abstractmethod
    async def read_events(
        self, tenant: str, response_id: str, *, after: int = -1, limit_bytes: int = LOG_READ_BYTES
    ) -> LogSlice:
        """Return the chunks from the one with number `after + 1` on: about `limit_bytes`, but at
        least one chunk if there is any.

        If `after` is the last number of the previous call, nothing is returned twice. A log ends
        when its run has ended. Raises: NotFound for an unknown response, or one without a log here.
        """

    @abstractmethod
    async def wait_for_events(
        self, tenant: str, response_id: str, *, after: int = -1, limit_s: float
    ) -> None:
        """Return when the log may have events after number `after`, has ended, or is gone.

        Return after `limit_s` at the latest, and not much later than 100 ms after another process
        wrote an event. Never raises NotFound: an unknown log is gone.
        """
