"""Idempotency-Keys while the first response is being created: who waits, and who gets the key."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

import pytest

from antiphon.adapters.stores.memory.store import MemoryStore
from antiphon.application.input.submission import IdempotencyKey
from antiphon.application.ports import NewRun, StoredResponse
from antiphon.application.responses.idempotency import (
    HEADER,
    ExistingResponse,
    IdempotencyKeys,
    fingerprint_of,
    read_idempotency_key,
)
from antiphon.domain.errors import IdempotencyKeyInUse, RequestError
from antiphon.domain.responses.response import Response

KEY = IdempotencyKey(key="k", fingerprint=b"f")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def keys_of(store: MemoryStore, owner: str, **options: Any) -> IdempotencyKeys:
    store.record_heartbeat(owner, 60)
    return IdempotencyKeys(store, owner=owner, now=time.time, clock=time.monotonic, **options)


async def create(store: MemoryStore, response_id: str, owner: str) -> None:
    response = Response(id=response_id, created_at=1, model="m")
    await store.create_response("t", StoredResponse(response=response, run=NewRun(owner=owner)))


async def assert_waiting(*tasks: asyncio.Task[Any]) -> None:
    """Let the tasks run until they wait."""
    await asyncio.wait(tasks, timeout=0.05)
    assert not any(task.done() for task in tasks)


async def test_the_second_request_waits_until_the_first_response_is_stored(
    store: MemoryStore,
) -> None:
    first, second = keys_of(store, "srv_a"), keys_of(store, "srv_b")
    assert await first.reserve("t", KEY, "resp_1") is None
    asking = asyncio.create_task(second.reserve("t", KEY, "resp_2"))
    await assert_waiting(asking)
    await create(store, "resp_1", "srv_a")
    async with asyncio.timeout(30):
        assert await asking == ExistingResponse(response_id="resp_1")


async def test_a_waiting_request_gets_the_key_of_a_failed_request(
    store: MemoryStore,
) -> None:
    first, second = keys_of(store, "srv_a"), keys_of(store, "srv_b")
    with pytest.raises(RequestError):
        async with first.reservation("t", KEY, "resp_1") as existing:
            assert existing is None
            asking = asyncio.create_task(second.reserve("t", KEY, "resp_2"))
            await assert_waiting(asking)
            raise RequestError("no such model")
    async with asyncio.timeout(30):
        assert await asking is None


async def test_the_key_of_a_dead_server_is_free(store: MemoryStore) -> None:
    first, second = keys_of(store, "srv_a"), keys_of(store, "srv_b")
    await first.reserve("t", KEY, "resp_1")
    asking = asyncio.create_task(second.reserve("t", KEY, "resp_2"))
    await assert_waiting(asking)
    await store.end_heartbeat("srv_a")
    async with asyncio.timeout(30):
        assert await asking is None


async def test_a_request_that_waited_too_long_gets_an_error(store: MemoryStore) -> None:
    first, second = keys_of(store, "srv_a"), keys_of(store, "srv_b", wait_s=0.05)
    await first.reserve("t", KEY, "resp_1")
    with pytest.raises(IdempotencyKeyInUse) as caught:
        await second.reserve("t", KEY, "resp_2")
    assert caught.value.param == HEADER


async def test_another_request_with_the_same_key_is_rejected(
    store: MemoryStore,
) -> None:
    first, second = keys_of(store, "srv_a"), keys_of(store, "srv_b")
    await first.reserve("t", KEY, "resp_1")
    with pytest.raises(RequestError) as caught:
        await second.reserve("t", IdempotencyKey(key="k", fingerprint=b"g"), "resp_2")
    assert caught.value.code == "idempotency_key_reused"
    assert await second.reserve("another tenant", KEY, "resp_3") is None


async def test_a_cancelled_request_frees_its_key(store: MemoryStore) -> None:
    first = keys_of(store, "srv_a")

    async def hold_the_key() -> None:
        async with first.reservation("t", KEY, "resp_1"):
            await asyncio.Event().wait()

    leaving = asyncio.create_task(hold_the_key())
    await assert_waiting(leaving)
    leaving.cancel()
    with suppress(asyncio.CancelledError):
        await leaving
    assert await first.reserve("t", KEY, "resp_2") is None


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        (b'{"b": [1, 2.50], "a": {"y": null, "x": "\\u00e9"}}', True),
        ('{"a":{"x":"é","y":null},"b":[1,2.5]}'.encode(), True),
        (b'{"a":{"x":"\\u00e9","y":null},"b":[2.5,1]}', False),
        (b'{"a":{"x":"\\u00e9"},"b":[1,2.5]}', False),
    ],
)
def test_the_same_json_has_the_same_fingerprint(other: bytes, is_same: bool) -> None:
    one = b'{"a": {"x": "\\u00e9", "y": null}, "b": [1, 2.5]}'
    assert (fingerprint_of(one) == fingerprint_of(other)) is is_same


@pytest.mark.parametrize("header", ["", " ", "a b", "é", "a\x7f", "k" * 256])
def test_an_invalid_key_is_rejected(header: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_idempotency_key(header, b"{}")
    assert caught.value.param == HEADER
