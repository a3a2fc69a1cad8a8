"""An event loop that is shared fairly between tenants.

A loop runs what is ready in the order in which it became ready, so a request waits in each of its
steps for a step of all the others. Beside forty requests of another tenant it takes as long as
forty. Here, each tenant has a queue of its own, and the next callback is one of the tenant that has
used the least time. What belongs to no tenant runs first: input and output, timers, health checks.

This costs something for each callback. So the loop does it only while several tenants send
requests, or while many requests come at once. Otherwise it is the loop of its base class.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar
from functools import partial
from itertools import count
from time import monotonic
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

ROUND_S = 0.001
"""How long callbacks of tenants run before the loop looks for input again."""

HEAD_START_S = 0.02
"""Time that a tenant which had nothing to do may use before the others get a turn."""

LONG_ITERATION_S = 0.02
"""An iteration of the loop that takes so long shows that many requests came at once. With 5 ms, the
first events of 64 streams of one tenant that start together came after 30 ms, not after 20."""

FAIR_AFTER_LONG_ITERATION_S = 0.05
FAIR_AFTER_OTHER_TENANT_S = 10.0
"""How long the loop is fair after an iteration like that, or a request of another tenant than the
last."""

LONG_CALLBACK_S = 0.0001
"""While callbacks take so long on average, the loop stays fair: that costs little beside them."""


class LoopShare:
    """One tenant's part of an event loop."""

    __slots__ = ("__weakref__", "has_work", "queue", "used_s")

    def __init__(self) -> None:
        self.queue: deque[asyncio.Handle] = deque()
        self.has_work = False
        """Whether it waits for its turn, or has it."""
        self.used_s = 0.0


_SHARE: ContextVar[LoopShare | None] = ContextVar("loop_share", default=None)
_TENANT: ContextVar[str] = ContextVar("tenant", default="")


if TYPE_CHECKING:
    _Loop = asyncio.AbstractEventLoop
else:
    _Loop = object


class FairLoop(_Loop):
    """A mixin for the class of an event loop: `class Loop(FairLoop, asyncio.SelectorEventLoop)`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._shares: WeakValueDictionary[str, LoopShare] = WeakValueDictionary()
        """By tenant: those that some task still uses."""
        self._last_tenant: str | None = None
        self._fair_until = 0.0
        self._is_timed = False
        """Whether the time of this iteration is taken."""
        self._waiting: list[tuple[float, int, LoopShare]] = []
        """A heap of those that have callbacks, by what they have used, and then in their order."""
        self._order = count()
        self._floor_s = 0.0
        """What a tenant is taken to have used at least: nobody can save up time."""
        self._is_scheduled = False
        self._others_wait = False
        """Whether callbacks of no tenant came after the next round was scheduled."""
        self._ran = 0
        """The callbacks that rounds have run so far."""
        self._call_soon_of_base = super().call_soon
        # What the loop itself does must not keep the context of the request that it began in.
        self._call_soon_for_loop = partial(super().call_soon, context=Context())
        self._be_plain()

    def share_of(self, tenant: str) -> LoopShare:
        """Return the share of a tenant that has something to do."""
        share = self._shares.get(tenant)
        if share is None:
            share = self._shares[tenant] = LoopShare()
        now = monotonic()
        if self._last_tenant not in (None, tenant):
            self._be_fair(now + FAIR_AFTER_OTHER_TENANT_S)
        self._last_tenant = tenant
        if not self._is_timed:
            self._is_timed = True
            self._call_soon_for_loop(self._end_iteration, now)
        return share

    def _end_iteration(self, began_at: float) -> None:
        self._is_timed = False
        now = monotonic()
        if now - began_at > LONG_ITERATION_S:
            self._be_fair(now + FAIR_AFTER_LONG_ITERATION_S)

    def _be_plain(self) -> None:
        while self._waiting:
            _, _, share = heapq.heappop(self._waiting)
            share.has_work = False
            for handle in share.queue:
                self._call_soon_for_loop(_run, handle)
            share.queue.clear()
        # Hides the method below, which would cost more than what it calls.
        self.__dict__["call_soon"] = self._call_soon_of_base

    def _be_fair(self, until: float) -> None:
        self.__dict__.pop("call_soon", None)
        self._fair_until = max(self._fair_until, until)

    @property
    def is_fair(self) -> bool:
        return "call_soon" not in self.__dict__

    def call_soon(  # type: ignore[override]  # any arguments, as the base class takes
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        share = _SHARE.get() if context is None else context.get(_SHARE)
        if share is None:
            self._others_wait = True
            return self._call_soon_of_base(callback, *args, context=context)
        handle = asyncio.Handle(callback, args, self, context)
        share.queue.append(handle)
        if not share.has_work:
            share.has_work = True
            share.used_s = max(share.used_s, self._floor_s)
            self._wait_for_turn(share)
            self._schedule()
        return handle

    def _wait_for_turn(self, share: LoopShare) -> None:
        heapq.heappush(self._waiting, (share.used_s, next(self._order), share))

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled, self._others_wait = True, False
            self._call_soon_for_loop(self._let_others_go_first)

    def _let_others_go_first(self) -> None:
        # Once only: a flood of requests that start must not keep everything else waiting.
        if self._others_wait:
            self._call_soon_for_loop(self._run_round)
        else:
            self._run_round()

    def _run_round(self) -> None:
        began_at = now = monotonic()
        ends_at, ran = began_at + ROUND_S, self._ran
        try:
            while self._waiting and now < ends_at:
                now = self._run_next(now, ends_at)
        finally:
            self._is_scheduled = False
            if now - began_at > LONG_CALLBACK_S * (self._ran - ran):
                self._be_fair(now + FAIR_AFTER_LONG_ITERATION_S)
            if now > self._fair_until:
                self._be_plain()
            elif self._waiting:
                self._schedule()

    def _run_next(self, began_at: float, ends_at: float) -> float:
        """Run callbacks of a tenant until it is another one's turn, and return the time."""
        used_s, _, share = heapq.heappop(self._waiting)
        self._floor_s = max(self._floor_s, used_s - HEAD_START_S)
        now = began_at
        try:
            while share.queue and now < ends_at:
                self._ran += 1
                _run(share.queue.popleft())
                now = monotonic()
                if self._waiting and used_s + now - began_at > self._waiting[0][0]:
                    break
        finally:
            share.used_s += now - began_at
            if share.queue:
                self._wait_for_turn(share)
            else:
                share.has_work = False
        return now


def _run(handle: asyncio.Handle) -> None:
    if not handle.cancelled():
        handle._run()


async def take_loop_share(tenant: str) -> None:
    """Let what the current task does from now on, and the tasks that it starts, be this tenant's.

    On the loop of another class, it counts for threads alone (threads.py).
    """
    _TENANT.set(tenant)
    loop = asyncio.get_running_loop()
    if not isinstance(loop, FairLoop):
        return
    _SHARE.set(loop.share_of(tenant))
    if loop.is_fair:
        await asyncio.sleep(0)  # what follows waits for the tenant's turn


def current_tenant() -> str:
    """Return whose work the current task does; "" if it is nobody's."""
    return _TENANT.get()


def current_share() -> LoopShare | None:
    """Return the share that the current task uses."""
    return _SHARE.get()
