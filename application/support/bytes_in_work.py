"""One account of the bytes that the process works on: of requests, histories, outputs, and files.

A limit of one body, one call or one connection does not bound the memory of many. So whatever is
large draws on this account before it is read. What has not begun (a body, a message, a history, a
file) is refused if there is no room. What runs (a tool's output, a model's text, frames out) waits,
and fails with a defined end when its wait is over.

Nobody holds more than what is left free: at most one half of all, and one third while another
tenant holds as much. So there is always room for a tenant that comes (the dynamic thresholds of
Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998).

Work that holds bytes may wait for more, and so may all others. Waits are bounded, so the first one
that is over ends its work and makes room. To wait rarely, reserve the most that may come, read, and
resize to what came.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Literal, get_args

from msgspec import Struct

from antiphon.domain.errors import ConcurrencyLimitExceeded, RequestError, ServerOverloaded

Subject = Literal[
    "requests", "frames_out", "histories", "tool_outputs", "model_output", "media", "files"
]
SUBJECTS: tuple[Subject, ...] = get_args(Subject)

FREE_BYTES = 64 * 1024
"""Of each holder. Most bodies are smaller, and a connection buffers as much anyway."""

TENANTS_SHARE = 2
"""A tenant may have one part in this many of all bytes."""

PLENTY = 4
"""Of its share, a tenant should use one part in this many for what could be without."""

MAX_BYTES = 128 * 1024 * 1024
WAIT_S = 30.0
"""How long work that runs waits for room, unless it says otherwise."""

STREAM_WAIT_S = 3600.0
"""A stream waits for room as long as it must: clients that read nothing are disconnected."""


class _Wait(Struct, frozen=True, eq=False):
    """Work that waits for room. Its `turn` is done once its bytes count."""

    subject: Subject
    size: int
    turn: asyncio.Future[None]


class BytesInWork:
    """The bytes of all work of one process, by tenant and by subject.

    Only one event loop may use it. `share` is the most that a tenant may ever hold.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self.share = max_bytes // TENANTS_SHARE
        self._total = 0
        self._by_tenant: dict[str, int] = {}
        self._by_subject: dict[str, int] = dict.fromkeys(SUBJECTS, 0)
        # In the order of their turns: a tenant whose work gets room goes to the end.
        self._waiting: OrderedDict[str, deque[_Wait]] = OrderedDict()

    @property
    def total(self) -> int:
        return self._total

    @property
    def by_subject(self) -> Mapping[str, int]:
        return self._by_subject

    @property
    def waiting(self) -> int:
        """How many wait for room."""
        return sum(map(len, self._waiting.values()))

    def held_by(self, tenant: str) -> int:
        return self._by_tenant.get(tenant, 0)

    def hold(self, tenant: str, subject: Subject, *, free: int = FREE_BYTES) -> HeldBytes:
        """Return what counts the bytes of one piece of work until the block that it opens ends.

        Up to `free` bytes of it do not count at all.
        """
        return HeldBytes(self, tenant, subject, free)

    def has_room(self, tenant: str, size: int) -> bool:
        """Whether the tenant may hold so many bytes more, and nothing of it waits for room."""
        return tenant not in self._waiting and self._refusal(tenant, size) is None

    def add(self, tenant: str, subject: Subject, size: int) -> None:
        """Count bytes, or give them back if `size` is negative.

        Raises: ConcurrencyLimitExceeded, ServerOverloaded, and then counts nothing.
        """
        if size > 0 and (refusal := self._refusal(tenant, size)) is not None:
            raise refusal
        self._count(tenant, subject, size)
        if size < 0 and self._waiting:
            self._serve()

    async def wait_to_add(
        self, tenant: str, subject: Subject, size: int, *, timeout_s: float = WAIT_S
    ) -> None:
        """Count bytes as soon as there is room for them: tenants take turns, and the work of one
        tenant has the order in which it came.

        Raises: ConcurrencyLimitExceeded, ServerOverloaded, when the time is over, or at once if
        there can never be room; and then counts nothing.
        """
        if size <= 0 or self.has_room(tenant, size):
            self.add(tenant, subject, size)
            return
        if size > self.share:
            raise self._above_share()
        wait = _Wait(subject, size, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(tenant, deque()).append(wait)
        try:
            async with asyncio.timeout(timeout_s):
                await wait.turn
        except TimeoutError:
            self._leave(tenant, wait)
            raise self._refusal(tenant, size) or self._overloaded() from None
        except asyncio.CancelledError:
            self._leave(tenant, wait)
            raise

    def _refusal(self, tenant: str, size: int) -> RequestError | None:
        own = self.held_by(tenant) + size
        if own > self.share:
            return self._above_share()
        if own > self.max_bytes - self._total - size:
            return self._overloaded()
        return None

    def _above_share(self) -> ConcurrencyLimitExceeded:
        return ConcurrencyLimitExceeded(
            f"Your requests in progress would have more than {self.share} bytes. Send this one "
            "again when others have ended.",
            code="rate_limit_exceeded",
        )

    def _overloaded(self) -> ServerOverloaded:
        return ServerOverloaded("The server has too many large requests. Try again later.")

    def _count(self, tenant: str, subject: Subject, size: int) -> None:
        self._total += size
        self._by_subject[subject] += size
        if own := self.held_by(tenant) + size:
            self._by_tenant[tenant] = own
        else:
            self._by_tenant.pop(tenant, None)

    def _serve(self) -> None:
        while (tenant := self._next_tenant()) is not None:
            wait = self._waiting[tenant].popleft()
            self._waiting.move_to_end(tenant)
            if not self._waiting[tenant]:
                del self._waiting[tenant]
            if not wait.turn.done():  # it may have been cancelled in this iteration of the loop
                self._count(tenant, wait.subject, wait.size)
                wait.turn.set_result(None)

    def _next_tenant(self) -> str | None:
        # Unlike in a FairQueue, what fits may overtake what does not: it may hold bytes already,
        # and if it stood still, so would those who wait for its bytes.
        for tenant, waits in self._waiting.items():
            if waits[0].turn.done() or self._refusal(tenant, waits[0].size) is None:
                return tenant
        return None

    def _leave(self, tenant: str, wait: _Wait) -> None:
        if wait.turn.done() and not wait.turn.cancelled():
            self.add(tenant, wait.subject, -wait.size)  # its turn came meanwhile
            return
        waits = self._waiting.get(tenant, deque())
        if wait in waits:
            waits.remove(wait)
            if not waits:
                del self._waiting[tenant]
            self._serve()  # those behind may need less


class HeldBytes:
    """The bytes of one piece of work, as far as they count."""

    __slots__ = ("_bytes_in_work", "_counted", "_free", "subject", "tenant")

    def __init__(
        self, bytes_in_work: BytesInWork, tenant: str, subject: Subject, free: int = FREE_BYTES
    ) -> None:
        self._bytes_in_work = bytes_in_work
        self.tenant = tenant
        self.subject: Subject = subject
        self._free = free
        self._counted = 0

    def __enter__(self) -> HeldBytes:
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self.release()

    @property
    def counted(self) -> int:
        return self._counted

    @property
    def most(self) -> int:
        """The most that one piece of work should ask for: others hold bytes, too."""
        return self._bytes_in_work.share // 2

    @property
    def is_tight(self) -> bool:
        """Whether the tenant has so much that it should keep only what it must."""
        work = self._bytes_in_work
        return work.held_by(self.tenant) > work.share // PLENTY

    def resize(self, size: int) -> None:
        """Say how many bytes there are now.

        Raises: ConcurrencyLimitExceeded, ServerOverloaded if too many; then nothing has changed.
        """
        counted = size if size > self._free else 0
        if counted != self._counted:
            self._bytes_in_work.add(self.tenant, self.subject, counted - self._counted)
            self._counted = counted

    async def wait_for(self, size: int, *, timeout_s: float = WAIT_S) -> None:
        """Wait until there may be `size` bytes, all of which count from then on.

        Only one call at a time may wait. What `resize` gives back meanwhile is not counted again.
        Raises: ConcurrencyLimitExceeded, ServerOverloaded when the time is over, or at once if
        there can never be room; then nothing has changed.
        """
        counted = size if size > self._free else 0
        if counted != self._counted:
            more = counted - self._counted
            await self._bytes_in_work.wait_to_add(
                self.tenant, self.subject, more, timeout_s=timeout_s
            )
            self._counted += more

    def release(self) -> None:
        """Give all bytes back."""
        self.resize(0)


Draw = Callable[[int], Awaitable[None]]
"""Counts so many bytes more, which waits until there is room. Raises: RequestError."""

_DRAW: ContextVar[Draw | None] = ContextVar("draw", default=None)


def draw_on(draw: Draw) -> None:
    """Let what the current task reads from now on be counted by this."""
    _DRAW.set(draw)


async def draw_bytes(size: int) -> None:
    """Count bytes before they are read for the work of the current task, if it has an account.

    Raises: RequestError if there is no room.
    """
    if (draw := _DRAW.get()) is not None:
        await draw(size)
