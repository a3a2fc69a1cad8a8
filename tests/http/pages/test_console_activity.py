"""`GET /console/activity`: the figures of a tenant's responses over time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.http.access.test_auth import bearer, new_key
from tests.http.conftest import create, script, stream

from antiphon.adapters.stores.memory.store import MemoryStore
from antiphon.application.ports import StoredResponse
from antiphon.application.responses.activity import ReportActivity
from antiphon.domain.responses.activity import ActivityReport
from antiphon.domain.responses.response import Response

MODEL = "scripted-chat"
PATH = "/console/activity"


@pytest.fixture(scope="module")
def clients(
    serve_from: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, httpx.Client]]:
    folder: Path = tmp_path_factory.mktemp("activity")
    file = folder / "keys.toml"
    keys = {tenant: new_key(file, tenant) for tenant in ("blue", "red", "new")}
    with serve_from(folder, auth="on", keys_file=file, store="sqlite") as server:
        made = {
            tenant: httpx.Client(base_url=f"{server.url}/v1", headers=bearer(key), timeout=20)
            for tenant, key in keys.items()
        }
        made["nobody"] = httpx.Client(base_url=f"{server.url}/v1")
        yield made
        for each in made.values():
            each.close()


def activity(client: httpx.Client, **params: str) -> httpx.Response:
    return client.get(str(client.base_url.join(PATH)), params=params)


def test_a_tenant_sees_the_figures_of_its_own(clients: dict[str, httpx.Client]) -> None:
    blue = clients["blue"]
    stream(blue, model=MODEL, input=script({"say": "word " * 99}), max_output_tokens=16)
    create(clients["red"], model=MODEL, input="hi")
    report = activity(blue, span="day").json()
    [group] = report["groups"]
    assert (group["name"], group["figures"]["requests"]) == (MODEL, 1)
    assert group["figures"]["output_tokens"] == 16
    assert group["figures"]["first_token"]["p50"] > 0
    assert report["buckets"][-1]["reasons"] == {"max_output_tokens": 1}
    assert (report["read"], report["covered_from"]) == (1, None)
    assert activity(clients["new"]).json()["buckets"] == []
    assert activity(clients["nobody"]).status_code == 401


@pytest.mark.parametrize(("name", "value"), [("span", "year"), ("by", "tenant")])
def test_a_wrong_parameter_is_named(
    clients: dict[str, httpx.Client], name: str, value: str
) -> None:
    refused = activity(clients["blue"], **{name: value})
    assert refused.status_code == 400
    assert name in refused.json()["error"]["message"]


async def test_a_report_reads_so_much_and_says_how_far_it_came() -> None:
    store, now = MemoryStore(), int(time.time())
    for number in range(300):
        made = Response(id=f"resp_{number}", created_at=now - 300 + number, model="m")
        await store.create_response("blue", StoredResponse(response=made))
    report_activity = ReportActivity(store, now=lambda: now, max_read=120)
    report = await report_activity("blue", "day", "model")
    assert (report.read, report.covered_from) == (120, now - 120)
    report = await ReportActivity(store, now=lambda: now)("blue", "day", "model")
    assert (report.read, report.covered_from) == (300, None)


async def test_pages_that_ask_together_read_once() -> None:
    report_activity = ReportActivity(MemoryStore(), now=lambda: 1e9)
    first, *others = await asyncio.gather(
        *(report_activity("blue", "hour", "model") for _ in range(3))
    )
    assert isinstance(first, ActivityReport)
    assert all(each is first for each in others)


async def test_a_tenant_with_many_pages_holds_up_no_other_tenant() -> None:
    report_activity = ReportActivity(MemoryStore(), now=lambda: 1e9)
    ended: list[str] = []

    async def ask(tenant: str, only: str) -> None:
        await report_activity(tenant, "hour", "model", only)
        ended.append(tenant)

    greedy = (ask("greedy", f"model-{number}") for number in range(8))
    await asyncio.gather(*greedy, ask("other", "model"))
    assert "other" in ended[:3]  # after the one that was read, and a turn of the greedy
