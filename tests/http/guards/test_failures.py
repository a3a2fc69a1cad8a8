"""Guards that fail: nothing passes, unless the operator says so; others are not held up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.http.conftest import create, frames, script, text_of
from tests.http.guards.conftest import SAID, TOOLS, ServeGuarded
from tests.http.guards.odd_guards import WORD

pytestmark = pytest.mark.slow

REASONS = {
    "raise": "it had an error",
    "hang": "it gave no verdict in 0.3 s",
    "nonsense": "it returned something that is no verdict",
}


@pytest.fixture(scope="module", params=REASONS)
def fault(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=["input", "tool_result", "output"])
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def serving(serve_guarded: ServeGuarded, fault: str, place: str, **settings: Any) -> Any:
    return serve_guarded(fault, place, tool=[TOOLS], **{"guards.timeout_s": 0.3, **settings})


@pytest.fixture(scope="module")
def closed(serve_guarded: ServeGuarded, fault: str, place: str) -> Iterator[httpx.Client]:
    with (
        serving(serve_guarded, fault, place) as server,
        httpx.Client(base_url=server.api, timeout=30) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def open_(serve_guarded: ServeGuarded, fault: str, place: str) -> Iterator[httpx.Client]:
    settings = {"guards.failure": "open", "metrics": True}
    with (
        serving(serve_guarded, fault, place, **settings) as server,
        httpx.Client(base_url=server.api, timeout=30) as client,
    ):
        yield client


def asking(model: str, place: str) -> dict[str, Any]:
    """Return a request of which the guard is asked about the word at this place."""
    if place == "tool_result":
        tools = [{"type": "mcp", "server_label": "odd", "require_approval": "never"}]
        turns = script({"mcp": "say", "args": {}}, {"say": "Well."})
        return {"model": model, "input": turns, "tools": tools}
    return {"model": model, "input": script({"say": SAID})}


def test_nothing_passes_a_guard_that_fails(
    closed: httpx.Client, model: str, fault: str, place: str
) -> None:
    message = f"The guard 'words' of this server failed: {REASONS[fault]}."
    answer = closed.post("/responses", json={**asking(model, place), "stream": True})
    if place == "input":
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "guard_failed"
        assert answer.json()["error"]["message"] == message
        return
    response = frames(answer.text)[-1]["response"]
    assert WORD not in answer.text.replace(json.dumps(script({"say": SAID}))[1:-1], "")
    if place == "output":
        assert response["status"] == "failed"
        assert response["error"] == {"code": "server_error", "message": message}
    else:
        [call] = [item for item in response["output"] if item["type"] == "mcp_call"]
        assert call["error"]["content"] == message
        assert text_of(response) == "Well."


def test_a_text_passes_if_the_operator_says_so_and_the_record_tells(
    open_: httpx.Client, model: str, fault: str, place: str
) -> None:
    response = create(open_, **asking(model, place), include=["metrics"])
    assert response["status"] == "completed"
    assert WORD in json.dumps(response["output"])
    [failed] = [each for each in response["metrics"]["guards"] if each["verdict"] == "failed"]
    assert (failed["guard"], failed["place"]) == ("words", place)
    labels = f'guard="words",place="{place}",verdict="failed"'
    metrics = open_.get("/metrics", headers={"accept": "text/plain"})
    if metrics.status_code == 404:
        metrics = httpx.get(str(open_.base_url).removesuffix("/v1/") + "/metrics")
    assert f"antiphon_guard_verdicts_total{{{labels}}}" in metrics.text


def test_a_guard_that_hangs_holds_up_no_other_response(serve_guarded: ServeGuarded) -> None:
    with (
        serve_guarded("hang", "output", **{"guards.timeout_s": 30.0}) as server,
        httpx.Client(base_url=server.api, timeout=20) as client,
    ):
        body = {"model": "scripted-chat", "background": True}
        hanging = create(client, **body, input=script({"say": SAID}))
        assert text_of(create(client, model="scripted-chat", input=script({"say": "Hi."}))) == "Hi."
        cancelled = client.post(f"/responses/{hanging['id']}/cancel").json()
        assert cancelled["status"] == "cancelled"
        assert WORD not in json.dumps(cancelled["output"])
