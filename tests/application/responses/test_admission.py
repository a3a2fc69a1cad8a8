"""Admission: what runs, what waits, what is refused, and what ends the wait."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from antiphon.application.responses.admission import AdmissionLimits
from antiphon.application.responses.start import AcceptedResponse
from antiphon.domain.access.callers import Caller
from antiphon.domain.access.limits import KeyPolicy
from antiphon.domain.errors import (
    ConcurrencyLimitExceeded,
    ConversationLocked,
    RequestError,
    ServerOverloaded,
    ServerShuttingDown,
)

LIMITS = {
    "max_runs": 2,
    "max_runs_per_tenant": 1,
    "max_waiting": 3,
    "max_waiting_per_tenant": 2,
    "max_prompt_tokens": 10,
    "max_prompt_tokens_per_tenant": 10,
}
ONE_RUN = {"max_runs": 1, "max_waiting_per_tenant": 3}


class Server:
    """A server whose runs hang until `gate` is set."""

    def __init__(self, house: Any) -> None:
        self.house = house
        self.gate = asyncio.Event()
        house.model.played = [self.gate, *house.model.played]

    async def create(
        self, tenant: str, *, client_left: Any = None, **fields: Any
    ) -> AcceptedResponse:
        caller = Caller(tenant=tenant, policy=KeyPolicy(service_tier="priority"))
        created: AcceptedResponse = await self.house.create_response(
            self.house.submission(caller, options={"client_left": client_left}, **fields)
        )
        return created

    async def start(self, tenant: str, **options: Any) -> asyncio.Task[AcceptedResponse]:
        """Return a request that runs, waits, or was refused."""
        task = asyncio.create_task(self.create(tenant, **options))
        async with asyncio.timeout(30):
            waiting = self.house.admission.runs.waiting
            tokens = self.house.admission.prompt_tokens
            while not task.done() and self.house.admission.runs.waiting == waiting:
                if tokens.waiting:
                    break
                await asyncio.sleep(0)
        return task


@pytest.fixture
def serve(new_house: Any) -> Any:
    def serve(**limits: Any) -> Server:
        return Server(new_house(admission=AdmissionLimits(**LIMITS | limits)))

    return serve


async def finish(created: AcceptedResponse) -> None:
    async with asyncio.timeout(30):
        async for _batch in created.events:
            pass
        assert created.task is not None
        await asyncio.wait([created.task])


async def test_a_run_over_the_limit_starts_when_another_ends(serve: Any) -> None:
    server = serve()
    first, second = await server.start("a"), await server.start("a")
    assert (first.done(), second.done()) == (True, False)
    assert (await server.start("b")).done(), "it has a share of its own"
    server.gate.set()
    await finish(await first)
    await finish(await second)
    assert server.house.admission.runs.held_by("a") == 0


async def test_a_tenant_with_its_share_of_waiting_requests_is_refused_before_the_others(
    serve: Any,
) -> None:
    server = serve()
    for tenant in "aab":
        await server.start(tenant)
    waiting = [await server.start(tenant) for tenant in "ab"]
    with pytest.raises(ConcurrencyLimitExceeded):
        server.house.admission.runs.check_room("a")
    with pytest.raises(ConcurrencyLimitExceeded):
        await server.create("a")
    with pytest.raises(ServerOverloaded):
        server.house.admission.runs.check_room("b")
    with pytest.raises(ServerOverloaded):
        await server.create("b")
    server.gate.set()
    for task in waiting:
        await finish(await task)


async def test_a_request_that_waits_too_long_is_refused(serve: Any) -> None:
    server = serve(queue_s=0.05)
    await server.start("a")
    with pytest.raises(ServerOverloaded, match="has waited"):
        await server.create("a")
    assert server.house.admission.runs.waiting == 0


async def test_a_request_whose_client_leaves_waits_no_longer(serve: Any) -> None:
    server, left = serve(), asyncio.Event()
    await server.start("a")
    waiting = await server.start("a", client_left=left.wait)
    left.set()
    with pytest.raises(RequestError, match="disconnected"):
        await waiting
    assert server.house.admission.runs.waiting == 0


async def test_a_cancelled_request_waits_no_longer(serve: Any) -> None:
    server = serve()
    await server.start("a")
    waiting = await server.start("a")
    waiting.cancel()
    await asyncio.wait([waiting])
    assert server.house.admission.runs.waiting == 0


async def test_prompts_wait_for_the_tokens_of_others(serve: Any) -> None:
    server = serve(max_runs=9, max_runs_per_tenant=9)
    items = [{"role": "user", "content": "hi"}]
    first = await server.start("a", input=items * 6)
    long = await server.start("b", input=items * 5)
    assert (first.done(), long.done()) == (True, False)
    short = await server.start("c", input=items)
    assert not short.done(), "it may not overtake the long prompt forever"
    server.gate.set()
    for task in (first, long, short):
        await finish(await task)
    assert (await server.start("a", input=items * 90)).done(), "alone, any prompt may run"


async def test_requests_of_a_tenant_wait_by_their_priority(serve: Any) -> None:
    server, order = serve(**ONE_RUN), []
    first = await server.start("a")
    waiting = {
        name: await server.start("a", **fields)
        for name, fields in {
            "flex": {"service_tier": "flex"},
            "default": {},
            "priority": {"service_tier": "priority"},
        }.items()
    }
    server.gate.set()
    await finish(await first)
    pending = set(waiting.values())
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        [task] = done
        order += [name for name, one in waiting.items() if one is task]
        await finish(await task)
    assert order == ["priority", "default", "flex"]


async def test_background_runs_do_not_wait_for_admission(serve: Any) -> None:
    server = serve(**ONE_RUN)
    await server.start("a")
    created = await server.create("b", background=True)
    assert created.run is not None
    server.gate.set()
    await finish(created)


async def test_a_request_that_fails_to_start_gives_its_place_back(serve: Any) -> None:
    server = serve(**ONE_RUN)
    server.gate.set()
    server.house.model.refusal = ServerOverloaded("the engine is full")
    with pytest.raises(ServerOverloaded, match="engine"):
        await server.create("a")
    server.house.model.refusal = None
    await finish(await server.create("a"))


async def test_a_waiting_request_does_not_lock_its_conversation(serve: Any) -> None:
    server = serve(queue_s=0.05)
    await server.start("a")
    with pytest.raises(ServerOverloaded):
        await server.create("a", store=True)
    with pytest.raises(RequestError) as refusal:
        await server.create("b", conversation="conv_unknown")
    assert not isinstance(refusal.value, ConversationLocked)


async def test_a_waiting_request_is_refused_when_the_server_shuts_down(serve: Any) -> None:
    server = serve()
    first, waiting = await server.start("a"), await server.start("a")
    server.house.runs.close()
    server.gate.set()
    await finish(await first)
    with pytest.raises(ServerShuttingDown):
        await waiting
