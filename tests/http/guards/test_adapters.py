"""The guards that come with the server: a moderations API, and a model of the server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.http.conftest import create, frames, script, text_of
from tests.support.moderation_server import FakeModerations, moderating

SAID = "I know that the word is xyzzy, and that this is all that there is to say."


@pytest.fixture(scope="module")
def moderations() -> Iterator[FakeModerations]:
    with moderating() as fake:
        yield fake


@pytest.fixture(scope="module")
def moderated(
    moderations: FakeModerations, serve_from: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    given = {
        "guard": ["moderation"],
        "guards.window": 20,
        "guards.timeout_s": 1.0,
        "moderation.url": moderations.url,
        "moderation.place": ["output"],
    }
    with (
        serve_from(tmp_path_factory.mktemp("moderated"), **given) as server,
        httpx.Client(base_url=server.api, timeout=30) as client,
    ):
        yield client
    moderations.go_on.set()


@pytest.fixture(scope="module")
def judged(serve_from: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A server whose scripted model judges: `true` in a text makes a statement likelier."""
    given = {
        "guard": ["moderation_model=model"],
        "guards.window": 20,
        "guards.model": "scripted-chat",
        "guards.threshold": 0.6,
        "guards.place": ["output"],
        "guards.verdict": "stop",
    }
    with (
        serve_from(tmp_path_factory.mktemp("judged"), **given) as server,
        httpx.Client(base_url=server.api, timeout=30) as client,
    ):
        yield client


def test_what_the_moderations_api_flags_is_not_shown(
    moderated: httpx.Client, moderations: FakeModerations, model: str
) -> None:
    answer = moderated.post(
        "/responses", json={"model": model, "input": script({"say": SAID}), "stream": True}
    )
    response = frames(answer.text)[-1]["response"]
    assert response["status"] == "completed"
    assert "xyzzy" not in json.dumps(response["output"])
    [message] = response["output"]
    assert "violence" in message["content"][-1]["refusal"]
    moderations.asked.clear()
    assert text_of(create(moderated, model=model, input=script({"say": "Fine."}))) == "Fine."
    assert moderations.texts == ["Fine."]


def test_a_moderations_api_that_fails_lets_nothing_pass(
    moderated: httpx.Client, moderations: FakeModerations, model: str
) -> None:
    moderations.answer = 500, b"{}"
    answer = moderated.post("/responses", json={"model": model, "input": script({"say": "Hi."})})
    moderations.answer = None
    assert answer.json()["error"]["message"] == (
        "The guard 'moderation' of this server failed: it had an error."
    )


def test_a_model_of_the_server_judges_what_another_writes(judged: httpx.Client, model: str) -> None:
    fine = create(judged, model=model, input=script({"say": "This is false."}))
    assert text_of(fine) == "This is false."
    body = {"model": model, "input": script({"say": "It is true, true and true."})}
    stopped = create(judged, **body, include=["metrics"])
    assert stopped["incomplete_details"] == {"reason": "content_filter"}
    assert text_of(stopped) == ""
    [verdict] = stopped["metrics"]["guards"]
    assert (verdict["guard"], verdict["verdict"]) == ("moderation_model", "stop")


def test_a_model_is_asked_in_windows_while_another_writes(judged: httpx.Client, model: str) -> None:
    said = "It is false. " * 20
    body = {"model": model, "input": script({"say": said}), "include": ["metrics"]}
    answer = judged.post("/responses", json={**body, "stream": True})
    response = frames(answer.text)[-1]["response"]
    assert text_of(response) == said
    [verdict] = response["metrics"]["guards"]
    assert verdict["verdict"] == "pass"
    assert verdict["count"] >= len(said) // 30
