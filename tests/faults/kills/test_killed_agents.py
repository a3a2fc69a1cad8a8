"""Servers that are killed while sub-agents work: none starts twice, and none is lost."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.faults.support.replicas import LEASE_S, frames_of, replicas, stream, wait_for
from tests.faults.support.simulation import (
    Clients,
    SimulatedLoop,
    SimulatedServer,
    make_app,
)
from tests.golden.test_golden_flows import check_order
from tests.http.tools.test_multi_agent import BETA as BETA_HEADER
from tests.http.tools.test_multi_agent import GO
from tests.http.wire.test_injecting import Injector
from tests.http.wire.websocket_client import url_of
from tests.support.machine_speed import slowness
from websockets.sync.client import connect

from antiphon.adapters.stores.memory.store import MemoryStore

pytestmark = pytest.mark.faults

Json = dict[str, Any]

KILLS = int(os.environ.get("ANTIPHON_TEST_AGENT_KILLS", "6"))
"""How many servers are killed on each store."""

STEPS = int(os.environ.get("ANTIPHON_TEST_AGENT_STEPS", "24"))
"""At so many calls of the store the server is killed; 1000 tries them all."""

BETA = "responses_multi_agent=v1"
ENDS = ("completed", "incomplete", "failed", "cancelled")
AGENTS = ["/root", "/root/a", "/root/a/deep", "/root/b"]
TEXTS = Counter(["Deep.", "A.", "B.", "B again.", "All done."])


def spawn(name: str, *turns: Any) -> Json:
    message = f"@@script {json.dumps(turns)}"
    return {"call": "spawn_agent", "args": {"task_name": name, "message": message}}


def tree(tick: float) -> str:
    """Return a script in which four agents start, wait, write and go on."""
    wait = {"call": "wait_agent"}

    def say(text: str) -> Json:
        return {"say": text, "tick": tick}

    deep = spawn("deep", say("Deep."))
    again = {"target": "b", "message": f"@@script {json.dumps([say('B again.')])}"}
    turns = [
        [spawn("a", deep, wait, say("A.")), spawn("b", say("B."))],
        wait,
        wait,
        [{"call": "followup_task", "args": again}],
        wait,
        say("All done."),
    ]
    return f"@@script {json.dumps(turns)}"


def check(response: Json, stored: list[Json]) -> None:
    """Check the response, and all responses of its tree."""
    assert response["status"] == "completed", response["error"]
    texts = [item["content"][0]["text"] for item in response["output"] if item["type"] == "message"]
    assert Counter(texts) == TEXTS
    assert texts[-1] == "All done."
    ids = [item["id"] for item in response["output"]]
    assert len(ids) == len(set(ids))
    of_tree = [each for each in stored if each["id"] != response["id"]]
    assert [each["status"] for each in of_tree] == ["completed"] * 4  # b has two
    calls = Counter(
        item["action"] for item in response["output"] if item["type"] == "multi_agent_call_output"
    )
    assert (calls["spawn_agent"], calls["followup_task"]) == (3, 1)


# --- at each step, in made-up time ----------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("simulated")


@pytest.fixture(scope="module")
def app(folder: Path) -> Any:
    return make_app(folder)


@pytest.fixture
def silent() -> Iterator[None]:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


async def play(folder: Path, app: Any, at: int | None, *, takes_effect: bool) -> int:
    """Kill the first server at its call number `at` after it has taken the request, and check what
    the second one makes of it. Return how many calls the first has made."""
    kept = MemoryStore(steady=asyncio.get_running_loop().time)
    first, second = SimulatedServer(folder, kept), SimulatedServer(folder, kept)

    async def unseen(_response_id: str, _number: int, _frame: bytes) -> None: ...

    clients = Clients(app, unseen, headers={"openai-beta": BETA})
    await first.start()
    body = {
        "model": "scripted-chat",
        "input": tree(0.05),
        "background": True,
        "multi_agent": {"enabled": True},
    }
    created = (await clients.ask(first, "POST", "/responses", body)).json
    path = f"/responses/{created['id']}"
    taken = len(first.store.calls)
    if at is not None:
        first.store.die(taken + at, takes_effect=takes_effect)
        async with asyncio.timeout(120):
            await first.store.has_died.wait()
        await first.kill()
        await kept.end_heartbeat(first.owner)  # as if its time were up
    await second.start()
    async with asyncio.timeout(300):
        while (  # noqa: ASYNC110 - as clients poll, in made-up time
            response := (await clients.ask(second, "GET", path)).json
        )["status"] not in ENDS:
            await asyncio.sleep(0.1)
    stored = (await clients.ask(second, "GET", "/responses?limit=100")).json["data"]
    check(response, stored)
    told = await clients.ask(second, "GET", f"{path}?stream=true")
    events = [told.event(number) for number in sorted(told.frames)]
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    assert events[-1]["response"] == response
    check_order(events)
    return len(first.store.calls) - taken


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("takes_effect", [True, False])
@pytest.mark.timeout(60 + 8 * STEPS)
def test_a_server_may_be_killed_at_any_call_of_the_store(
    folder: Path, app: Any, takes_effect: bool
) -> None:
    def run(at: int | None) -> int:
        random.seed(0)
        with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
            return runner.run(play(folder, app, at, takes_effect=takes_effect))

    made = run(None)
    chosen = random.Random(str(takes_effect)).sample(range(1, made), min(STEPS, made - 1))
    for at in sorted(chosen):
        try:
            run(at)
        except BaseException as error:
            error.add_note(f"call {at} of {made}")
            raise


# --- in a storm -----------------------------------------------------------------------------------

AT_A_TIME = 6


@pytest.mark.timeout(120 + 10 * KILLS)
def test_no_agent_starts_twice_and_none_is_lost_in_a_storm_of_kills(
    tmp_path: Path, shared_store: list[str]
) -> None:
    chance = random.Random(KILLS)
    with replicas(tmp_path, *shared_store, "--run-attempts", "1000") as living:
        started: list[str] = []
        ended: dict[str, Json] = {}
        for kill in range(KILLS):
            _fill(living, started, ended, kill)
            time.sleep(chance.uniform(0.0, 0.9))  # anywhere in the life of the trees
            victim = chance.choice(living)
            victim.kill()
            victim.start()
        for response_id in started:
            limit_s = LEASE_S + 30 * slowness()
            ended[response_id] = wait_for(lambda r=response_id: _over(living, r), limit_s=limit_s)
        stored = _all_responses(living[0].api)
    by_root: dict[str, list[Json]] = {response_id: [] for response_id in started}
    parents = {each["id"]: each["metrics"].get("parent_response_id") for each in stored}
    for each in stored:
        root = each["id"]
        while parents[root]:
            root = parents[root]
        by_root[root].append(each)
    print(f"{KILLS} kills, {len(started)} trees")
    for response_id in started:
        check(ended[response_id], by_root[response_id])


def _fill(living: Any, started: list[str], ended: dict[str, Json], kill: int) -> None:
    for response_id in started:
        if response_id not in ended and (response := _over(living, response_id)) is not None:
            ended[response_id] = response
    while len(started) - len(ended) < AT_A_TIME:
        model = ("scripted-chat", "scripted-harmony")[len(started) % 2]
        body = {
            "model": model,
            "input": tree(0.02),
            "background": True,
            "multi_agent": {"enabled": True},
        }
        server = living[(kill + len(started)) % len(living)]
        answer = httpx.post(f"{server.api}/responses", json=body, headers={"OpenAI-Beta": BETA})
        assert answer.status_code == 200, answer.text
        started.append(answer.json()["id"])


def _over(living: Any, response_id: str) -> Json | None:
    found: Json = httpx.get(f"{living[0].api}/responses/{response_id}", timeout=30).json()
    return found if found["status"] in ENDS else None


def _all_responses(api: str) -> list[Json]:
    found: list[Json] = []
    after: Json = {}
    while True:
        params = {"limit": 100, "include[]": "metrics", **after}
        page = httpx.get(f"{api}/responses", params=params, timeout=30).json()
        found += page["data"]
        if not page["has_more"]:
            return found
        after = {"after": page["last_id"]}


# --- with a client that injects -------------------------------------------------------------------


def test_a_response_goes_on_with_the_outputs_that_a_client_had_injected(
    tmp_path: Path, shared_store: list[str]
) -> None:
    agents = [
        spawn(name, {"call": "go"}, {"say": f"{name} went.", "delay": 1.0})
        for name in ("north", "south")
    ]
    wait = {"call": "wait_agent"}
    with replicas(tmp_path, *shared_store) as (victim, other):
        with connect(url_of(victim), proxy=None, additional_headers=BETA_HEADER) as connection:
            client = Injector(connection, "scripted-chat")
            turns = (agents, wait, wait, wait, {"say": "All went."})
            response_id, (first, second) = client.begin(*turns, calls=2)
            assert client.inject(response_id, first)["type"] == "response.inject.created"
            while client.event().get("item", {}).get("type") != "function_call_output":
                pass
            victim.kill()
        limit_s = LEASE_S + 30 * slowness()
        ended = wait_for(lambda: _over([other], response_id), limit_s=limit_s)
        assert ended["status"] == "completed", ended["error"]
        agents_of = {
            item["call_id"]: item["agent"]["agent_name"].rpartition("/")[2]
            for item in ended["output"]
            if item["type"] == "function_call"
        }
        assert _texts_of(ended) == [f"{agents_of[first]} went."]
        told = [
            json.loads(frame.partition(b"data: ")[2])
            for frame in frames_of(stream(other.api, response_id)).values()
        ]
        check_order(told)
        body = {
            "model": client.model,
            "input": [{"type": "function_call_output", "call_id": second, "output": "Go."}],
            "previous_response_id": response_id,
            "multi_agent": {"enabled": True},
            "tools": [GO],
        }
        answer = httpx.post(f"{other.api}/responses", json=body, headers=BETA_HEADER, timeout=30)
        assert _texts_of(answer.json()) == [f"{agents_of[second]} went.", "All went."]


def _texts_of(response: Json) -> list[str]:
    items = response["output"]
    return [item["content"][0]["text"] for item in items if item["type"] == "message"]
