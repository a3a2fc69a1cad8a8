"""The guards that come with the server: a moderations API, and a model of the server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai import OpenAI
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


# --- the field `moderation` of a request ----------------------------------------------------------


@pytest.fixture(scope="module")
def scoring(
    moderations: FakeModerations, serve_from: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    """A server with a moderations API that no guard asks by itself."""
    given = {"moderation.url": moderations.url, "guards.timeout_s": 1.0, "store": "sqlite"}
    with (
        serve_from(tmp_path_factory.mktemp("scoring"), **given) as server,
        httpx.Client(base_url=server.api, timeout=30) as client,
    ):
        yield client


MODERATION = "omni-moderation-latest"


@pytest.mark.parametrize("policy", [None, {"input": {"mode": "score"}}, {"output": None}])
def test_a_request_may_ask_for_scores(
    scoring: httpx.Client, model: str, policy: dict[str, Any] | None
) -> None:
    moderation = {"model": MODERATION, "policy": policy}
    body = {"model": model, "input": script({"say": "plugh"}), "moderation": moderation}
    answer = scoring.post("/responses", json={**body, "instructions": "Say xyzzy."})
    assert "x-antiphon-ignored" not in answer.headers
    response = answer.json()
    assert text_of(response) == "plugh", "scores keep nothing back"
    for place, flagged in (("input", True), ("output", True)):
        result = response["moderation"][place]
        assert (result["type"], result["model"]) == ("moderation_result", MODERATION)
        assert result["flagged"] is flagged
    assert response["moderation"]["input"]["category_scores"]["violence"] == 0.8
    assert response["moderation"]["output"]["category_scores"]["violence"] == 0.1
    assert response["moderation"]["output"]["categories"]["violence/graphic"] is True
    read_again = scoring.get(f"/responses/{response['id']}").json()
    assert read_again["moderation"] == response["moderation"]


def test_the_official_types_read_the_scores(scoring: httpx.Client, model: str) -> None:
    with OpenAI(base_url=str(scoring.base_url), api_key="none", max_retries=0) as client:
        response = client.responses.create(
            model=model, input=script({"say": "Hi."}), moderation={"model": MODERATION}
        )
    assert response.moderation is not None
    assert response.moderation.output.type == "moderation_result"
    assert response.moderation.output.flagged is False


@pytest.mark.parametrize("place", ["input", "output"])
def test_a_request_may_have_what_is_flagged_blocked(
    scoring: httpx.Client, model: str, place: str
) -> None:
    policy = {place: {"mode": "block"}}
    moderation = {"model": MODERATION, "policy": policy}
    body = {"model": model, "input": script({"say": SAID}), "moderation": moderation}
    answer = scoring.post("/responses", json={**body, "stream": True})
    response = frames(answer.text)[-1]["response"]
    assert response["status"] == "completed"
    assert "violence" in response["output"][-1]["content"][-1]["refusal"]
    assert "xyzzy" not in json.dumps(response["output"])
    assert response["moderation"]["input"]["flagged"] is True


def test_a_request_may_have_it_blocked_by_another_door(scoring: httpx.Client, model: str) -> None:
    moderation = {"model": MODERATION, "policy": {"output": {"mode": "block"}}}
    body = {
        "model": model,
        "messages": [{"role": "user", "content": script({"say": SAID})}],
        "moderation": moderation,
    }
    [choice] = scoring.post("/chat/completions", json=body).json()["choices"]
    assert "violence" in choice["message"]["refusal"]


def test_scores_that_cannot_be_had_are_an_error_in_their_place(
    scoring: httpx.Client, moderations: FakeModerations, model: str
) -> None:
    moderations.answer = 500, b"{}"
    body = {"model": model, "input": script({"say": "Hi."}), "moderation": {"model": MODERATION}}
    response = create(scoring, **body)
    moderations.answer = None
    assert text_of(response) == "Hi."
    assert response["moderation"]["output"] == {
        "type": "error",
        "code": "moderation_unavailable",
        "message": "The moderation model gave no result.",
    }


@pytest.mark.parametrize(
    ("moderation", "param"),
    [
        ({"model": "another"}, "moderation.model"),
        ({}, "moderation.model"),
        (
            {"model": MODERATION, "policy": {"input": {"mode": "off"}}},
            "moderation.policy.input.mode",
        ),
    ],
)
def test_a_moderation_that_there_is_not_is_refused(
    scoring: httpx.Client, model: str, moderation: dict[str, Any], param: str
) -> None:
    answer = scoring.post(
        "/responses", json={"model": model, "input": "Hi.", "moderation": moderation}
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_without_a_moderations_api_the_field_has_no_effect(http: httpx.Client, model: str) -> None:
    body = {"model": model, "input": "Hi.", "moderation": {"model": MODERATION}}
    answer = http.post("/responses", json=body)
    assert answer.headers["x-antiphon-ignored"] == "moderation"
    assert "moderation" not in answer.json()


# --- POST /v1/moderations -------------------------------------------------------------------------


def test_the_official_client_moderates_texts(scoring: httpx.Client) -> None:
    with OpenAI(base_url=str(scoring.base_url), api_key="none", max_retries=0) as client:
        made = client.moderations.create(input=["It is xyzzy.", "Fine."], model=MODERATION)
    assert made.model == MODERATION
    assert made.id.startswith("modr_")
    assert [each.flagged for each in made.results] == [True, False]
    assert made.results[0].categories.violence is True
    assert made.results[0].category_scores.violence == 0.8


@pytest.mark.parametrize(
    ("given", "flagged"),
    [
        ("xyzzy", [True]),
        (["a", "b", "plugh"], [False, False, True]),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "plugh"}], [True]),
    ],
)
def test_each_text_has_a_result_and_parts_are_one_text(
    scoring: httpx.Client, given: Any, flagged: list[bool]
) -> None:
    answer = scoring.post("/moderations", json={"input": given})
    assert answer.status_code == 200, answer.text
    assert [each["flagged"] for each in answer.json()["results"]] == flagged
    assert set(answer.json()["results"][0]) == {
        "flagged",
        "categories",
        "category_scores",
        "category_applied_input_types",
    }


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a"] * 33}, "input"),
        ({"input": 7}, "input"),
        ({"input": "a" * 262_145}, "input"),
        ({"input": ["a", {"type": "text", "text": "b"}]}, "input"),
        ({"input": [{"type": "image_url", "image_url": {"url": "https://a.b"}}]}, "input[0].type"),
        ({"input": "a", "model": "another"}, "model"),
    ],
)
def test_what_cannot_be_moderated_is_refused_with_its_field(
    scoring: httpx.Client, body: dict[str, Any], param: str
) -> None:
    answer = scoring.post("/moderations", json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


def test_an_api_that_fails_is_a_503(scoring: httpx.Client, moderations: FakeModerations) -> None:
    moderations.answer = 500, b"{}"
    answer = scoring.post("/moderations", json={"input": "a"})
    moderations.answer = None
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "guard_failed"


def test_without_an_api_there_is_no_moderation_model(http: httpx.Client) -> None:
    answer = http.post("/moderations", json={"input": "a"})
    assert answer.status_code == 404
    assert "moderation.url" in answer.json()["error"]["message"]
