"""Webhooks: signed as the official SDK expects, sent until they are received, never lost."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import msgspec
import openai
import pytest

from antiphon.adapters.fetching import HttpFetcher
from antiphon.adapters.ids import new_id
from antiphon.adapters.stores.memory.store import MemoryStore
from antiphon.application.ports import (
    Fetcher,
    FetchResult,
    Lease,
    NewRun,
    StoredResponse,
    WebhookDelivery,
)
from antiphon.application.resources.webhooks import (
    CLAIMED_AT_ONCE,
    DELAYS_S,
    MAX_IN_PROGRESS,
    CreateDeliveries,
    DeliverySchedule,
    SendDeliveries,
    WebhookEndpoint,
)
from antiphon.domain.responses.response import Response
from antiphon.entrypoints.server.lifetime import in_background
from antiphon.entrypoints.wiring.webhooks import operator_policy

OLD, NEW = b"o" * 32, b"n" * 32
END_STATUSES = ("completed", "failed", "cancelled", "incomplete")


def whsec(secret: bytes) -> str:
    return f"whsec_{base64.b64encode(secret).decode()}"


class Receiver:
    """An HTTP server on loopback that records its requests; it sends `answers` first, then 200s."""

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


@asynccontextmanager
async def serving() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0)
    receiver.port = server.sockets[0].getsockname()[1]
    async with server:
        yield receiver


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with serving() as receiver:
        yield receiver


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    store = MemoryStore()
    await store.start()
    yield store
    await store.aclose()


def endpoint(receiver: Receiver, **fields: Any) -> WebhookEndpoint:
    return WebhookEndpoint(**{"name": "hook", "url": receiver.url, "secrets": (OLD,), **fields})


def create_deliveries(
    endpoints: Sequence[WebhookEndpoint], tenant: str = "t", **fields: Any
) -> Sequence[WebhookDelivery]:
    response = Response(
        **{"id": "resp_1", "created_at": 1, "model": "m", "background": True, **fields}
    )
    return CreateDeliveries(endpoints, new_id=new_id, now=time.time)(tenant, response)


def make_sender(
    store: MemoryStore, *endpoints: WebhookEndpoint, timeout_s: float = 5, **options: Any
) -> SendDeliveries:
    fetcher = HttpFetcher(
        operator_policy([each.url for each in endpoints]),
        max_bytes=1000,
        timeout_s=timeout_s,
        max_redirects=0,
    )
    schedule = DeliverySchedule(delays_s=(0.01,))
    arguments = {"now": time.time, "clock": time.monotonic, "schedule": schedule, **options}
    return SendDeliveries(store, fetcher, endpoints, **arguments)


async def end_response(store: MemoryStore, *deliveries: WebhookDelivery) -> None:
    """End a response with these deliveries."""
    response = Response(id=new_id("resp"), created_at=1, model="m", background=True)
    await store.create_response("t", StoredResponse(response=response, run=NewRun(owner="srv_1")))
    ended = msgspec.structs.replace(response, status="completed")
    assert await store.finish_response(
        Lease(tenant="t", response_id=response.id), ended, deliveries=deliveries
    )


async def wait_until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while not await condition():  # noqa: ASYNC110 -- no event reports what is due
            await asyncio.sleep(0.005)


async def deliver_until_received(send: SendDeliveries, receiver: Receiver, *, times: int) -> None:
    async def is_received() -> bool:
        await send()
        return len(receiver.received) >= times

    await wait_until(is_received)


@pytest.mark.parametrize("status", END_STATUSES)
async def test_the_official_sdk_unwraps_the_events(
    store: MemoryStore, receiver: Receiver, status: str
) -> None:
    hook = endpoint(receiver)
    await end_response(store, *create_deliveries([hook], status=status))
    assert await make_sender(store, hook)() == 1

    [(headers, body)] = receiver.received
    client = openai.OpenAI(api_key="none", webhook_secret=whsec(OLD))
    event = client.webhooks.unwrap(body, headers)
    assert event.type == f"response.{status}"
    assert event.data.id == "resp_1"  # type: ignore[union-attr]
    assert abs(event.created_at - time.time()) < 5
    with pytest.raises(openai.InvalidWebhookSignatureError):
        client.webhooks.unwrap(body, headers, secret=whsec(NEW))
    assert await store.claim_due_deliveries(limit=10, claim_s=0) == []


async def test_the_body_names_the_response_without_its_content() -> None:
    [delivery] = create_deliveries(
        [WebhookEndpoint(name="n", url="http://a/", secrets=(OLD,))], status="completed"
    )
    event = json.loads(delivery.body)
    assert event.pop("id").startswith("evt_")
    assert event.pop("created_at")
    assert event == {"object": "event", "type": "response.completed", "data": {"id": "resp_1"}}


async def test_both_secrets_of_a_rotation_verify(store: MemoryStore, receiver: Receiver) -> None:
    hook = endpoint(receiver, secrets=(NEW, OLD))
    await end_response(store, *create_deliveries([hook], status="completed"))
    await make_sender(store, hook)()
    [(headers, body)] = receiver.received
    client = openai.OpenAI(api_key="none")
    for secret in (OLD, NEW):
        client.webhooks.verify_signature(body, headers, secret=whsec(secret))


async def test_a_failed_delivery_is_retried_with_the_same_id_until_it_is_received(
    store: MemoryStore, receiver: Receiver
) -> None:
    hook = endpoint(receiver)
    receiver.answers = ["500 Oops", "404 Not Found", "429 Wait", "503 Busy", "302 Found"]
    send = make_sender(store, hook, clock=iter(range(0, 10**9, 1000)).__next__)
    await end_response(store, *create_deliveries([hook], status="completed"))
    await deliver_until_received(send, receiver, times=6)

    assert len(set(receiver.ids)) == 1
    client = openai.OpenAI(api_key="none", webhook_secret=whsec(OLD))
    for headers, body in receiver.received:
        client.webhooks.unwrap(body, headers)
    assert await store.claim_due_deliveries(limit=10, claim_s=0) == []


async def test_a_redirect_is_not_followed(store: MemoryStore, receiver: Receiver) -> None:
    hook = endpoint(receiver)
    receiver.answers = [f"307 Redirect\r\nlocation: {receiver.url}\r\ncontent-length: 0"]
    await end_response(store, *create_deliveries([hook], status="completed"))
    await make_sender(store, hook, schedule=DeliverySchedule(delays_s=(60,)))()
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
async def test_a_received_delivery_is_not_sent_again_whatever_follows_the_status(
    store: MemoryStore, receiver: Receiver, answer: str
) -> None:
    hook = endpoint(receiver)
    receiver.answers = [answer]
    await end_response(store, *create_deliveries([hook], status="completed"))
    await make_sender(store, hook, schedule=DeliverySchedule(delays_s=(0,)))()
    assert len(receiver.received) == 1
    assert await store.claim_due_deliveries(limit=10, claim_s=0) == []


async def test_an_endpoint_that_is_gone_gets_no_more_deliveries(
    store: MemoryStore, receiver: Receiver
) -> None:
    hook = endpoint(receiver)
    receiver.answers = ["410 Gone"]
    await end_response(store, *create_deliveries([hook], status="completed"))
    await make_sender(store, hook)()
    assert await store.claim_due_deliveries(limit=10, claim_s=0) == []


async def test_a_server_that_dies_before_removing_a_delivery_sends_it_twice_and_loses_nothing(
    store: MemoryStore, receiver: Receiver
) -> None:
    hook = endpoint(receiver)
    receiver.hangs = True
    await end_response(store, *create_deliveries([hook], status="completed"))
    dying = asyncio.create_task(make_sender(store, hook, schedule=DeliverySchedule(claim_s=0.2))())
    await wait_until(lambda: _return(len(receiver.received) == 1))
    dying.cancel()
    with suppress(asyncio.CancelledError):
        await dying

    receiver.hangs = False
    await deliver_until_received(make_sender(store, hook), receiver, times=2)
    assert len(set(receiver.ids)) == 1
    assert await store.claim_due_deliveries(limit=10, claim_s=0) == []


async def _return(value: bool) -> bool:
    return value


async def test_an_endpoint_that_does_not_answer_counts_as_failed(
    store: MemoryStore, receiver: Receiver
) -> None:
    hook = endpoint(receiver)
    receiver.hangs = True
    await end_response(store, *create_deliveries([hook], status="completed"))
    await make_sender(store, hook, timeout_s=0.1)()
    receiver.hangs = False
    await deliver_until_received(make_sender(store, hook), receiver, times=2)


async def test_an_endpoint_that_keeps_failing_gets_no_attempts_for_a_while(
    store: MemoryStore, receiver: Receiver
) -> None:
    hook = endpoint(receiver)
    receiver.answers = ["500 Oops"] * 100
    now = 0.0
    send = make_sender(
        store, hook, clock=lambda: now, schedule=DeliverySchedule(jitter=lambda _: 0.0)
    )
    await end_response(store, *create_deliveries([hook], status="completed"))
    await deliver_until_received(send, receiver, times=3)
    for _ in range(3):
        await send()
    assert len(receiver.received) == 3

    now = 61.0
    await deliver_until_received(send, receiver, times=4)


async def test_a_receiver_that_does_not_answer_delays_no_other_tenants_deliveries(
    store: MemoryStore, receiver: Receiver
) -> None:
    async with serving() as slow:
        slow.hangs = True
        hooks = [
            endpoint(slow, name="slow", tenant="theirs"),
            endpoint(receiver, name="fast", tenant="ours"),
        ]
        sender = make_sender(store, *hooks, timeout_s=30)
        for number in range(100):  # all of them due before the other tenant's
            deliveries = create_deliveries(hooks, "theirs", id=f"resp_{number}", status="completed")
            await end_response(store, *deliveries)
        async with in_background(sender.run_every(0.05)):
            await wait_until(lambda: _return(len(slow.received) >= 8))
            for expected in range(1, 30):
                await end_response(store, *create_deliveries(hooks, "ours", status="completed"))
                async with asyncio.timeout(5):
                    await wait_until(lambda n=expected: _return(len(receiver.received) == n))
        assert len(slow.received) <= 15
        untouched = await store.claim_due_deliveries(limit=100, claim_s=0)
        assert len(untouched) == 100 - len(slow.received)
        assert {one.attempts for one in untouched} == {0}


async def test_a_receiver_gets_the_next_delivery_as_soon_as_it_has_answered(
    store: MemoryStore, receiver: Receiver
) -> None:
    hook = endpoint(receiver)
    for number in range(60):
        await end_response(store, *create_deliveries([hook], id=f"resp_{number}", status="failed"))
    async with in_background(make_sender(store, hook).run_every(3600)):
        await wait_until(lambda: _return(len(receiver.received) == 60))
    assert len(set(receiver.ids)) == 60


class Clients(Fetcher):
    """Fetches nothing: a request of an endpoint that is `down` does not end."""

    def __init__(self) -> None:
        self.running: Counter[str] = Counter()
        self.received: list[str] = []

    async def fetch(self, url: str, **_: Any) -> FetchResult:
        if "down" in url:
            self.running[url] += 1
            await asyncio.Event().wait()
        self.received.append(url)
        return FetchResult(status=200, url=url, headers={}, content_type="", content=b"")


async def test_all_attempts_of_a_server_are_bounded_and_leave_room_for_others(
    store: MemoryStore,
) -> None:
    clients = Clients()
    down = [
        WebhookEndpoint(name=f"down{n}", url=f"http://down{n}/", secrets=(OLD,), tenant=tenant)
        for n, tenant in enumerate([None] * 5 + ["theirs"] * 5)
    ]
    up = WebhookEndpoint(name="up", url="http://up/", secrets=(OLD,), tenant="ours")
    sender = SendDeliveries(store, clients, [*down, up], now=time.time, clock=time.monotonic)
    for number in range(40):  # all of them due before the other tenant's
        deliveries = create_deliveries(down, "theirs", id=f"resp_{number}", status="completed")
        await end_response(store, *deliveries)
    async with in_background(sender.run_every(0.02)):
        await wait_until(lambda: _return(clients.running.total() >= MAX_IN_PROGRESS // 2))
        for expected in range(1, 30):
            await end_response(store, *create_deliveries([up], "ours", status="completed"))
            async with asyncio.timeout(5):
                await wait_until(lambda n=expected: _return(len(clients.received) == n))
    assert clients.running.total() < MAX_IN_PROGRESS
    theirs = sum(clients.running[each.url] for each in down if each.tenant)
    assert theirs <= MAX_IN_PROGRESS // 2 + CLAIMED_AT_ONCE
    assert all(clients.running[each.url] for each in down[:2])


async def test_a_rest_after_failures_counts_no_attempts(
    store: MemoryStore, receiver: Receiver
) -> None:
    hook = endpoint(receiver)
    receiver.answers = ["500 Oops"] * 3
    send = make_sender(store, hook, schedule=DeliverySchedule(jitter=lambda _: 0.0))
    await end_response(store, *create_deliveries([hook], status="completed"))
    await deliver_until_received(send, receiver, times=3)
    for _ in range(5):
        assert await send() == 0
    [waiting] = await store.claim_due_deliveries(limit=10, claim_s=0)
    assert waiting.attempts == 3


async def test_a_delivery_is_given_up_after_72_hours_with_a_line_in_the_log(
    store: MemoryStore, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    hook = endpoint(receiver)
    receiver.answers = ["500 Oops"]
    [delivery] = create_deliveries([hook], status="completed")
    await end_response(store, delivery)
    later = time.time() + 72 * 3600 + 1
    await make_sender(store, hook, now=lambda: later)()
    assert await store.claim_due_deliveries(limit=10, claim_s=0) == []
    assert f"giving up on webhook {delivery.id} to hook: status 500" in caplog.text
    assert receiver.url not in caplog.text
    assert sum(DELAYS_S) < 72 * 3600 < sum(DELAYS_S) + 10 * DELAYS_S[-1]


async def test_a_delivery_to_an_endpoint_that_is_not_in_the_settings_waits(
    store: MemoryStore, receiver: Receiver
) -> None:
    hook = endpoint(receiver)
    await end_response(store, *create_deliveries([hook], status="completed"))
    await make_sender(store, endpoint(receiver, name="other"))()
    assert receiver.received == []
    await deliver_until_received(make_sender(store, hook), receiver, times=1)


async def test_only_ended_background_responses_have_deliveries(receiver: Receiver) -> None:
    hooks = [endpoint(receiver)]
    assert create_deliveries(hooks, status="completed", background=False) == ()
    assert create_deliveries(hooks, status="in_progress") == ()


async def test_endpoints_get_only_the_events_and_tenants_that_they_want(receiver: Receiver) -> None:
    hooks = [
        endpoint(receiver, name="failures", events=("response.failed",)),
        endpoint(receiver, name="theirs", tenant="them"),
        endpoint(receiver, name="all"),
    ]

    def names(tenant: str, status: str) -> list[str]:
        return [each.endpoint for each in create_deliveries(hooks, tenant, status=status)]

    assert names("us", "completed") == ["all"]
    assert names("us", "failed") == ["failures", "all"]
    assert names("them", "completed") == ["theirs", "all"]
    deliveries = create_deliveries(hooks, "us", status="failed")
    assert len({each.id for each in deliveries}) == 2
    assert len({each.body for each in deliveries}) == 1
