"""Tenants share an event loop fairly, and one alone uses it as if it were any loop."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from antiphon.adapters.stores.memory.event_log import MemoryEventLog
from antiphon.application.support.fair_loop import (
    HEAD_START_S,
    LONG_ITERATION_S,
    FairLoop,
    LoopShare,
    current_share,
    take_loop_share,
)
from antiphon.application.support.tasks import call_soon_for_all, start_shared_task
from antiphon.domain.callers import Caller
from antiphon.entrypoints.http.access.turns import ShareLoop
from antiphon.entrypoints.http.wire.dispatch import Dispatcher

STEP_S = 0.002
"""Longer than a round: each step of this length is the last of its round."""


class Uvloop(FairLoop, uvloop.Loop): ...


class Selector(FairLoop, asyncio.SelectorEventLoop): ...


Run = Callable[[Coroutine[Any, Any, Any]], None]


def run_in(loop: Callable[[], asyncio.AbstractEventLoop], work: Coroutine[Any, Any, Any]) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(work)


@pytest.fixture(params=[Uvloop, Selector])
def run(request: pytest.FixtureRequest) -> Run:
    return partial(run_in, request.param)


def spin(seconds: float = STEP_S) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


async def as_tenant(tenant: str, work: Callable[..., Awaitable[Any]], *args: Any) -> Any:
    await take_loop_share(tenant)
    return await work(*args)


async def take_steps(steps: list[str], name: str, count: int) -> None:
    for _ in range(count):
        spin()
        steps.append(name)
        await asyncio.sleep(0)


async def let_two_tenants_be_active() -> None:
    for tenant in ("a", "b"):
        await asyncio.create_task(as_tenant(tenant, asyncio.sleep, 0))


def test_each_step_of_a_tenant_waits_for_one_step_of_a_busier_one(run: Run) -> None:
    steps: list[str] = []

    async def main() -> None:
        await let_two_tenants_be_active()
        busy = [
            asyncio.create_task(as_tenant("busy", take_steps, steps, "busy", 6)) for _ in range(40)
        ]
        while steps.count("busy") < 41:  # noqa: ASYNC110 - now the loop knows what they cost
            await asyncio.sleep(0)
        before = len(steps)
        await asyncio.create_task(as_tenant("other", take_steps, steps, "other", 5))
        assert len(steps) - before <= 2 * 5 + 1
        await asyncio.gather(*busy)

    run(main())
    assert steps.count("busy") == 240


def test_input_and_output_wait_for_no_more_than_a_round(run: Run) -> None:
    async def main() -> None:
        await let_two_tenants_be_active()
        steps: list[str] = []
        busy = [asyncio.create_task(as_tenant("a", take_steps, steps, "a", 40)) for _ in range(40)]
        await asyncio.sleep(0)
        for _ in range(10):
            before = len(steps)
            await asyncio.sleep(0)  # of no tenant
            assert len(steps) - before <= 1
        for task in busy:
            task.cancel()
        await asyncio.wait(busy)

    run(main())


def test_a_tenant_that_did_nothing_cannot_save_up_time(run: Run) -> None:
    order: list[str] = []

    async def main() -> None:
        await let_two_tenants_be_active()
        busy = asyncio.create_task(as_tenant("a", take_steps, order, "a", 100))
        while len(order) < 50:  # noqa: ASYNC110 - what counts is the loop's order
            await asyncio.sleep(0)
        late = asyncio.create_task(as_tenant("b", take_steps, order, "b", 50))
        await asyncio.gather(busy, late)

    run(main())
    joint = order[order.index("b") :]
    head_start = joint.index("a")
    # Steps take longer on a busy machine, so more of the others fit beside them.
    assert head_start <= 2 * HEAD_START_S / STEP_S + 2
    assert joint[head_start : head_start + 40].count("a") == pytest.approx(20, abs=8)


def test_the_loop_is_plain_while_one_tenant_is_active(run: Run) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, FairLoop)
        for tenant, is_fair in (("a", False), ("a", False), ("b", True), ("b", True)):
            await as_tenant(tenant, asyncio.sleep, 0)
            assert loop.is_fair == is_fair

    run(main())


def test_the_loop_is_fair_after_an_iteration_that_took_long(run: Run) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, FairLoop)
        await take_loop_share("a")
        spin(2 * LONG_ITERATION_S)
        await asyncio.sleep(0)
        assert loop.is_fair

    run(main())


@pytest.mark.parametrize("setting", ["FAIR_AFTER_OTHER_TENANT_S", "FAIR_AFTER_LONG_ITERATION_S"])
def test_the_loop_is_plain_again_after_a_while(
    run: Run, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.setattr(f"antiphon.application.support.fair_loop.{setting}", 0.0)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, FairLoop)
        await take_loop_share("a")
        if setting == "FAIR_AFTER_OTHER_TENANT_S":
            loop.share_of("b")
        else:
            spin(2 * LONG_ITERATION_S)
            await asyncio.sleep(0)
        assert loop.is_fair
        while loop.is_fair:  # noqa: ASYNC110 - there is always something to do, but never much
            await asyncio.sleep(0)

    run(main())


def test_an_error_of_a_callback_is_reported_and_the_next_one_runs(run: Run) -> None:
    reported: list[dict[str, Any]] = []

    async def main() -> None:
        await let_two_tenants_be_active()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context))
        await take_loop_share("a")
        loop.call_soon(lambda: 1 / 0)
        cancelled = loop.call_soon(reported.append, {"exception": "it was cancelled"})
        cancelled.cancel()
        assert cancelled.cancelled()
        await asyncio.sleep(0)

    run(main())
    assert [type(each["exception"]) for each in reported] == [ZeroDivisionError]


def test_tasks_are_of_the_tenant_that_starts_them_unless_they_are_shared(run: Run) -> None:
    async def main() -> None:
        await take_loop_share("a")

        async def share() -> object:
            return current_share()

        assert await asyncio.create_task(share()) is current_share() is not None
        assert await start_shared_task(share()) is None

    run(main())


def test_what_is_called_for_all_is_of_no_tenant(run: Run) -> None:
    async def main() -> None:
        await let_two_tenants_be_active()
        await take_loop_share("a")
        shares: list[object] = []
        call_soon_for_all(lambda: shares.append(current_share()))
        await asyncio.sleep(0.001)
        assert shares == [None]

    run(main())


def test_requests_that_must_wait_start_in_the_turn_of_no_tenant(run: Run) -> None:
    async def main() -> None:
        await let_two_tenants_be_active()
        await take_loop_share("a")  # as the request before it on its connection did
        dispatcher, shares = Dispatcher(portion=1), list[object]()
        assert dispatcher.may_start()
        assert not dispatcher.may_start()
        dispatcher.add(b"", lambda: shares.append(current_share()))
        await asyncio.sleep(0.001)
        assert shares == [None]

    run(main())


def test_the_share_of_a_tenant_that_is_done_is_not_kept(run: Run) -> None:
    async def work() -> weakref.ref[LoopShare]:
        await take_loop_share("a")
        log = MemoryEventLog()
        await log.create("resp_1")
        logs.append(log)
        await log.open("resp_1")
        share = current_share()
        assert share is not None
        return weakref.ref(share)

    async def main() -> None:
        await let_two_tenants_be_active()
        share = await asyncio.create_task(work())
        await asyncio.sleep(0.001)
        assert share() is None

    logs: list[MemoryEventLog] = []
    run(main())


def test_a_request_is_of_its_tenant(run: Run) -> None:
    async def main() -> None:
        shares: dict[str, list[object]] = {"a": [], "b": []}

        async def app(scope: Any, *_: Any) -> None:
            shares[scope["auth"].tenant].append(current_share())

        share_loop = ShareLoop(app)
        for tenant in "aab":
            scope: Any = {"type": "http", "auth": Caller(tenant=tenant)}
            await asyncio.create_task(share_loop(scope, None, None))  # type: ignore[arg-type]
        [first, second], [other] = shares["a"], shares["b"]
        assert first is second is not None
        assert other not in (None, first)

    run(main())


def test_another_loop_has_no_shares() -> None:
    async def main() -> None:
        await take_loop_share("a")
        assert current_share() is None

    run_in(asyncio.SelectorEventLoop, main())


@given(calls=st.lists(st.tuples(st.sampled_from("abc-"), st.integers(0, 3)), max_size=30))
def test_every_callback_runs_once_and_those_of_a_tenant_in_their_order(
    calls: list[tuple[str, int]],
) -> None:
    ran: dict[str, list[int]] = {name: [] for name in "abc-"}
    made: dict[str, list[int]] = {name: [] for name in "abc-"}

    def call(name: str, more: int) -> None:
        number = len(made[name])
        made[name].append(number)
        asyncio.get_running_loop().call_soon(note, name, number, more)

    def note(name: str, number: int, more: int) -> None:
        ran[name].append(number)
        for _ in range(more):
            call(name, more - 1)

    async def start(name: str, more: int) -> None:
        if name != "-":
            await take_loop_share(name)
        call(name, more)

    async def main() -> None:
        await let_two_tenants_be_active()
        await asyncio.gather(*(asyncio.create_task(start(*each)) for each in calls))
        while ran != made:  # noqa: ASYNC110 - until nothing is left to call
            await asyncio.sleep(0)

    run_in(Uvloop, main())
    assert ran == made
