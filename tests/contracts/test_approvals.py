"""An approval counts for one response, on every store and whichever server asks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from antiphon.application.ports import Store
from antiphon.application.tools.approvals import REMEMBERED, ApprovalAnswers


@pytest.fixture
async def servers(new_store: Callable[[], Store]) -> AsyncIterator[list[ApprovalAnswers]]:
    """Two servers of one store."""
    stores = [new_store(), new_store()]
    for store in stores:
        await store.start()
    yield [ApprovalAnswers(store) for store in stores]
    for store in stores:
        await store.aclose()


async def test_the_first_response_that_uses_an_approval_keeps_it(
    servers: list[ApprovalAnswers],
) -> None:
    one, other = servers
    assert await one.use("us", "resp_1", ["mcpr_a", "mcpr_b"]) == []
    assert await other.use("us", "resp_2", ["mcpr_b", "mcpr_c"]) == ["mcpr_b"]
    # A run that goes on elsewhere asks again.
    assert await other.use("us", "resp_1", ["mcpr_a", "mcpr_b"]) == []
    assert await one.use("us", "resp_1", ["mcpr_c"]) == ["mcpr_c"]


async def test_approvals_of_other_tenants_do_not_count(servers: list[ApprovalAnswers]) -> None:
    one, other = servers
    assert await one.use("us", "resp_1", ["mcpr_a"]) == []
    assert await other.use("thém", "resp_2", ["mcpr_a"]) == []


async def test_one_of_many_at_the_same_time_gets_it(servers: list[ApprovalAnswers]) -> None:
    use = [servers[number % 2].use("us", f"resp_{number}", ["mcpr_a"]) for number in range(8)]
    outcomes = await asyncio.gather(*use)
    assert sorted(map(tuple, outcomes)) == [(), *[("mcpr_a",)] * 7]


async def test_the_oldest_are_forgotten(servers: list[ApprovalAnswers]) -> None:
    one, _ = servers
    await one.use("us", "resp_1", ["mcpr_old"])
    await one.use("us", "resp_1", [f"mcpr_{number}" for number in range(REMEMBERED - 1)])
    assert await one.use("us", "resp_2", ["mcpr_old"]) == ["mcpr_old"]
    await one.use("us", "resp_1", ["mcpr_new"])
    assert await one.use("us", "resp_2", ["mcpr_old"]) == []


async def test_every_server_finds_which_response_has_answered(
    servers: list[ApprovalAnswers],
) -> None:
    one, other = servers
    await one.use("us", "resp_1", ["mcpr_a", "mcpr_b"])
    await other.use("us", "resp_2", ["mcpr_b"])
    found = await other.find("us", ["mcpr_a", "mcpr_b", "mcpr_c"])
    assert found == {"mcpr_a": "resp_1", "mcpr_b": "resp_1"}
    assert await other.find("them", ["mcpr_a"]) == {}
