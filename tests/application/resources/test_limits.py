"""The limits of API keys, counted for runs on one or two servers of a store."""

from __future__ import annotations

import asyncio

import pytest
from tests.application.conftest import TENANT, House, read

from antiphon.domain import deltas as d
from antiphon.domain.access.callers import Caller
from antiphon.domain.access.limits import KeyPolicy
from antiphon.domain.errors import (
    EngineDead,
    LimitExceeded,
    RequestError,
    ServerOverloaded,
    StoreError,
)
from antiphon.domain.events import Completed

# FakeModel: one item is one token of the prompt, and each turn uses 3 in and 2 out.
INPUT, USED_IN, USED_OUT = 1, 3, 2


def caller(name: str = "ci", **limits: int) -> Caller:
    named = {name.replace("_per_", "/"): amount for name, amount in limits.items()}
    return Caller(
        tenant=TENANT, key_id=f"key_{name}", key_name=name, policy=KeyPolicy(limits=named)
    )


async def used(house: House, **limits: int) -> dict[str, int]:
    """Return what the key `ci` has used of these limits."""
    states = await house.limits.usage(caller(**limits))
    return {state.name: state.used for state in states}


@pytest.fixture
def other(house: House) -> House:
    """Another server on the store of `house`, at the same time."""
    found = House(house.store, owner="srv_2")
    found.now = house.now
    return found


async def test_a_thousand_racing_requests_on_two_servers_are_admitted_up_to_the_limit(
    house: House, other: House
) -> None:
    house.caller = other.caller = caller(requests_per_min=300, tokens_per_day=10**9)

    async def is_admitted(server: House) -> bool:
        try:
            await read(await server.create(store=False))
        except LimitExceeded:
            return False
        return True

    results = await asyncio.gather(
        *(is_admitted(server) for server in (house, other) for _ in range(500))
    )
    assert sum(results) == 300
    counts = await used(house, requests_per_min=300, tokens_per_day=1)
    assert counts == {"requests/min": 300, "tokens/day": 300 * (USED_IN + USED_OUT)}


async def test_a_key_without_limits_costs_no_call_of_the_store(house: House) -> None:
    house.store.failing.add("reserve_usage")
    house.caller = caller()
    await house.whole()


async def test_a_used_up_limit_is_refused_without_the_store_until_its_window_ends(
    house: House,
) -> None:
    house.caller = caller(requests_per_min=1)
    await house.whole()
    with pytest.raises(LimitExceeded):
        await house.create()
    house.store.failing.add("reserve_usage")
    with pytest.raises(LimitExceeded):
        await house.create()
    house.store.failing.clear()
    house.caller = caller(requests_per_min=2)  # the operator raises the limit
    await house.whole()
    house.now += 60
    await house.whole()


async def test_what_cannot_be_counted_is_not_run(house: House) -> None:
    house.store.failing.add("reserve_usage")
    house.caller = caller(requests_per_min=1)
    with pytest.raises(StoreError):
        await house.create()
    assert not house.model.begun


async def test_the_refusal_names_limit_use_and_wait(house: House) -> None:
    house.now = house.now // 60 * 60 + 48
    house.caller = caller(requests_per_min=1)
    await house.whole()
    with pytest.raises(LimitExceeded) as refused:
        await house.create()
    assert refused.value.code == "rate_limit_exceeded"
    assert refused.value.message == (
        "Rate limit reached for the API key 'ci' on requests per min (RPM): Limit 1, Used 1, "
        "Requested 1. Please try again in 12s."
    )
    assert refused.value.retry_after_s == 12
    assert refused.value.headers["x-ratelimit-remaining-requests"] == "0"
    assert refused.value.headers["x-ratelimit-reset-requests"] == "12s"


@pytest.mark.parametrize("store", [True, False])
async def test_a_run_counts_what_it_used_before_its_end_is_seen(house: House, store: bool) -> None:
    limits = {"input_tokens_per_min": 99, "output_tokens_per_min": 99, "tokens_per_day": 99}
    house.caller = caller(**limits, runs=1)
    for number in (1, 2, 3):
        await house.whole(store=store)
        assert await used(house, **limits, runs=1) == {
            "input_tokens/min": number * USED_IN,
            "output_tokens/min": number * USED_OUT,
            "tokens/day": number * (USED_IN + USED_OUT),
            "runs": 0,
        }


async def test_the_prompt_is_reserved_while_a_run_goes_on(house: House) -> None:
    house.model.played = [[d.TextDelta("Hello")], asyncio.Event()]
    house.caller = caller(input_tokens_per_min=9, tokens_per_min=9)
    created = await house.create()
    reserved = {"input_tokens/min": INPUT, "tokens/min": INPUT + 1}
    assert await used(house, input_tokens_per_min=9, tokens_per_min=9) == reserved
    await created.leave()


async def test_a_key_over_its_tokens_gets_no_further_run(house: House) -> None:
    house.caller = caller(tokens_per_min=USED_IN + USED_OUT + 1)
    await house.whole()
    with pytest.raises(LimitExceeded, match="tokens per min"):
        await house.create()
    assert len(house.model.begun) == 1
    house.now += 60
    await house.whole()


async def test_a_prompt_larger_than_the_limit_is_not_worth_a_retry(house: House) -> None:
    house.caller = caller(input_tokens_per_min=2)
    with pytest.raises(LimitExceeded, match="Request too large") as refused:
        await house.create(input=[{"role": "user", "content": "hi"}] * 3)
    assert refused.value.retry_after_s is None


async def test_runs_at_a_time_are_bounded_over_all_servers(house: House, other: House) -> None:
    house.model.played = other.model.played = [asyncio.Event()]
    house.caller = other.caller = caller(runs=2)
    first, _ = await house.create(), await other.create(store=False)
    for server in (house, other):
        with pytest.raises(LimitExceeded, match="runs at a time: Limit 2, Used 2"):
            await server.create()
    await first.leave()
    assert first.task is not None
    await asyncio.wait([first.task])
    await other.create()


@pytest.mark.parametrize("refusal", [ServerOverloaded("full"), EngineDead("dead")])
async def test_a_run_that_does_not_start_gives_back_its_tokens_and_slot(
    house: House, refusal: Exception
) -> None:
    house.model.refusal = refusal
    house.caller = caller(tokens_per_min=9, runs=1)
    for _ in range(2):
        with pytest.raises(type(refusal)):
            await house.create()
    assert await used(house, tokens_per_min=9, runs=1) == {"tokens/min": 0, "runs": 0}


async def test_an_invalid_request_counts_as_a_request(house: House) -> None:
    house.caller = caller(requests_per_min=1, runs=1)
    with pytest.raises(RequestError):
        await house.create(model="none")
    assert await used(house, requests_per_min=1, runs=1) == {"requests/min": 1, "runs": 0}
    with pytest.raises(LimitExceeded):
        await house.create()


async def test_a_cancelled_run_counts_what_it_used(house: House) -> None:
    house.model.played = [[d.TextDelta("Hello")], asyncio.Event()]
    house.caller = caller(tokens_per_min=99, runs=1)
    created = await house.create(background=True)
    await house.cancel(TENANT, created.id)
    assert await used(house, tokens_per_min=99, runs=1) == {
        "tokens/min": USED_IN + USED_OUT,
        "runs": 0,
    }


async def test_a_client_that_leaves_while_its_run_is_settled_frees_the_slot(house: House) -> None:
    settling = house.store.settling = asyncio.Event()
    house.caller = caller(tokens_per_min=99, runs=1)
    created = await house.create(store=False)
    reading = asyncio.ensure_future(read(created))
    await settling.wait()
    await house.runs.cancel(created.id)
    await reading
    assert await used(house, tokens_per_min=99, runs=1) == {
        "tokens/min": USED_IN + USED_OUT,
        "runs": 0,
    }


async def test_a_waiting_run_that_another_server_runs_is_counted(
    house: House, other: House
) -> None:
    house.runs.may_have_waiting_runs = True
    house.caller = caller(tokens_per_min=99, runs=1)
    created = await house.create(background=True)
    assert created.response.status == "queued"
    assert await used(house, tokens_per_min=99, runs=1) == {"tokens/min": INPUT + 1, "runs": 1}
    assert await other.start_background_runs.run_once() == 1
    assert isinstance((await read(created))[-1], Completed)
    assert await used(house, tokens_per_min=99, runs=1) == {
        "tokens/min": USED_IN + USED_OUT,
        "runs": 0,
    }


async def test_the_runs_of_a_dead_server_do_not_occupy_the_key(house: House, other: House) -> None:
    house.model.played = [asyncio.Event()]
    house.caller = other.caller = caller(runs=1)
    await house.create(store=False)
    with pytest.raises(LimitExceeded):
        await other.create()
    await house.store.end_heartbeat(house.owner)
    await other.whole()


async def test_default_limits_apply_to_keys_that_have_none_of_the_kind(
    new_house: type[House],
) -> None:
    house = new_house(default_limits={"requests/min": 1})
    house.caller = caller("default", runs=9)
    await house.whole()
    with pytest.raises(LimitExceeded):
        await house.create()
    house.caller = caller("own", requests_per_min=2)
    for _ in range(2):
        await house.whole()
    house.caller = Caller(tenant=TENANT)  # no key, no limits
    for _ in range(3):
        await house.whole()


async def test_counting_tokens_is_a_request(house: House) -> None:
    limited = caller(requests_per_min=1)
    submission = house.submission(limited)
    await house.count_tokens(submission)
    with pytest.raises(LimitExceeded):
        await house.count_tokens(submission)
