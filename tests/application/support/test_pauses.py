"""A long computation gives way to the short work of others, and always ends."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from contextvars import copy_context
from itertools import chain, repeat
from time import monotonic, thread_time
from typing import Any

import pytest

from antiphon.application.support.fair_loop import take_loop_share
from antiphon.application.support.pauses import CREDIT_S, SHARE, STEP_S, Credit, Pauses, with_pauses
from antiphon.application.support.precedence import running_precedence
from antiphon.application.support.threads import compute_in_thread

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


def start(tenant: str, work: Callable[[], Any]) -> asyncio.Task[Any]:
    async def run() -> Any:
        await take_loop_share(tenant)
        return await compute_in_thread(work)

    return asyncio.get_running_loop().create_task(run(), context=copy_context())


async def has_begun(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, LIMIT_S)


class LongWork:
    """A tenant's computation that has used up its credit, and then notes each step."""

    def __init__(self, tenant: str) -> None:
        self.steps = 0
        self._step = threading.Event()
        self._may_end = threading.Event()
        self._is_heavy = threading.Event()
        self.task = start(tenant, self._compute)

    def _compute(self) -> None:
        compute(CREDIT_S * 1.5)
        self._is_heavy.set()
        for _ in with_pauses(iter(self._may_end.is_set, True)):
            self.steps += 1
            self._step.set()

    async def used_up(self) -> None:
        await has_begun(self._is_heavy)

    async def goes_on(self) -> None:
        self._step.clear()
        await has_begun(self._step)

    def is_still(self) -> bool:
        """Whether it makes no step while this thread computes, for several turns of the lock."""
        seen = self.steps
        compute(4 * sys.getswitchinterval())
        return self.steps == seen

    async def end(self) -> None:
        self._may_end.set()
        await self.task


def be_active(*tenants: str) -> None:
    for tenant in tenants:
        running_precedence().note(tenant)


async def test_a_computation_gives_way_to_a_response_of_another_tenant() -> None:
    be_active("heavy", "other")
    heavy = LongWork("heavy")
    await heavy.used_up()
    assert running_precedence().begin_response("heavy") is not None
    await heavy.goes_on()  # its own do not matter
    assert running_precedence().must_give_way("other")
    work = running_precedence().begin_response("other")
    assert work is not None
    assert running_precedence().must_give_way("heavy")
    started = monotonic()
    while not heavy.is_still():
        assert monotonic() - started < LIMIT_S
    work.end()
    await heavy.goes_on()
    await heavy.end()


async def test_nobody_pauses_while_a_tenant_has_no_thread() -> None:
    be_active("first", "second", "third")
    heavy = [LongWork("first"), LongWork("second")]
    for each in heavy:
        await each.used_up()
    running_precedence().begin_response("third")
    waits = start("third", lambda: "done")
    for each in heavy:
        await each.goes_on()
    assert not waits.done()
    for each in heavy:
        await each.end()
    assert await waits == "done"
