"""`POST /v1/decisions`: questions about an input, answered with probabilities."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.http.conftest import wait_until
from tests.upstreams.chat_server import MODEL, scripted_chat_server

from antiphon.adapters.ids import new_id
from antiphon.adapters.keys.file import append
from antiphon.application.resources.keys import create_key
from antiphon.domain.access.limits import KeyPolicy

Json = dict[str, Any]

PREDICATE: Json = {"type": "predicate", "instructions": "The customer is angry."}
CHOICES: Json = {
    "type": "choice",
    "instructions": "Which team?",
    "choices": [{"value": "sales"}, {"value": "billing", "description": "invoices"}],
}
SCORE: Json = {
    "type": "score",
    "instructions": "How urgent?",
    "levels": [{"label": "low"}, {"label": "high"}, {"label": "highest"}],
}
BILLING: Json = {"type": "input_text", "text": "billing"}
LONG_JSON: Json = {"type": "input_json", "data": {"a": "x" * 2**18}}
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGA"
    "WjR9awAAAABJRU5ErkJggg=="
)


def decide(http: httpx.Client, model: str = "scripted-chat", **body: Any) -> Json:
    answer = http.post("/decisions", json={"model": model, **body})
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


def refused(http: httpx.Client, status: int = 400, **body: Any) -> Json:
    answer = http.post(
        "/decisions",
        json={"model": "scripted-chat", "input": "a", "questions": [PREDICATE], **body},
    )
    assert answer.status_code == status, answer.text
    error: Json = answer.json()["error"]
    return error


def test_each_kind_of_question_has_its_answer_in_order(http: httpx.Client, model: str) -> None:
    questions = [{**PREDICATE, "name": "angry"}, CHOICES, SCORE]
    answer = decide(http, model, input="true true invoices high high", questions=questions)
    assert answer["model"] == model
    assert answer["answers"] == [
        {"type": "predicate", "name": "angry", "probability": pytest.approx(3 / 4)},
        {
            "type": "choice",
            "name": None,
            "choice": "billing",
            "probabilities": [
                {"value": "sales", "probability": pytest.approx(1 / 3)},
                {"value": "billing", "probability": pytest.approx(2 / 3)},
            ],
            "confidence": pytest.approx(2 / 3),
        },
        {
            "type": "score",
            "name": None,
            "score": pytest.approx(1.0),
            "probabilities": [
                {"value": 0, "label": "low", "probability": pytest.approx(0.2)},
                {"value": 1, "label": "high", "probability": pytest.approx(0.6)},
                {"value": 2, "label": "highest", "probability": pytest.approx(0.2)},
            ],
            "confidence": pytest.approx(0.6),
        },
    ]


def test_the_usage_is_that_of_all_questions_and_what_they_share_is_cached(
    http: httpx.Client, model: str
) -> None:
    given = "A long story. " * 200
    [alone, all_three] = [
        decide(http, model, input=f"{model} {count} {given}", questions=[PREDICATE] * count)[
            "usage"
        ]
        for count in (1, 3)
    ]
    assert set(all_three) == {
        *("input_tokens", "input_tokens_details", "output_tokens", "output_tokens_details"),
        "total_tokens",
    }
    assert all_three["input_tokens"] == pytest.approx(3 * alone["input_tokens"], abs=3)
    assert (alone["output_tokens"], all_three["output_tokens"]) == (1, 3)
    assert all_three["total_tokens"] == all_three["input_tokens"] + 3
    assert all_three["output_tokens_details"] == {"reasoning_tokens": 0}
    cached = all_three["input_tokens_details"]
    assert cached["cache_write_tokens"] == 0
    # The first one computes the input; the two others take it from the cache.
    assert cached["cached_tokens"] > 2 * (alone["input_tokens"] - 20)


@pytest.mark.parametrize(
    "given",
    [
        [{"role": "user", "content": "billing"}],
        [
            {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "billing"}],
            }
        ],
        [{"role": "user", "content": [{"type": "input_json", "data": {"team": "billing"}}]}],
        [{"role": "user", "content": [{"type": "input_json", "data": [{"billing": None}]}]}],
        [
            {"role": "system", "content": "Be careful."},
            {"role": "developer", "content": [{"type": "input_text", "text": "Be kind."}]},
            {"role": "user", "content": [{"type": "input_image", "image_url": PIXEL}]},
            {"role": "assistant", "content": [{"type": "output_text", "text": "billing"}]},
        ],
        [
            {"role": "user", "content": "Hi"},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "billing"},
            {"type": "custom_tool_call", "call_id": "d", "name": "g", "input": "x"},
            {
                "type": "custom_tool_call_output",
                "call_id": "d",
                "output": [{"type": "input_text", "text": "done"}],
            },
        ],
    ],
)
def test_each_form_of_input_is_read(http: httpx.Client, model: str, given: Any) -> None:
    [answer] = decide(http, model, input=given, questions=[CHOICES])["answers"]
    assert answer["choice"] == "billing"
    assert answer["confidence"] == pytest.approx(2 / 3)


def test_a_question_may_have_parts_and_those_of_others_change_nothing(http: httpx.Client) -> None:
    question = {
        **CHOICES,
        "instructions": [
            {"type": "input_text", "text": "Which team answers this?"},
            {"type": "input_image", "image_url": PIXEL},
            {"type": "input_json", "data": {"teams": ["sales", "billing"]}},
        ],
    }
    asked = {"input": "sales sales"}
    [alone] = decide(http, **asked, questions=[question])["answers"]
    [_, among, _] = decide(http, **asked, questions=[PREDICATE, question, SCORE])["answers"]
    assert alone == among
    assert alone["choice"] == "sales"


def test_a_text_and_a_boolean_are_two_choices(http: httpx.Client) -> None:
    choices = [{"value": "maybe"}, {"value": True}, {"value": "true"}, {"value": False}]
    question = {**CHOICES, "choices": choices}
    [answer] = decide(http, input="true", questions=[question])["answers"]
    assert answer["choice"] is True
    assert [each["value"] for each in answer["probabilities"]] == ["maybe", True, "true", False]


def test_a_question_may_have_as_many_choices_as_the_api_allows(
    http: httpx.Client, model: str
) -> None:
    question = {**CHOICES, "choices": [{"value": f"team{number}"} for number in range(255)]}
    [answer] = decide(http, model, input="team200", questions=[question])["answers"]
    assert answer["choice"] == "team200"
    assert answer["confidence"] == pytest.approx(2 / 256)


def test_a_request_may_have_as_many_questions_as_the_api_allows(http: httpx.Client) -> None:
    questions = [{**PREDICATE, "name": str(number)} for number in range(400)]
    answers = decide(http, input="a", questions=questions)["answers"]
    assert [each["name"] for each in answers] == [str(number) for number in range(400)]


words = st.lists(st.sampled_from(["sales", "billing", "low", "high", "true", "x"]), max_size=20)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(words, st.integers(2, 40))
def test_probabilities_add_up_to_one_and_the_likeliest_is_the_answer(
    http: httpx.Client, given: list[str], count: int
) -> None:
    levels = [{"label": f"level {number}"} for number in range(count)]
    questions = [PREDICATE, CHOICES, SCORE, {**SCORE, "levels": levels}]
    predicate, choice, *scores = decide(http, input=" ".join(given), questions=questions)["answers"]
    assert 0 <= predicate["probability"] <= 1
    for answer in (choice, *scores):
        chances = [each["probability"] for each in answer["probabilities"]]
        assert math.fsum(chances) == pytest.approx(1)
        assert all(0 <= chance <= 1 for chance in chances)
        assert answer["confidence"] == max(chances)
    assert choice["choice"] == max(choice["probabilities"], key=lambda e: e["probability"])["value"]
    for score in scores:
        mean = sum(each["value"] * each["probability"] for each in score["probabilities"])
        assert score["score"] == pytest.approx(mean)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model": None}, "model"),
        ({"model": "other"}, "model"),
        ({"input": None}, "input"),
        ({"input": 1}, "input"),
        ({"input": [1]}, "input[0]"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input[0].type"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
        ({"input": [{"role": "critic", "content": "a"}]}, "input[0].role"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_json", "data": 1}]}]},
            "input[0].content[0].data",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_json"}]}]},
            "input[0].content[0].data",
        ),
        (
            {
                "input": [
                    {
                        "role": "user",
                        "content": [{"type": "input_json", "data": {"a": "x" * 2**18}}],
                    }
                ]
            },
            "input[0].content[0].data",
        ),
        ({"questions": None}, "questions"),
        ({"questions": []}, "questions"),
        ({"questions": [PREDICATE] * 401}, "questions"),
        ({"questions": [{"type": "predicate"}]}, "questions[0].instructions"),
        ({"questions": [{**PREDICATE, "type": "noul"}]}, "questions[0].type"),
        ({"questions": [{**PREDICATE, "instructions": []}]}, "questions[0].instructions"),
        ({"questions": [{**CHOICES, "choices": [{"value": "a"}]}]}, "questions[0].choices"),
        (
            {"questions": [{**CHOICES, "choices": [{"value": "a"}] * 2}]},
            "questions[0].choices",
        ),
        (
            {"questions": [{**CHOICES, "choices": [{"value": 1}, {"value": 2}]}]},
            "questions[0].choices[0].value",
        ),
        (
            {"questions": [{**CHOICES, "choices": [{"value": str(n)} for n in range(256)]}]},
            "questions[0].choices",
        ),
        ({"questions": [{**SCORE, "levels": [{"label": "a"}]}]}, "questions[0].levels"),
        ({"questions": [{**SCORE, "levels": [{}, {}]}]}, "questions[0].levels[0].label"),
        (
            {
                "questions": [
                    {
                        **PREDICATE,
                        "instructions": [{"type": "input_json", "data": {"a": [0] * 10_001}}],
                    }
                ]
            },
            "questions[0].instructions[0].data",
        ),
        ({"input": "x" * 200_000, "questions": [PREDICATE] * 400}, "questions"),
        ({"input": "word " * 140_000}, "input"),
        ({"prompt_cache_key": "x" * 65}, "prompt_cache_key"),
        ({"safety_identifier": "x" * 129}, "safety_identifier"),
    ],
)
def test_a_wrong_body_is_refused_by_name(http: httpx.Client, body: Json, param: str) -> None:
    error = refused(http, **body)
    found = (error["param"] or "").replace("questions.", "questions[0].")
    assert found.startswith(param.partition("[")[0]), error
    assert param.rpartition(".")[2].partition("[")[0] in error["message"]


def test_a_field_without_effect_is_named(http: httpx.Client) -> None:
    body = {"model": "scripted-chat", "input": "a", "questions": [PREDICATE], "joint": True}
    answer = http.post("/decisions", json=body)
    assert answer.status_code == 200
    assert answer.headers["x-antiphon-ignored"] == "joint"


# --- keys -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def keys_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("decisions") / "keys.toml"
    file.touch()
    return file


@pytest.fixture(scope="module")
def deciding(
    serve_from: Any, keys_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("served")
    with serve_from(folder, auth="on", keys_file=keys_file, store="sqlite") as served:
        yield served


@pytest.fixture
def client_with(deciding: Any, keys_file: Path) -> Any:
    def client(**policy: Any) -> httpx.Client:
        key, api_key = create_key("ci", "t", new_id=new_id, now=time.time)
        append(keys_file, replace(api_key, policy=KeyPolicy(**policy)))
        headers = {"authorization": f"Bearer {key}"}
        return httpx.Client(base_url=deciding.api, headers=headers, timeout=30)

    return client


@pytest.mark.slow
def test_a_key_needs_the_right_to_the_model(client_with: Any) -> None:
    with client_with(models=("scripted-harmony",)) as http:
        error = refused(http)
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert "'scripted-harmony'" in error["message"]
        assert "scripted-chat'," not in error["message"]
        assert decide(http, "scripted-harmony", input="a", questions=[PREDICATE])


@pytest.mark.slow
def test_a_key_that_may_only_read_decides_nothing(client_with: Any) -> None:
    with client_with(scopes=("read",)) as http:
        assert refused(http, 403)["code"] == "insufficient_permissions"


@pytest.mark.slow
def test_the_tokens_of_all_questions_count_for_the_key(client_with: Any) -> None:
    limits = {"tokens/day": 1000, "requests/day": 5, "runs": 1}
    body = {"model": "scripted-chat", "input": "a", "questions": [PREDICATE] * 3}
    with client_with(limits=limits) as http:
        first = http.post("/decisions", json=body)
        assert first.headers["x-ratelimit-remaining-requests"] == "4"
        total = first.json()["usage"]["total_tokens"]
        second = http.post("/decisions", json=body)
        # The second one has reserved one output token; the other two are not counted yet.
        left = 1000 - total - (total - 2)
        assert second.headers["x-ratelimit-remaining-tokens"] == str(left)
        error = refused(http, 429, input="word " * 1000)
        assert "tokens" in error["message"]


@pytest.mark.slow
def test_no_more_questions_are_asked_when_the_client_has_left(
    deciding: Any, client_with: Any
) -> None:
    admission, model = deciding.app.services.admission, deciding.app.models.all[0]._model
    begun = model._engine.begun
    body = {"model": "scripted-chat", "input": "word " * 5000, "questions": [PREDICATE] * 400}
    with client_with() as http:
        request = http.build_request("POST", "/decisions", json=body)
        address = request.url.host, request.url.port
        head = f"POST {request.url.path} HTTP/1.1\r\n" + "".join(
            f"{name}: {value}\r\n" for name, value in request.headers.items()
        )
        with socket.create_connection(address) as client:
            client.sendall(head.encode() + b"\r\n" + request.content)
            wait_until(lambda: model._engine.begun > begun)
    wait_until(lambda: admission.runs.held_by("t") == 0)
    assert model._engine.begun - begun < 300
    assert admission.prompt_tokens.held_by("t") == 0


# --- models that do not tell ----------------------------------------------------------------------


TABLE = """\
[[models]]
name = "far"
engine = "chat"
url = "{url}"
model = "{model}"
"""


@pytest.mark.slow
def test_a_model_behind_chat_completions_is_refused_by_name(serve: Any, tmp_path: Path) -> None:
    file = tmp_path / "chat.toml"
    with scripted_chat_server() as upstream:
        file.write_text(TABLE.format(url=upstream.url("openai"), model=MODEL), encoding="utf-8")
        with (
            serve(config=file) as served,
            httpx.Client(base_url=served.api, timeout=20) as http,
        ):
            error = refused(http, model="far")
            assert (error["param"], error["code"]) == ("model", "unsupported_value")
            assert "'far'" in error["message"]
