"""Pauses of long computations in threads, while other tenants have short work in progress.

Two threads that compute take half of the interpreter's time from each other, and the event loop
waits for both. So a tenant that has computed for long gets SHARE of the time while others want it;
all of it otherwise. A loop that may take long pauses between its items:

    for item in with_pauses(items): ...
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from time import monotonic, sleep, thread_time
from typing import TypeVar

T = TypeVar("T")

STEP_S = 0.002
"""How long a computation goes on, or pauses, until it looks again."""

SHARE = 1 / 6
"""The part of the time that it has then: the work of others takes at most a fifth longer."""

CREDIT_S = 0.25
"""How long a tenant may compute before it pauses. A conversation of 9,000 items takes as long."""

MAX_DEBT_S = 0.02
"""A tenant owes no more than this for what it used while nobody minded."""

_running = threading.local()
"""The `pauses` of the computation in this thread."""


def with_pauses(items: Iterable[T]) -> Iterable[T]:
    """Return the items for a loop that may take long. Outside of threads, there are no pauses."""
    pauses: Pauses | None = getattr(_running, "pauses", None)
    return items if pauses is None else pauses.between(items)


class Credit:
    """The time that a tenant may compute whatever others do. One thread uses it at a time."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._left_s = CREDIT_S
        self._at = now()

    @property
    def is_used_up(self) -> bool:
        self._refill()
        return self._left_s <= 0

    def use(self, seconds: float) -> None:
        self._refill()
        self._left_s = max(self._left_s - seconds, -MAX_DEBT_S)

    def _refill(self) -> None:
        now = self._now()
        self._left_s = min(self._left_s + SHARE * (now - self._at), CREDIT_S)
        self._at = now


class Pauses:
    """The pauses of one computation: while its tenant has no credit, and others have short work."""

    def __init__(self, credit: Credit, must_give_way: Callable[[], bool]) -> None:
        self._credit = credit
        self._must_give_way = must_give_way
        self._next_at = self._used_s = 0.0

    def run(self, work: Callable[[], T]) -> T:
        """Return `work()`, in this thread."""
        self._used_s = thread_time()
        _running.pauses = self
        try:
            return work()
        finally:
            del _running.pauses
            self._use_credit()

    def between(self, items: Iterable[T]) -> Iterator[T]:
        for item in items:
            if monotonic() > self._next_at:
                self._pause()
            yield item

    def _pause(self) -> None:
        self._use_credit()
        while self._credit.is_used_up and self._must_give_way():
            sleep(STEP_S)
        self._next_at = monotonic() + STEP_S

    def _use_credit(self) -> None:
        used_s = thread_time()
        self._credit.use(used_s - self._used_s)
        self._used_s = used_s
