"""Let the short work of one tenant go before what another has much of.

In turns, a short request waits for a busy tenant's whenever it takes one, so it takes twice as long
as usual. Here, a busy tenant's work does not begin while others have short work in progress. It
waits for 100 ms at most, and then has a turn whatever the others do. While several tenants send
requests, it also begins one by one: what is in progress already is all that others wait for.

What computes in a thread does not begin later. It pauses (see pauses), and asks here if it must.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from time import monotonic
from weakref import WeakKeyDictionary

from antiphon.application.support.fair_loop import FAIR_AFTER_OTHER_TENANT_S
from antiphon.application.support.fair_queue import UNBOUNDED, FairQueue

SHORT_S = 0.05
"""Work is short until it has taken this long."""

MAX_WAIT_S = 0.1
TURN_S = MAX_WAIT_S / 8
"""How long a tenant begins work after it has waited for `MAX_WAIT_S`."""

LINGER_S = 0.005
"""Whoever sends one request after the other sends the next one within this time. What began just
before it would be in its way."""


class Work:
    """Work in progress. It ends by itself after `SHORT_S`: nobody waits for it any longer."""

    __slots__ = ("_at_end", "_timer")

    def __init__(self, at_end: Callable[[], None]) -> None:
        self._at_end = at_end
        self._timer: asyncio.TimerHandle | None
        self._timer = asyncio.get_running_loop().call_later(SHORT_S, self.end)

    @property
    def has_ended(self) -> bool:
        return self._timer is None

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._at_end()


class Precedence:
    """Knows whose work is short, and makes the others wait for it. For one event loop."""

    def __init__(self) -> None:
        self._short: Counter[str] = Counter()
        self._responses: Counter[str] = Counter()
        """Responses that are asked for: only computations of others wait for them."""
        self._turns: dict[str, asyncio.Event] = {}
        """Of tenants that wait, or go on after they have waited for long."""
        self._one_by_one = FairQueue(UNBOUNDED, per_tenant=1)
        self._last_tenant: str | None = None
        self._shared_until = 0.0

    def note(self, tenant: str) -> None:
        """Report that this tenant is active, also with what takes no turn."""
        if self._last_tenant not in (None, tenant):
            self._shared_until = monotonic() + FAIR_AFTER_OTHER_TENANT_S
        self._last_tenant = tenant

    def begin_short(self, tenant: str) -> Work:
        """Begin work of a tenant that has nothing else waiting."""
        self.note(tenant)
        self._short[tenant] += 1
        return Work(partial(self._linger, self._short, tenant))

    def begin_response(self, tenant: str) -> Work | None:
        """Begin to prepare a response, which may take no turn; None if nobody else is active."""
        self.note(tenant)
        if not self._is_shared:
            return None
        self._responses[tenant] += 1
        return Work(partial(self._linger, self._responses, tenant))

    def must_give_way(self, tenant: str) -> bool:
        """Return whether others have short work in progress; any thread may ask."""
        return self._must_wait(tenant) or _has_others(self._responses, tenant)

    async def begin(self, tenant: str) -> Work:
        """Begin work of a tenant that has more, once nobody else's short work is in progress."""
        self.note(tenant)
        if not self._is_shared:
            return Work(_do_nothing)
        await self._one_by_one.acquire(tenant)
        release = partial(self._one_by_one.release, tenant)
        try:
            await self._give_way(tenant)
        except asyncio.CancelledError:
            release()
            raise
        return Work(release)

    @asynccontextmanager
    async def work(self, tenant: str) -> AsyncIterator[None]:
        """Do work of a tenant that has more in this block; see `begin`."""
        work = await self.begin(tenant)
        try:
            yield
        finally:
            work.end()

    @property
    def _is_shared(self) -> bool:
        return monotonic() <= self._shared_until

    def _linger(self, counts: Counter[str], tenant: str) -> None:
        asyncio.get_running_loop().call_later(LINGER_S, self._end, counts, tenant)

    def _end(self, counts: Counter[str], tenant: str) -> None:
        counts[tenant] -= 1
        if counts[tenant]:
            return
        del counts[tenant]
        for each, turn in [*self._turns.items()]:
            if not turn.is_set() and not self._must_wait(each):
                turn.set()
                del self._turns[each]

    async def _give_way(self, tenant: str) -> None:
        if not self._must_wait(tenant):
            return
        turn = self._turns.get(tenant)
        if turn is None:
            turn = self._turns[tenant] = asyncio.Event()
            asyncio.get_running_loop().call_later(MAX_WAIT_S, self._let_go_on, tenant, turn)
        await turn.wait()

    def _must_wait(self, tenant: str) -> bool:
        return _has_others(self._short, tenant)

    def _let_go_on(self, tenant: str, turn: asyncio.Event) -> None:
        if self._turns.get(tenant) is turn:
            turn.set()
            asyncio.get_running_loop().call_later(TURN_S, self._turns.pop, tenant, None)


def _has_others(counts: Counter[str], tenant: str) -> bool:
    return len(counts) > (tenant in counts)


def _do_nothing() -> None: ...


_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, Precedence] = WeakKeyDictionary()


def running_precedence() -> Precedence:
    """Return that of the running event loop."""
    loop = asyncio.get_running_loop()
    precedence = _of_loops.get(loop)
    if precedence is None:
        precedence = _of_loops[loop] = Precedence()
    return precedence
