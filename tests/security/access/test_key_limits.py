"""What a key may cost at the most: two servers that race, and a loop that stores what it gets."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace
from tests.faults.support.replicas import replicas

from antiphon.adapters.ids import new_id
from antiphon.adapters.keys.file import append
from antiphon.application.resources.keys import create_key
from antiphon.domain.access.limits import KeyPolicy

RACING = int(os.environ.get("ANTIPHON_TEST_RACING", "1000"))
"""Requests to two servers."""

AT_A_TIME = 50
DAY_S = 24 * 60 * 60
BODY = {"model": "scripted-chat", "input": "hi", "store": False}


def new_key(file: Path, **policy: Any) -> str:
    key, record = create_key("ci", "t", new_id=new_id, now=time.time)
    append(file, replace(record, policy=KeyPolicy(**policy)))
    return key


async def post_all(apis: list[str], key: str, bodies: list[dict[str, Any]]) -> Counter[int]:
    """Send the requests to the servers in turn, and return how often each status was answered."""
    free = asyncio.Semaphore(AT_A_TIME)
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(headers=headers, timeout=120) as client:

        async def post(number: int) -> int:
            async with free:
                url = f"{apis[number % len(apis)]}/responses"
                return (await client.post(url, json=bodies[number])).status_code

        return Counter(await asyncio.gather(*map(post, range(len(bodies)))))


@pytest.mark.faults
def test_two_servers_admit_exactly_the_limit_of_a_thousand_racing_requests(
    tmp_path: Path,
) -> None:
    if DAY_S - time.time() % DAY_S < 120:
        pytest.skip("the counters start again with the next day")
    file = tmp_path / "keys.toml"
    limit = RACING // 3
    key = new_key(file, limits={"requests/day": limit, "tokens/day": 10**9})

    async def race(apis: list[str]) -> tuple[Counter[int], str]:
        statuses = await post_all(apis, key, [BODY] * RACING)
        headers = {"authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(headers=headers, timeout=30) as client:
            last = await client.post(f"{apis[0]}/responses", json=BODY)
        return statuses, last.headers["x-ratelimit-remaining-requests"]

    with replicas(tmp_path, "--auth", "on", "--keys-file", str(file)) as servers:
        statuses, left = asyncio.run(race([server.api for server in servers]))
    assert statuses == {200: limit, 429: RACING - limit}
    assert left == "0"


def test_a_loop_stores_no_more_than_the_quota(
    serve_from: Callable[..., AbstractContextManager[Any]], tmp_path: Path
) -> None:
    quota, size = 2_000_000, 100_000
    file = tmp_path / "keys.toml"
    key = new_key(file)
    body = {**BODY, "input": "a" * size, "store": True}
    settings = {"auth": "on", "keys_file": file, "store": "sqlite", "quota_bytes": quota}
    with serve_from(tmp_path, **settings) as server:
        # The store reports what it has every five seconds: the server counts what it accepts.
        statuses = asyncio.run(post_all([server.api], key, [body] * 60))
    assert set(statuses) == {200, 429}
    assert quota // size // 4 <= statuses[200] <= 2 * quota // size
