"""Webhooks: signed as the official SDK expects, sent until received, never lost."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import httpx
import msgspec
import openai
import pytest

from antiphon.adapters.fetching import HttpFetcher
from antiphon.adapters.ids import new_id
from antiphon.adapters.stores.memory import MemoryStore
from antiphon.application.ports import Lease, NewRun, StoredResponse, WebhookDelivery
from antiphon.application.resources.webhooks import (
    DELAYS_S,
    CreateDeliveries,
    SendDeliveries,
    WebhookEndpoint,
)
from antiphon.domain.response import Response
from antiphon.entrypoints.wiring.webhooks import operator_policy

OLD, NEW = b"o" * 32, b"n" * 32
ENDS = ("completed", "failed", "cancelled", "incomplete")


def whsec(secret: bytes) -> str:
    return f"whsec_{base64.b64encode(secret).decode()}"


class Receiver:
    """An HTTP server on loopback that notes what it is sent; `answers` come first, then 200s."""

    def __init__(self) -> None:
        self.answers: list[str] = []
        self.received: list[tuple[httpx.Headers, bytes]] = []
        self.port = 0
        self.hangs = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    @property
    def ids(self) -> list[str]:
        return [headers["webhook-id"] for headers, _ in self.received]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            method, *lines = head.strip().split("\r\n")
            assert method == "POST /hook HTTP/1.1"
            headers = httpx.Headers([tuple(line.split(": ", 1)) for line in lines])
            self.received.append(
                (headers, await reader.readexactly(int(headers["content-length"])))
            )
            if self.hangs:
                await reader.read()
            status = self.answers.pop(0) if self.answers else "200 OK"
            if "\r\n" not in status:
                status += "\r\ncontent-length: 0"
            writer.write(f"HTTP/1.1 {status}\r\n\r\n".encode())
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0)
    receiver.port = server.sockets[0].getsockname()[1]
    async with server:
        yield receiver


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    store = MemoryStore()
    await store.start()
    yield store
    await store.aclose()


def endpoint(receiver: Receiver, **fields: Any) -> WebhookEndpoint:
    return WebhookEndpoint(**{"name": "hook", "url": receiver.url, "secrets": (OLD,), **fields})


def written(
    endpoints: Sequence[WebhookEndpoint], tenant: str = "t", **fields: Any
) -> Sequence[WebhookDelivery]:
    response = Response(
        **{"id": "resp_1", "created_at": 1, "model": "m", "background": True, **fields}
    )
    return CreateDeliveries(endpoints, new_id=new_id, now=time.time)(tenant, response)


def deliverer(
    store: MemoryStore, *endpoints: WebhookEndpoint, timeout_s: float = 5, **options: Any
) -> SendDeliveries:
    fetcher = HttpFetcher(
        operator_policy([each.url for each in endpoints]),
        max_bytes=1000,
        timeout_s=timeout_s,
        max_redirects=0,
    )
    given = {"now": time.time, "clock": time.monotonic, "delays_s": (0.01,), **options}
    return SendDeliveries(store, fetcher, endpoints, **given)


async def leave(store: MemoryStore, *deliveries: WebhookDelivery) -> None:
    """End a response that leaves these notices."""
    response = Response(id=new_id("resp"), created_at=1, model="m", background=True)
    await store.create("t", StoredResponse(response=response, run=NewRun(owner="srv_1")))
    over = msgspec.structs.replace(response, status="completed")
    assert await store.finish(
        Lease(tenant="t", response_id=response.id), over, deliveries=deliveries
    )


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while not await holds():  # noqa: ASYNC110 -- nobody tells of what became due
            await asyncio.sleep(0.005)


async def deliver_until_received(
    deliver: SendDeliveries, receiver: Receiver, *, times: int
) -> None:
    async def holds() -> bool:
        await deliver()
        return len(receiver.received) >= times

    await until(holds)


@pytest.mark.parametrize("status", ENDS)
async def test_the_official_sdk_unwraps_what_is_sent(
    store: MemoryStore, receiver: Receiver, status: str
) -> None:
    told = endpoint(receiver)
    await leave(store, *written([told], status=status))
    assert await deliverer(store, told)() == 1

    [(headers, body)] = receiver.received
    client = openai.OpenAI(api_key="none", webhook_secret=whsec(OLD))
    event = client.webhooks.unwrap(body, headers)
    assert event.type == f"response.{status}"
    assert event.data.id == "resp_1"  # type: ignore[union-attr]
    assert abs(event.created_at - time.time()) < 5
    with pytest.raises(openai.InvalidWebhookSignatureError):
        client.webhooks.unwrap(body, headers, secret=whsec(NEW))
    assert await store.claim_due(limit=10, claim_s=0) == []


async def test_the_body_names_the_response_and_holds_nothing_of_it() -> None:
    [delivery] = written(
        [WebhookEndpoint(name="n", url="http://a/", secrets=(OLD,))], status="completed"
    )
    told = json.loads(delivery.body)
    assert told.pop("id").startswith("evt_")
    assert told.pop("created_at")
    assert told == {"object": "event", "type": "response.completed", "data": {"id": "resp_1"}}


async def test_both_secrets_of_a_rotation_verify(store: MemoryStore, receiver: Receiver) -> None:
    told = endpoint(receiver, secrets=(NEW, OLD))
    await leave(store, *written([told], status="completed"))
    await deliverer(store, told)()
    [(headers, body)] = receiver.received
    client = openai.OpenAI(api_key="none")
    for secret in (OLD, NEW):
        client.webhooks.verify_signature(body, headers, secret=whsec(secret))


async def test_what_fails_is_sent_again_under_the_same_id_until_it_is_received(
    store: MemoryStore, receiver: Receiver
) -> None:
    told = endpoint(receiver)
    receiver.answers = ["500 Oops", "404 Not Found", "429 Wait", "503 Busy", "302 Found"]
    deliver = deliverer(store, told, clock=iter(range(0, 10**9, 1000)).__next__)
    await leave(store, *written([told], status="completed"))
    await deliver_until_received(deliver, receiver, times=6)

    assert len(set(receiver.ids)) == 1
    client = openai.OpenAI(api_key="none", webhook_secret=whsec(OLD))
    for headers, body in receiver.received:
        client.webhooks.unwrap(body, headers)
    assert await store.claim_due(limit=10, claim_s=0) == []


async def test_a_redirect_is_not_followed(store: MemoryStore, receiver: Receiver) -> None:
    told = endpoint(receiver)
    receiver.answers = [f"307 Redirect\r\nlocation: {receiver.url}\r\ncontent-length: 0"]
    await leave(store, *written([told], status="completed"))
    await deliverer(store, told, delays_s=(60,))()
    assert len(receiver.received) == 1


@pytest.mark.parametrize(
    "answer",
    [
        "200 OK\r\ncontent-length: 1000000",
        "200 OK\r\ncontent-encoding: br\r\ncontent-length: 2",
        "204 No Content\r\ncontent-encoding: gzip",
        "201 Created\r\ntransfer-encoding: chunked",
    ],
)
async def test_what_was_received_is_not_sent_again_whatever_follows_the_status(
    store: MemoryStore, receiver: Receiver, answer: str
) -> None:
    told = endpoint(receiver)
    receiver.answers = [answer]
    await leave(store, *written([told], status="completed"))
    await deliverer(store, told, delays_s=(0,))()
    assert len(receiver.received) == 1
    assert await store.claim_due(limit=10, claim_s=0) == []


async def test_an_endpoint_that_is_gone_is_not_asked_again(
    store: MemoryStore, receiver: Receiver
) -> None:
    told = endpoint(receiver)
    receiver.answers = ["410 Gone"]
    await leave(store, *written([told], status="completed"))
    await deliverer(store, told)()
    assert await store.claim_due(limit=10, claim_s=0) == []


async def test_a_deliverer_that_dies_between_sending_and_removing_sends_twice_and_loses_nothing(
    store: MemoryStore, receiver: Receiver
) -> None:
    told = endpoint(receiver)
    receiver.hangs = True
    await leave(store, *written([told], status="completed"))
    dying = asyncio.create_task(deliverer(store, told, claim_s=0.2)())
    await until(lambda: _is(len(receiver.received) == 1))
    dying.cancel()
    with suppress(asyncio.CancelledError):
        await dying

    receiver.hangs = False
    await deliver_until_received(deliverer(store, told), receiver, times=2)
    assert len(set(receiver.ids)) == 1
    assert await store.claim_due(limit=10, claim_s=0) == []


async def _is(holds: bool) -> bool:
    return holds


async def test_an_endpoint_that_does_not_answer_counts_as_failed(
    store: MemoryStore, receiver: Receiver
) -> None:
    told = endpoint(receiver)
    receiver.hangs = True
    await leave(store, *written([told], status="completed"))
    await deliverer(store, told, timeout_s=0.1)()
    receiver.hangs = False
    await deliver_until_received(deliverer(store, told), receiver, times=2)


async def test_an_endpoint_that_fails_again_and_again_is_left_alone_for_a_while(
    store: MemoryStore, receiver: Receiver
) -> None:
    told = endpoint(receiver)
    receiver.answers = ["500 Oops"] * 100
    now = 0.0
    deliver = deliverer(store, told, clock=lambda: now, jitter=lambda _: 0.0)
    await leave(store, *written([told], status="completed"))
    await deliver_until_received(deliver, receiver, times=3)
    for _ in range(3):
        await deliver()
    assert len(receiver.received) == 3

    now = 61.0
    await deliver_until_received(deliver, receiver, times=4)


async def test_after_72_hours_a_notice_is_given_up_with_a_line_in_the_log(
    store: MemoryStore, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    told = endpoint(receiver)
    receiver.answers = ["500 Oops"]
    [delivery] = written([told], status="completed")
    await leave(store, delivery)
    later = time.time() + 72 * 3600 + 1
    await deliverer(store, told, now=lambda: later)()
    assert await store.claim_due(limit=10, claim_s=0) == []
    assert f"webhook {delivery.id} to hook is given up: status 500" in caplog.text
    assert receiver.url not in caplog.text
    assert sum(DELAYS_S) < 72 * 3600 < sum(DELAYS_S) + 10 * DELAYS_S[-1]


async def test_a_notice_of_an_endpoint_that_no_settings_name_waits(
    store: MemoryStore, receiver: Receiver
) -> None:
    told = endpoint(receiver)
    await leave(store, *written([told], status="completed"))
    await deliverer(store, endpoint(receiver, name="other"))()
    assert receiver.received == []
    await deliver_until_received(deliverer(store, told), receiver, times=1)


async def test_only_ends_of_background_responses_are_told(receiver: Receiver) -> None:
    told = [endpoint(receiver)]
    assert written(told, status="completed", background=False) == ()
    assert written(told, status="in_progress") == ()


async def test_endpoints_are_told_what_they_want_of_whom_they_want(receiver: Receiver) -> None:
    told = [
        endpoint(receiver, name="failures", events=("response.failed",)),
        endpoint(receiver, name="theirs", tenant="them"),
        endpoint(receiver, name="all"),
    ]

    def names(tenant: str, status: str) -> list[str]:
        return [each.endpoint for each in written(told, tenant, status=status)]

    assert names("us", "completed") == ["all"]
    assert names("us", "failed") == ["failures", "all"]
    assert names("them", "completed") == ["theirs", "all"]
    two = written(told, "us", status="failed")
    assert len({each.id for each in two}) == 2
    assert len({each.body for each in two}) == 1
