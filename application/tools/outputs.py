"""How many calls of tools run at a time, and how much those of one response may return together.

The limit of one call does not bound a response, which may make any number of them side by side, nor
a tenant, who may have any number of responses.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from antiphon.application.support.bytes_in_work import BytesInWork, HeldBytes
from antiphon.application.support.fair_queue import UNBOUNDED, FairQueue, Place
from antiphon.application.tools.budgets import MAX_PARALLEL_CALLS
from antiphon.domain.errors import ConcurrencyLimitExceeded, RequestError

MAX_CALLS_OF_TENANT = 128
"""Calls of one tenant that run at the same time; the others wait. Each may have some hundred
kilobytes in the buffers of its connection, which do not count."""

MAX_WAITING_OF_TENANT = MAX_CALLS_OF_TENANT // (2 * MAX_PARALLEL_CALLS)
"""Responses of one tenant that may wait for room. Their calls keep half of the slots at most, so
that others go on, and end."""

NO_ROOM = (
    "The output of this call was left out: the server has no room for more output of tools now."
)
_WIDEST = re.compile(rb"[\xf0-\xff]")


class ToolRoom:
    """The room that the calls of all responses of a process share."""

    def __init__(self, bytes_in_work: BytesInWork) -> None:
        self._bytes_in_work = bytes_in_work
        self.calls = FairQueue(UNBOUNDED, per_tenant=MAX_CALLS_OF_TENANT)
        self._waiting: defaultdict[str, list[HeldBytes]] = defaultdict(list)
        """What the responses of each tenant hold that wait for more."""

    def open_response(self, tenant: str, max_bytes: int) -> ResponseOutputs:
        """Return what counts the output of one response, until it is released."""
        return ResponseOutputs(max_bytes, self, self._bytes_in_work.hold(tenant, "tool_outputs"))

    async def resize(self, held: HeldBytes, size: int) -> None:
        """Wait until a response may hold so many bytes. Raises: RequestError if it may not.

        It may not wait if too many do, or if only those hold bytes that wait, too: one of them has
        to end.
        """
        tenant = held.tenant
        if self._bytes_in_work.has_room(tenant, size - held.counted):
            held.resize(size)
            return
        waiting = self._waiting[tenant]
        stuck = sum(each.counted for each in waiting)
        if len(waiting) >= MAX_WAITING_OF_TENANT or stuck + size > self._bytes_in_work.share:
            raise no_room_error()
        waiting.append(held)
        try:
            await held.wait_for(size)
        finally:
            waiting.remove(held)
            if not waiting:
                self._waiting.pop(tenant, None)


def no_room_error() -> RequestError:
    return ConcurrencyLimitExceeded(NO_ROOM, code="rate_limit_exceeded")


class ResponseOutputs:
    """The output of all tool calls of one response: at most `max_bytes` of JSON.

    It counts as `held`, with all that is read for it, from before it is read until `release`.
    Without a `room`, it does not.
    """

    def __init__(
        self, max_bytes: int, room: ToolRoom | None = None, held: HeldBytes | None = None
    ) -> None:
        self._max_bytes = max_bytes
        self._room = room
        self._held = held
        self._returned = 0
        self._counted = 0
        self._turns = asyncio.Lock()
        self._no_room: RequestError | None = None
        self._places: set[Place] = set()
        self.refusal: str | None = None
        """Why no further call may run, as the model reads it."""

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Hold a slot for a call in this block. A call that may not run needs none."""
        if self._room is None or self._held is None or self.refusal is not None:
            yield
            return
        calls = self._room.calls
        place = calls.join(self._held.tenant)
        self._places.add(place)
        try:
            await asyncio.wait({place.turn})
            yield
        finally:
            self._places.discard(place)
            calls.leave(place)

    def open_call(self) -> CountedOutput:
        return CountedOutput(self)

    def spend(self, size: int) -> str | None:
        """Count output in bytes of JSON. Return the reason if it is too much, and keep none."""
        if self._returned + size > self._max_bytes:
            self._refuse_all(
                "This call was not run: the tools of this response have returned the "
                f"{self._max_bytes} bytes that they may return together."
            )
            return (
                "The output of this call was left out: the tools of a response may return "
                f"{self._max_bytes} bytes together."
            )
        self._returned += size
        return None

    def _refuse_all(self, reason: str) -> None:
        """Let no further call run, nor wait for a slot, which those may have that wait for room."""
        self.refusal = self.refusal or reason
        for place in self._places:
            place.turn.cancel()

    async def grow(self, size: int) -> None:
        """Wait until there is room for so many bytes more. Raises: RequestError if there is not.

        Then there is none for the calls that follow: the response ends, and gives back its bytes.
        """
        async with self._turns:
            if self._no_room is not None:
                raise self._no_room
            if self._room is not None and self._held is not None:
                try:
                    await self._room.resize(self._held, self._counted + size)
                except RequestError as error:
                    self._no_room = error
                    self._refuse_all(NO_ROOM)
                    raise
            self._counted += size

    def shrink(self, size: int) -> None:
        self._counted -= size
        if self._held is not None:
            self._held.resize(self._counted)

    def release(self) -> None:
        """Give back all bytes: nothing has the output anymore but the store and its readers."""
        if self._held is not None:
            self._held.release()
            self._held = None


class CountedOutput:
    """The bytes that one call reads and returns."""

    def __init__(self, outputs: ResponseOutputs) -> None:
        self._outputs = outputs
        self._read = 0
        self._kept = 0
        self._counted = 0

    async def read(self, size: int) -> None:
        """Wait for room for bytes that will be read. Raises: RequestError if there is none."""
        self._read += size
        await self._grow()

    async def keep(self, encoded: bytes) -> str | None:
        """Count output, as JSON. Return the reason if it is too much, and must not be kept."""
        if (reason := self._outputs.spend(len(encoded))) is not None:
            return reason
        self._kept += _memory_of(encoded)
        try:
            await self._grow()
        except RequestError:
            return NO_ROOM
        return None

    def end(self) -> None:
        """Give back what was read and not kept."""
        self._outputs.shrink(self._counted - min(self._counted, self._kept))

    async def _grow(self) -> None:
        # What was read becomes what is kept: both are never there at the same time for long.
        if (more := max(self._read, self._kept) - self._counted) > 0:
            await self._outputs.grow(more)
            self._counted += more


def _memory_of(encoded: bytes) -> int:
    """Return about how many bytes its texts take: all characters of one are as wide as the widest.

    >>> _memory_of(b"abc"), _memory_of("ab\\u00e9".encode()), _memory_of("\\U0001f600".encode())
    (3, 8, 16)
    """
    if encoded.isascii():
        return len(encoded)
    return len(encoded) * (4 if _WIDEST.search(encoded) else 2)
