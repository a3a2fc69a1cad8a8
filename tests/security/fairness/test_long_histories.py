"""A long history is read in pages: it holds up no other tenant, whatever store has it.

`pytest -s` prints what was seen. ANTIPHON_TEST_HISTORY is the number of items.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.faults.conftest import STORES
from tests.security.support.other_tenant import (
    ATTEMPTS,
    Attack,
    client_of,
    compare,
    make_keys,
    request_of,
)
from tests.security.support.server_probe import MAX_GROWTH_BYTES, ProbedServer, probe_server

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

ITEMS = int(os.environ.get("ANTIPHON_TEST_HISTORY", "18000"))
AT_ONCE = 9000
"""One request may have 10,000 items."""

READERS = 40
FULL_LOAD_S = 2.0
MODEL = "scripted-chat"
MAX_PAGE_S = 0.02
"""A page of 20 items took 30 to 160 ms when the whole history was read for it."""


class Tenants:
    """A server with a long history of one of its tenants, in a conversation and in a chain."""

    def __init__(
        self, server: ProbedServer, greedy: httpx.Client, rival: httpx.Client, other: httpx.Client
    ) -> None:
        self.server = server
        self.greedy = greedy
        self.rival = rival
        self.other = other
        self.chain, conversation = _tell_a_long_story(greedy)
        self.items = f"/conversations/{conversation}/items"
        self.pages = [f"/responses/{self.chain[-1]}/input_items", self.items]


@pytest.fixture(scope="module", params=STORES)
def tenants(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Tenants]:
    folder = tmp_path_factory.mktemp(request.param)
    keys, options = make_keys(folder, ("greedy", "rival", "other"))
    with (
        STORES[request.param](folder) as address,
        probe_server(folder, "--store", address, *options) as server,
        client_of(server, keys["greedy"]) as greedy,
        client_of(server, keys["rival"]) as rival,
        client_of(server, keys["other"]) as other,
    ):
        yield Tenants(server, greedy, rival, other)


def continuation_of(response: str) -> dict[str, Any]:
    body = {"model": MODEL, "input": "hi", "store": False, "truncation": "auto"}
    return {**body, "previous_response_id": response}


def _tell_a_long_story(client: httpx.Client) -> tuple[list[str], str]:
    """Return a chain of responses and a conversation whose histories have ITEMS items each."""
    conversation = client.post("/conversations", json={}).raise_for_status().json()["id"]
    chain: list[str] = []
    for start in range(0, ITEMS, AT_ONCE):
        items = [{"role": "user", "content": "hi"}] * min(AT_ONCE, ITEMS - start)
        body = {"model": MODEL, "input": items, "truncation": "auto"}
        chained = {**body, "previous_response_id": chain[-1] if chain else None}
        chain.append(client.post("/responses", json=chained).raise_for_status().json()["id"])
        talked = {**body, "conversation": conversation}
        client.post("/responses", json=talked).raise_for_status()
    return chain, conversation


def test_others_do_not_wait_while_a_long_history_is_listed(
    tenants: Tenants, tmp_path: Path
) -> None:
    attacks = [
        Attack(request_of(tenants.greedy, "GET", path), READERS // 2) for path in tenants.pages
    ]
    kept = tenants.other.post("/responses", json={"model": MODEL, "input": "hi"}).json()["id"]
    work = lambda: tenants.other.get(f"/responses/{kept}").raise_for_status()  # noqa: E731
    compare(tenants.server, tmp_path, work, attacks).check("a response")


def test_others_do_not_wait_while_a_long_conversation_grows(
    tenants: Tenants, tmp_path: Path
) -> None:
    item = {"type": "message", "role": "user", "content": "hi"}
    body = {"items": [item, {**item, "id": "msg_odd"}]}
    refused = {"items": [item, {**item, "id": tenants.greedy.get(tenants.items).json()["last_id"]}]}
    assert tenants.greedy.post(tenants.items, json=body).status_code == 200
    assert tenants.greedy.post(tenants.items, json=refused).status_code == 400
    attack = Attack(request_of(tenants.greedy, "POST", tenants.items, json=refused), READERS)
    work = lambda: tenants.other.post("/conversations", json={}).raise_for_status()  # noqa: E731
    compare(tenants.server, tmp_path, work, [attack]).check("a conversation")


def test_a_page_costs_what_it_has(tenants: Tenants) -> None:
    for path in tenants.pages:
        whole = 0
        for order in ("asc", "desc"):
            page = tenants.greedy.get(path, params={"order": order, "limit": 100}).json()
            whole += len(page["data"])
            after = page["data"][-1]["id"]
            following = {"order": order, "limit": 20, "after": after}
            waits = []
            for _ in range(9):
                answer = tenants.greedy.get(path, params=following)
                assert len(answer.json()["data"]) == 20
                waits.append(answer.elapsed.total_seconds())
            print(f"\n{path[:16]} {order}: {sorted(waits)[4] * 1000:.1f} ms")
            assert sorted(waits)[4] < MAX_PAGE_S
        assert whole == 200


def test_many_who_continue_a_long_history_leave_little_memory(tenants: Tenants) -> None:
    continued = continuation_of(tenants.chain[0])
    send = lambda _: tenants.greedy.post("/responses", json=continued).raise_for_status()  # noqa: E731
    with ThreadPoolExecutor(READERS) as clients:
        list(clients.map(send, range(2)))  # what the first requests load
        for _ in range(ATTEMPTS):
            with tenants.server.watch() as seen:
                list(clients.map(send, range(READERS)))
            if seen.freeze_s < seen.max_freeze_s:
                break
    assert seen.growth_bytes < MAX_GROWTH_BYTES
    assert seen.freeze_s < seen.max_freeze_s


# The last ones: what a thread has begun goes on for a while when its client has left.
def test_others_hardly_wait_while_a_long_history_is_continued(
    tenants: Tenants, tmp_path: Path
) -> None:
    body = continuation_of(tenants.chain[-1])
    continued = request_of(tenants.greedy, "POST", "/responses", json=body)
    attacks = [Attack(continued, READERS // 2)]
    items = [{"role": "user", "content": "word " * 100}] * 600
    body = {"model": MODEL, "input": items, "store": False}
    work = lambda: tenants.other.post("/responses", json=body).raise_for_status()  # noqa: E731
    waits = compare(tenants.server, tmp_path, work, attacks, full_load_s=FULL_LOAD_S)
    waits.check("a request of 300 KB")


def test_others_hardly_wait_while_two_tenants_continue_long_histories(
    tenants: Tenants, tmp_path: Path
) -> None:
    """A short history is loaded at once, however many long ones of other tenants wait."""
    items = [{"role": "user", "content": "hi"}] * AT_ONCE
    story = {"model": MODEL, "input": items, "truncation": "auto"}
    rivals = tenants.rival.post("/responses", json=story).raise_for_status().json()["id"]
    attacks = [
        Attack(request_of(tenant, "POST", "/responses", json=continuation_of(long)), 5)
        for tenant, long in ((tenants.greedy, tenants.chain[0]), (tenants.rival, rivals))
    ]
    short = {"model": MODEL, "input": "hi"}
    begun = tenants.other.post("/responses", json=short).raise_for_status().json()["id"]
    body = continuation_of(begun)
    work = lambda: tenants.other.post("/responses", json=body).raise_for_status()  # noqa: E731
    waits = compare(tenants.server, tmp_path, work, attacks, full_load_s=FULL_LOAD_S)
    waits.check("a short continuation")
