"""Slow sites and name servers of one tenant do not keep another waiting."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from tests.support.loopback_server import LoopbackServer, answer, listening

from antiphon.adapters import fetching
from antiphon.adapters.fetching import FairNames, HttpFetcher
from antiphon.adapters.url_policy import UrlPolicy
from antiphon.application.support.fair_queue import FairQueues

LOOPBACK = ipaddress.ip_network("127.0.0.0/8")
SSL_CONTEXT = httpx.create_ssl_context(trust_env=False)  # once: it takes a while
SITES = int(os.environ.get("ANTIPHON_TEST_SLOW_SITES", "40"))
LIMIT_S = 30.0


def make_fetcher(*hosts: str) -> HttpFetcher:
    async def resolve(_host: str, _port: int) -> list[str]:
        return ["127.0.0.1"]

    return HttpFetcher(
        UrlPolicy(hosts=hosts, private=[LOOPBACK]),
        max_bytes=1000,
        timeout_s=LIMIT_S,
        max_redirects=0,
        resolve=resolve,
        ssl_context=SSL_CONTEXT,
    )


@pytest.fixture
async def site() -> AsyncIterator[LoopbackServer]:
    async with listening() as site:
        site.answers["/"] = answer(b"hello")
        yield site


@asynccontextmanager
async def attack(fetcher: HttpFetcher, urls: list[str]) -> AsyncIterator[None]:
    """Fetch the URLs, which hang, for one tenant until the block ends."""
    tasks = [asyncio.create_task(fetcher.fetch(url, tenant="greedy")) for url in urls]
    await asyncio.sleep(0)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until(condition: Any) -> None:
    while not condition():  # noqa: ASYNC110 - no event reports it
        await asyncio.sleep(0.001)


async def test_slow_sites_of_one_tenant_leave_slots_to_the_others(site: LoopbackServer) -> None:
    fetcher = make_fetcher(f"*.slow.example:{site.port}", f"good.example:{site.port}")
    slow = [f"http://{number}.slow.example:{site.port}/hang" for number in range(SITES)]
    async with asyncio.timeout(LIMIT_S / 2), attack(fetcher, slow):
        await until(lambda: site.connections == min(SITES, fetching.MAX_PER_TENANT))
        result = await fetcher.fetch(f"http://good.example:{site.port}/", tenant="other")
        assert result.content == b"hello"


async def test_one_tenant_does_not_use_up_the_connections_of_a_host(site: LoopbackServer) -> None:
    fetcher = make_fetcher(f"good.example:{site.port}", f"second.example:{site.port}")
    slow = [f"http://good.example:{site.port}/hang?{number}" for number in range(SITES)]
    async with asyncio.timeout(LIMIT_S / 2), attack(fetcher, slow):
        await until(lambda: site.connections == fetching.MAX_PER_HOST // 2)
        for host, tenant in (("good", "other"), ("second", "other"), ("second", "greedy")):
            result = await fetcher.fetch(f"http://{host}.example:{site.port}/", tenant=tenant)
            assert result.content == b"hello"


async def test_names_that_are_not_resolved_keep_only_their_own_tenant_waiting() -> None:
    answers = threading.Event()

    def look_up(host: str, port: int, **_: Any) -> Any:
        if host == "slow":
            answers.wait()
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("9.9.9.9", port))]

    names = FairNames(look_up)
    slow = [asyncio.create_task(names.resolve("greedy", "slow", 80)) for _ in range(SITES)]
    try:
        await asyncio.sleep(0)
        for task in slow[: SITES // 2]:
            task.cancel()  # nobody waits any more, but its thread does
        async with asyncio.timeout(LIMIT_S / 2):
            assert await names.resolve("other", "good", 80) == ["9.9.9.9"]
    finally:
        answers.set()
        await asyncio.gather(*slow, return_exceptions=True)


async def test_a_host_that_nobody_fetches_from_takes_no_memory() -> None:
    queues = FairQueues(1)
    entered = asyncio.Event()

    async def hold() -> None:
        async with queues.slot("host", "tenant"):
            entered.set()
            await asyncio.Event().wait()

    holder, waiter = asyncio.create_task(hold()), asyncio.create_task(hold())
    await entered.wait()
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)
    assert len(queues) == 1
    holder.cancel()
    await asyncio.gather(holder, return_exceptions=True)
    assert len(queues) == 0
