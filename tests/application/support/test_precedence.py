"""A busy tenant's work begins when nobody else has short work, but it always begins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from time import monotonic

import pytest

from antiphon.application.support.fair_loop import FAIR_AFTER_OTHER_TENANT_S
from antiphon.application.support.precedence import (
    LINGER_S,
    MAX_WAIT_S,
    SHORT_S,
    TURN_S,
    Precedence,
    Work,
)

LIMIT_S = 30.0


@pytest.fixture(autouse=True)
async def limit() -> AsyncIterator[None]:
    async with asyncio.timeout(LIMIT_S):
        yield


@pytest.fixture
def precedence() -> Precedence:
    """Of two active tenants, of which none has work in progress."""
    precedence = Precedence()
    for tenant in ("other", "busy"):
        precedence.note(tenant)
    return precedence


async def have_short_work_always(precedence: Precedence, tenant: str) -> None:
    """Begin short work before the last has ended, again and again."""
    work = precedence.begin_short(tenant)
    while True:
        await asyncio.sleep(SHORT_S / 2)
        following = precedence.begin_short(tenant)
        work.end()
        work = following


def begin_at_once(precedence: Precedence, tenant: str) -> Work:
    """Begin work of a tenant that does not have to wait."""
    with pytest.raises(StopIteration) as begun:
        precedence.begin(tenant).send(None)
    work = begun.value.value
    assert isinstance(work, Work)
    return work


async def need_not_give_way(precedence: Precedence, tenant: str) -> None:
    while precedence.must_give_way(tenant):  # noqa: ASYNC110 - timers end it
        await asyncio.sleep(LINGER_S)


async def test_a_busy_tenant_waits_until_the_short_work_of_another_has_ended(
    precedence: Precedence,
) -> None:
    short = precedence.begin_short("other")
    busy = asyncio.create_task(precedence.begin("busy"))
    await asyncio.sleep(0)
    assert not busy.done()
    ended_at = monotonic()
    short.end()
    await busy
    assert monotonic() - ended_at >= LINGER_S - 0.001


async def test_the_next_of_several_short_requests_finds_nothing_begun(
    precedence: Precedence,
) -> None:
    precedence.begin_short("other").end()
    busy = asyncio.create_task(precedence.begin("busy"))
    await asyncio.sleep(0)
    precedence.begin_short("other").end()
    ended_at = monotonic()
    await busy
    assert monotonic() - ended_at >= LINGER_S - 0.001


async def test_work_that_takes_long_is_not_waited_for(precedence: Precedence) -> None:
    began_at = monotonic()
    work = precedence.begin_short("other")
    await precedence.begin("busy")
    assert work.has_ended
    assert monotonic() - began_at >= SHORT_S - 0.001


async def test_a_tenant_does_not_wait_for_its_own_short_work(precedence: Precedence) -> None:
    short = precedence.begin_short("busy")
    await precedence.begin("busy")
    assert not short.has_ended


async def test_short_work_that_never_ends_leaves_turns_to_a_busy_tenant(
    precedence: Precedence,
) -> None:
    others = asyncio.create_task(have_short_work_always(precedence, "other"))
    await asyncio.sleep(0)
    for _ in range(2):
        began_at = monotonic()
        (await precedence.begin("busy")).end()
        assert monotonic() - began_at >= MAX_WAIT_S - 0.001
        begin_at_once(precedence, "busy").end()
        await asyncio.sleep(TURN_S)
    others.cancel()


async def test_two_tenants_with_short_work_wait_for_each_other_only_if_they_are_busy(
    precedence: Precedence,
) -> None:
    first, second = precedence.begin_short("a"), precedence.begin_short("b")
    busy = [asyncio.create_task(precedence.begin(tenant)) for tenant in "ab"]
    await asyncio.sleep(0)
    first.end()
    await busy[1]
    assert not busy[0].done()
    second.end()
    await busy[0]


async def begun(precedence: Precedence, count: int) -> tuple[list[asyncio.Task[Work]], list[Work]]:
    tasks = [asyncio.create_task(precedence.begin("busy")) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks, [task.result() for task in tasks if task.done()]


async def test_a_busy_tenant_begins_one_by_one_beside_others(precedence: Precedence) -> None:
    tasks, works = await begun(precedence, 3)
    assert len(works) == 1
    works[0].end()
    (await tasks[1]).end()
    (await tasks[2]).end()


async def test_work_that_takes_long_makes_room_for_the_next(precedence: Precedence) -> None:
    tasks, _ = await begun(precedence, 2)
    await tasks[1]
    assert tasks[0].result().has_ended


async def test_a_tenant_alone_begins_at_once_whatever_it_has() -> None:
    alone = Precedence()
    works = [begin_at_once(alone, "busy") for _ in range(3)]
    assert not any(work.has_ended for work in works)


async def test_a_tenant_is_alone_again_after_a_while(
    precedence: Precedence, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = monotonic() + FAIR_AFTER_OTHER_TENANT_S + 1
    monkeypatch.setattr("antiphon.application.support.precedence.monotonic", lambda: later)
    for _ in range(3):
        begin_at_once(precedence, "busy")


@pytest.mark.parametrize("leaving", [0, 1])
async def test_work_that_is_cancelled_while_it_waits_lets_the_next_begin(
    precedence: Precedence, leaving: int
) -> None:
    short = precedence.begin_short("other")
    tasks, _ = await begun(precedence, 2)
    tasks[leaving].cancel()
    short.end()
    (await tasks[1 - leaving]).end()
    async with precedence.work("busy"):
        pass


async def test_an_error_ends_the_work(precedence: Precedence) -> None:
    with pytest.raises(ZeroDivisionError):
        async with precedence.work("busy"):
            raise ZeroDivisionError
    begin_at_once(precedence, "busy")


async def test_a_response_makes_computations_of_others_give_way_until_a_moment_after_it(
    precedence: Precedence,
) -> None:
    work = precedence.begin_response("other")
    assert work is not None
    assert precedence.must_give_way("busy")
    assert not precedence.must_give_way("other")
    begin_at_once(precedence, "busy").end()  # requests that take turns do not wait for it
    work.end()
    assert precedence.must_give_way("busy")
    await need_not_give_way(precedence, "busy")


async def test_a_long_response_is_waited_for_as_if_it_were_short(precedence: Precedence) -> None:
    assert precedence.begin_response("other") is not None
    await need_not_give_way(precedence, "busy")


async def test_the_only_active_tenant_has_nobody_to_give_way_to() -> None:
    assert Precedence().begin_response("only") is None


async def test_short_work_that_takes_a_turn_makes_computations_give_way_too(
    precedence: Precedence,
) -> None:
    work = precedence.begin_short("other")
    assert precedence.must_give_way("busy")
    work.end()
