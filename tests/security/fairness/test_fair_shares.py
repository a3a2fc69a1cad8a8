"""One tenant floods the server; another one notices nothing.

ANTIPHON_TEST_STREAMS is the number of streams that the first one asks for at a time.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.http.conftest import script, wait_until
from tests.security.support.load import send

from antiphon.adapters.keys.file import append
from antiphon.application.resources.keys import create_key

STREAMS = int(os.environ.get("ANTIPHON_TEST_STREAMS", "100"))
MODEL = "scripted-chat"
HANG = {"model": MODEL, "input": script([{"say": "Once"}, {"hang": 600}])}
QUICK = {"model": MODEL, "input": "hi"}


class Tenants:
    """A server for eight responses at a time of each kind, and its two tenants."""

    def __init__(self, server: Any, keys: dict[str, str]) -> None:
        self.server = server
        self.port = int(server.url.rpartition(":")[2])
        self.keys = keys

    def client(self, tenant: str) -> httpx.Client:
        headers = {"authorization": f"Bearer {self.keys[tenant]}"}
        return httpx.Client(base_url=self.server.api, headers=headers, timeout=30)


@pytest.fixture
def tenants(serve: Any, tmp_path: Path) -> Iterator[Tenants]:
    keys = {}
    for tenant in ("loud", "quiet"):
        keys[tenant], key = create_key(
            tenant, tenant, new_id=lambda prefix, of=tenant: f"{prefix}_{of}", now=lambda: 0
        )
        append(tmp_path / "keys.toml", key)
    with serve(
        auth="on",
        keys_file=tmp_path / "keys.toml",
        background_runs=8,
        max_runs=8,
        max_queued=8,
        graceful_shutdown_s=0,
    ) as server:
        yield Tenants(server, keys)


def test_streams_of_a_tenant_leave_runs_and_places_to_the_others(tenants: Tenants) -> None:
    admission = tenants.server.app.services.admission

    async def flood() -> Counter[int]:
        refused: Counter[int] = Counter()
        async with asyncio.TaskGroup() as tasks:

            async def ask() -> None:
                answer = await send(tenants.port, HANG | {"stream": True}, key=tenants.keys["loud"])
                refused[answer.status] += 1

            asking = [tasks.create_task(ask()) for _ in range(STREAMS)]
            async with asyncio.timeout(60):
                while refused.total() < STREAMS - 12:  # noqa: ASYNC110 - the server tells nobody
                    await asyncio.sleep(0.01)
            assert (admission.runs.held_by("loud"), admission.runs.waiting_of("loud")) == (6, 6)
            quiet = await asyncio.gather(
                *[send(tenants.port, QUICK, key=tenants.keys["quiet"]) for _ in range(4)]
            )
            assert [one.status for one in quiet] == [200] * 4
            for task in asking:
                task.cancel()
        return refused

    assert asyncio.run(flood()) == {429: STREAMS - 12}
    wait_until(lambda: admission.runs.held_by("loud") == admission.runs.waiting == 0)


def test_background_runs_of_a_tenant_leave_slots_to_the_others(tenants: Tenants) -> None:
    with tenants.client("loud") as loud, tenants.client("quiet") as quiet:
        for _ in range(20):
            assert loud.post("/responses", json=HANG | {"background": True}).status_code == 200
        created = [
            quiet.post("/responses", json=QUICK | {"background": True}).json()["id"]
            for _ in range(4)
        ]
        wait_until(
            lambda: all(
                quiet.get(f"/responses/{one}").json()["status"] == "completed" for one in created
            )
        )
        assert tenants.server.app.runs.active.slots_held == {"loud": 6}


def test_a_tenant_cannot_pass_the_others_in_the_engine(tenants: Tenants) -> None:
    with tenants.client("loud") as loud:
        urgent = QUICK | {"service_tier": "priority", "priority": -(2**40)}
        answer = loud.post("/responses", json=urgent)
        assert answer.json()["service_tier"] == "default"
        queued = loud.post("/responses", json=urgent | {"background": True}).json()
        assert queued["service_tier"] == "default"
