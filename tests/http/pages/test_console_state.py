"""`GET /console/state`: what the server does now, as one tenant may know it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.http.access.test_auth import bearer, new_key
from tests.http.conftest import create, script, wait_until

from antiphon.application.support.bytes_in_work import MAX_BYTES, SUBJECTS
from antiphon.domain.access.limits import KeyPolicy

MODEL = "scripted-chat"


@pytest.fixture(scope="module")
def clients(
    serve_from: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, httpx.Client]]:
    folder: Path = tmp_path_factory.mktemp("state")
    file = folder / "keys.toml"
    keys = {tenant: new_key(file, tenant) for tenant in ("blue", "red")}
    with serve_from(folder, auth="on", keys_file=file, store="sqlite") as server:
        made = {
            tenant: httpx.Client(base_url=server.url, headers=bearer(key), timeout=20)
            for tenant, key in keys.items()
        }
        made["nobody"] = httpx.Client(base_url=server.url)
        yield made
        for each in made.values():
            each.close()


def test_it_needs_a_key(clients: dict[str, httpx.Client]) -> None:
    assert clients["nobody"].get("/console/state").status_code == 401


def test_a_tenant_sees_its_own_use_and_only_totals_of_others(
    clients: dict[str, httpx.Client],
) -> None:
    blue, red = clients["blue"], clients["red"]
    before = blue.get("/console/state").json()
    hanging: dict[str, Any] = {"model": MODEL, "input": script([{"hang": 600}]), "background": True}
    theirs = red.post("/v1/responses", json={**hanging, "metadata": {"secret": "canary"}}).json()
    wait_until(lambda: blue.get("/console/state").json()["runs"]["background"] == 1)
    answer = blue.get("/console/state")
    state = answer.json()
    assert state["tenant"] == before["tenant"]
    assert state["tenant"]["name"] == "blue"
    for secret in (theirs["id"], "canary", "red"):
        assert secret not in answer.text
    red.post(f"/v1/responses/{theirs['id']}/cancel")


def test_the_state_names_models_store_and_limits(clients: dict[str, httpx.Client]) -> None:
    state = clients["blue"].get("/console/state").json()
    assert state["server"]["store_kind"] == "sqlite"
    assert [state["server"][part] for part in ("state", "engine", "store")] == ["ok", "ok", "ok"]
    [chat] = [each for each in state["models"] if MODEL in each["names"]]
    assert (chat["state"], chat["context_length"] > 0) == ("ok", True)
    assert state["runs"]["background_slots"] > 0
    assert set(state["memory"]["work_bytes"]) == set(SUBJECTS)
    assert state["memory"]["max_work_bytes"] == MAX_BYTES


def test_what_is_stored_is_counted(clients: dict[str, httpx.Client]) -> None:
    blue = clients["blue"]
    before = blue.get("/console/state").json()["tenant"]["responses"]
    with httpx.Client(base_url=f"{str(blue.base_url).rstrip('/')}/v1", headers=blue.headers) as api:
        create(api, model=MODEL, input="hi")
    assert blue.get("/console/state").json()["tenant"]["responses"] == before + 1


def test_the_state_shows_the_use_of_limits_and_quotas(serve: Any, tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    key = new_key(file, "blue", KeyPolicy(limits={"requests/min": 9}))
    quotas = {"quota_responses": 50, "quota_bytes": 10**6}
    with (
        serve(auth="on", keys_file=file, store="sqlite", keep_events_s=30.0, **quotas) as server,
        httpx.Client(base_url=server.url, headers=bearer(key), timeout=20) as client,
    ):
        client.post("/v1/responses", json={"model": MODEL, "input": "hi"})
        state = client.get("/console/state").json()
    assert state["tenant"]["limits"] == [{"name": "requests/min", "limit": 9, "used": 1}]
    assert (state["tenant"]["responses"], state["tenant"]["max_responses"]) == (1, 50)
    assert state["tenant"]["max_bytes"] == 10**6
    assert state["server"]["keep_events_s"] == 30


def test_the_state_says_what_a_request_may_have(serve: Any, tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    keys = {
        name: new_key(file, name, policy)
        for name, policy in (("all", KeyPolicy()), ("none", KeyPolicy(tools=("web_search",))))
    }
    settings = {"tool": ["tests.http.odd_tools:OddTools"], "max_body_bytes": 5000}
    with serve(auth="on", keys_file=file, max_media=7, **settings) as server:
        wanted = {
            name: httpx.get(f"{server.url}/console/state", headers=bearer(key)).json()["requests"]
            for name, key in keys.items()
        }
    assert wanted["all"] == {"max_body_bytes": 5000, "max_media": 7, "tool_labels": ["odd"]}
    assert wanted["none"]["tool_labels"] == []
