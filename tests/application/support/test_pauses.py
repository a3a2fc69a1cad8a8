"""A long computation gives way to the short work of others, and always ends."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import chain, repeat
from time import monotonic, thread_time

import pytest

from antiphon.application.support.pauses import CREDIT_S, SHARE, STEP_S, Credit, Pauses, with_pauses
from antiphon.application.support.precedence import Precedence
from antiphon.application.support.threads import ComputationThreads

LIMIT_S = 30.0


def compute(seconds: float) -> int:
    """Compute for so long, in steps between which it may pause; return the number of steps."""
    return sum(1 for _ in with_pauses(steps_of(seconds)))


def steps_of(seconds: float) -> Iterator[None]:
    end = thread_time() + seconds
    while thread_time() < end:
        yield


def answers(*given: bool, then: bool) -> Callable[[], bool]:
    following = chain(given, repeat(then))
    return lambda: next(following)


@pytest.fixture
def used_up() -> Credit:
    credit = Credit()
    credit.use(CREDIT_S + 1)
    return credit


def test_items_are_the_same_with_and_without_pauses(used_up: Credit) -> None:
    items = [1, 2, 3]
    assert with_pauses(items) is items
    pauses = Pauses(used_up, answers(True, True, then=False))
    assert pauses.run(lambda: list(with_pauses(items))) == items
    assert with_pauses(items) is items


def test_it_pauses_while_others_have_short_work(used_up: Credit) -> None:
    asked = answers(True, True, True, then=False)
    started = monotonic()
    Pauses(used_up, asked).run(lambda: compute(STEP_S))
    assert monotonic() - started >= 3 * STEP_S
    assert not asked()


def test_a_tenant_with_credit_does_not_pause() -> None:
    def refuse() -> bool:
        raise AssertionError("it would pause")

    assert Pauses(Credit(), refuse).run(lambda: compute(CREDIT_S / 5))


def test_what_was_used_while_nobody_minded_is_hardly_a_debt(used_up: Credit) -> None:
    started = monotonic()
    Pauses(used_up, lambda: True).run(lambda: compute(STEP_S))
    assert monotonic() - started < 1 / SHARE  # it has used more than it may by a second


def test_it_goes_on_with_its_share_if_others_always_have_short_work(used_up: Credit) -> None:
    started = monotonic()
    Pauses(used_up, lambda: True).run(lambda: compute(0.03))
    assert monotonic() - started > 0.03 / SHARE / 2


def test_an_error_ends_the_pauses(used_up: Credit) -> None:
    with pytest.raises(ZeroDivisionError):
        Pauses(used_up, lambda: False).run(lambda: 1 // 0)
    items = [1]
    assert with_pauses(items) is items


# --- on an event loop -----------------------------------------------------------------------------


def make_used_up() -> Credit:
    """Return a credit that is not refilled."""
    credit = Credit(now=lambda: 0.0)
    credit.use(CREDIT_S + 1)
    return credit


class LongWork:
    """A computation of a tenant without credit, which notes each step."""

    def __init__(self, threads: ComputationThreads, tenant: str) -> None:
        self.steps = 0
        self._may_end = threading.Event()
        work = threads.compute(tenant, self._compute)
        self._task = asyncio.get_running_loop().create_task(work)

    def _compute(self) -> None:
        for _ in with_pauses(iter(self._may_end.is_set, True)):
            self.steps += 1

    def is_still(self) -> bool:
        """Whether it makes no step while this thread computes, for several turns of the lock."""
        seen = self.steps
        compute(4 * sys.getswitchinterval())
        return self.steps == seen

    async def end(self) -> None:
        self._may_end.set()
        await self._task


class Tenants:
    """Two heavy tenants that compute, on threads of their own."""

    def __init__(self) -> None:
        self.precedence = Precedence()
        self.threads = ComputationThreads(self.precedence, make_credit=make_used_up)
        self.heavy = [LongWork(self.threads, tenant) for tenant in ("first", "second")]
        for tenant in ("first", "second"):
            self.precedence.note(tenant)


@pytest.fixture
async def tenants() -> AsyncIterator[Tenants]:
    made = Tenants()
    await asyncio.sleep(0)  # they begin
    try:
        wait_until(lambda: all(each.steps for each in made.heavy))
        yield made
    finally:
        for each in made.heavy:
            await each.end()


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait without the event loop: short work ends by its timers."""
    started = monotonic()
    while not is_so():
        assert monotonic() - started < LIMIT_S
        compute(STEP_S)


async def test_computations_give_way_to_a_response_of_another_tenant(tenants: Tenants) -> None:
    first, second = tenants.heavy
    assert tenants.precedence.begin_response("first") is not None
    wait_until(second.is_still)
    wait_until(lambda: not first.is_still())
    work = tenants.precedence.begin_response("third")
    assert work is not None
    wait_until(lambda: first.is_still() and second.is_still())
    work.end()
    async with asyncio.timeout(LIMIT_S):
        while tenants.precedence.must_give_way("first"):  # noqa: ASYNC110 - timers end it
            await asyncio.sleep(STEP_S)
    wait_until(lambda: not first.is_still() and not second.is_still())


async def test_nobody_pauses_while_a_tenant_has_no_thread(tenants: Tenants) -> None:
    first, second = tenants.heavy
    compute_third = tenants.threads.compute("third", lambda: "done")
    waits = asyncio.get_running_loop().create_task(compute_third)
    await asyncio.sleep(0)
    tenants.precedence.begin_response("third")
    wait_until(lambda: not first.is_still() and not second.is_still())
    assert tenants.precedence.must_give_way("first")
    assert not waits.done()
    await first.end()
    assert await waits == "done"
