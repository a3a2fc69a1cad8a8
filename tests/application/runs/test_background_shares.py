"""Background slots: tenants share those of a server fairly."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from antiphon.application.responses.start import AcceptedResponse
from antiphon.domain.access.callers import Caller


@pytest.fixture
def house(house: Any) -> Any:
    """A server with two slots, of which one tenant may have one; its runs hang."""
    house.runs.slots_per_tenant = 1
    house.model.played = [asyncio.Event()]
    return house


async def create(house: Any, tenant: str) -> AcceptedResponse:
    created: AcceptedResponse = await house.create_response(
        house.submission(Caller(tenant=tenant), background=True)
    )
    return created


async def test_hanging_runs_of_a_tenant_leave_a_slot_to_the_others(house: Any) -> None:
    hanging = [await create(house, "hanging") for _ in range(3)]
    assert [one.run is None for one in hanging] == [False, True, True]
    assert await house.start_background_runs.run_once() == 0
    other = await create(house, "other")
    assert other.run is not None


async def test_a_tenant_with_its_share_of_slots_delays_no_waiting_run_of_another(
    house: Any,
) -> None:
    house.runs.may_have_waiting_runs = True
    for _ in range(2):
        await create(house, "hanging")
    other = await create(house, "other")
    assert other.run is None
    assert await house.start_background_runs.run_once() == 2
    assert house.runs.slots_held == {"hanging": 1, "other": 1}
    assert other.id in house.runs


async def test_new_runs_of_a_tenant_queue_behind_its_waiting_ones(house: Any) -> None:
    first, second = await create(house, "busy"), await create(house, "busy")
    assert await house.start_background_runs.run_once() == 0
    await house.runs.cancel(first.id)
    third = await create(house, "busy")
    assert third.run is None, "the second is older"
    assert await house.start_background_runs.run_once() == 1
    assert second.id in house.runs
