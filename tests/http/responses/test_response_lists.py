"""`GET /v1/responses` and `GET /v1/conversations`: pages, filters, tenants."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.http.access.test_auth import bearer, new_key
from tests.http.conftest import create, script, wait_until

pytestmark = pytest.mark.slow

Json = dict[str, Any]


@pytest.fixture(params=["memory", "sqlite"])
def own(request: pytest.FixtureRequest, serve_from: Any, tmp_path: Path) -> Iterator[httpx.Client]:
    """A client of a server that nobody else uses."""
    with (
        serve_from(tmp_path, store=request.param) as server,
        httpx.Client(base_url=server.api, timeout=30) as client,
    ):
        yield client


def make(client: httpx.Client, text: str = "hi", **fields: Any) -> Json:
    return create(client, **{"model": "scripted-chat", "input": text, **fields})


def found(client: httpx.Client, **query: Any) -> list[str]:
    answer = client.get("/responses", params=query)
    assert answer.status_code == 200, answer.text
    return [response["id"] for response in answer.json()["data"]]


def test_responses_are_listed_by_newest(own: httpx.Client) -> None:
    made = [make(own)["id"] for _ in range(5)]
    page = own.get("/responses", params={"limit": 2}).json()
    assert page["object"] == "list"
    assert [each["id"] for each in page["data"]] == made[:2:-1]
    assert (page["first_id"], page["last_id"], page["has_more"]) == (made[4], made[3], True)
    assert page["searched"] == 2
    rest = own.get("/responses", params={"limit": 3, "after": page["last_id"]}).json()
    assert [each["id"] for each in rest["data"]] == made[2::-1]
    assert rest["has_more"] is False
    assert found(own, order="asc") == made


def test_an_empty_list_is_a_list(own: httpx.Client) -> None:
    empty = {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
        "searched": 0,
    }
    assert own.get("/responses").json() == empty
    assert own.get("/conversations").json() == empty


def test_a_list_shows_responses_in_short(own: httpx.Client) -> None:
    made = make(own, instructions="Be brief.", metadata={"n": "1"})
    [shown] = own.get("/responses").json()["data"]
    assert {name: made[name] for name in shown} == shown
    left_out = {"output", "instructions", "tools", "metrics"}
    assert left_out.isdisjoint(shown)
    [with_metrics] = own.get("/responses", params={"include[]": "metrics"}).json()["data"]
    assert with_metrics["metrics"]["turns"][0]["output_tokens"] > 0


def test_filters_find_what_they_name(own: httpx.Client) -> None:
    conversation = own.post("/conversations", json={}).json()["id"]
    plain = make(own)["id"]
    tagged = make(own, metadata={"team": "blue", "a&b[]": "ü"})["id"]
    other = make(own, model="scripted-harmony")["id"]
    within = make(own, conversation=conversation)["id"]
    after = make(own, previous_response_id=plain)["id"]
    cut = make(own, script({"say": "word " * 40}), max_output_tokens=16)["id"]
    assert found(own, **{"metadata[team]": "blue"}) == [tagged]
    assert found(own, **{"metadata[a&b[]]": "ü"}) == [tagged]
    assert found(own, **{"metadata[team]": "red"}) == []
    assert found(own, model="scripted-harmony") == [other]
    assert found(own, conversation=conversation) == [within]
    assert found(own, previous_response_id=plain) == [after]
    assert found(own, error="max_output_tokens") == [cut]
    assert found(own, status="incomplete") == [cut]
    assert len(found(own, status="incomplete,completed")) == 6
    assert found(own, created_before=1) == []
    assert len(found(own, created_after=1)) == 6


@pytest.mark.one_process
def test_a_running_response_is_listed_as_such(own: httpx.Client) -> None:
    slow = script({"say": "word " * 500, "tick": 0.05})
    for background in (True, False):
        body: Json = {"model": "scripted-chat", "input": slow, "background": background}
        with ExitStack() as stack:
            if background:
                running = own.post("/responses", json=body).json()["id"]
            else:
                request = own.stream("POST", "/responses", json={**body, "stream": True})
                answer = stack.enter_context(request)
                lines = answer.iter_lines()
                assert next(lines) == "event: response.created"
                running = found(own, status="in_progress")[0]

            def is_writing(running: str = running) -> bool:
                page = own.get("/responses", params={"include": "metrics", "status": "in_progress"})
                shown = {each["id"]: each for each in page.json()["data"]}
                return running in shown and shown[running]["metrics"].get("phase") == "writing"

            wait_until(is_writing)
            if background:
                own.post(f"/responses/{running}/cancel")
        wait_until(lambda: found(own, status="in_progress") == [])


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"status": "done"}, "status"),
        ({"status": ""}, "status"),
        ({"limit": 0}, "limit"),
        ({"limit": 101}, "limit"),
        ({"order": "up"}, "order"),
        ({"created_after": "yesterday"}, "created_after"),
        ({"after": "resp_unknown"}, "after"),
        ({"include[]": "everything"}, "include[0]"),
        ({"modle": "m"}, "modle"),
        ({"metadata": "x"}, "metadata"),
    ],
)
def test_a_bad_parameter_is_named(http: httpx.Client, query: Json, param: str) -> None:
    answer = http.get("/responses", params=query)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_conversations_are_listed_and_filtered(own: httpx.Client) -> None:
    made = [
        own.post("/conversations", json={"metadata": {"n": str(number % 2)}}).json()["id"]
        for number in range(4)
    ]
    page = own.get("/conversations", params={"limit": 3}).json()
    assert [each["id"] for each in page["data"]] == made[:0:-1]
    assert page["has_more"] is True
    odd = own.get("/conversations", params={"metadata[n]": "1", "order": "asc"}).json()
    assert [each["id"] for each in odd["data"]] == made[1::2]
    assert own.get("/conversations", params={"status": "x"}).json()["error"]["param"] == "status"
    assert own.get("/conversations", params={"after": "conv_x"}).status_code == 400


def test_tenants_see_only_their_own(serve_from: Any, tmp_path: Path) -> None:
    keys_file = tmp_path / "keys.toml"
    keys = {tenant: new_key(keys_file, tenant) for tenant in ("a", "b")}
    with (
        serve_from(tmp_path, auth="on", keys_file=keys_file) as server,
        httpx.Client(base_url=server.api, headers=bearer(keys["a"]), timeout=10) as ours,
        httpx.Client(base_url=server.api, headers=bearer(keys["b"]), timeout=10) as theirs,
    ):
        mine = make(ours)["id"]
        ours.post("/conversations", json={})
        assert found(ours) == found(ours, key="test") == [mine]
        assert found(theirs) == found(theirs, key="test") == []
        assert theirs.get("/conversations").json()["data"] == []
        assert theirs.get("/responses", params={"after": mine}).status_code == 400
        assert httpx.get(f"{server.api}/responses").status_code == 401


def test_a_list_shows_the_first_lines_of_input_and_output(own: httpx.Client) -> None:
    said = "  \nThe answer\nhas two lines."
    asked = script({"say": said})
    make(own, input=[{"role": "user", "content": f"First.\n{asked}"}], instructions="No.")
    [plain] = own.get("/responses").json()["data"]
    assert "preview" not in plain
    [shown] = own.get("/responses", params={"include[]": "metrics"}).json()["data"]
    assert shown["preview"] == {"input": "First.", "output": "The answer"}
    path = f"/responses/{shown['id']}"
    assert "preview" not in own.get(path).json()
    assert own.get(path, params={"include[]": "metrics"}).json()["preview"] == shown["preview"]


def test_a_long_line_is_shortened_in_the_list(own: httpx.Client) -> None:
    make(own, input="word " * 1000)
    [shown] = own.get("/responses", params={"include[]": "metrics"}).json()["data"]
    assert len(shown["preview"]["input"]) == 160
    assert shown["preview"]["input"].endswith("…")
