"""Stored completions: read again, listed and deleted, whatever API created the response."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion
from tests.http.conftest import script

Json = dict[str, Any]
PATH = "/chat/completions"


@pytest.fixture
def http(server: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.api, timeout=30) as client:
        yield client


@pytest.fixture
def official(server: Any) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.api, api_key="none", max_retries=0, timeout=30) as client:
        yield client


def keep(http: httpx.Client, label: str, *turns: Any, **body: Any) -> Json:
    messages = [{"role": "user", "content": script(*turns)}]
    asked = {"store": True, "metadata": {"label": label}, "messages": messages, **body}
    answer = http.post(PATH, json={"model": "scripted-chat", **asked})
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


@pytest.mark.parametrize(
    "turn",
    [{"say": "kept"}, [{"think": "Hm."}, {"say": "kept"}], {"call": "add", "args": {"a": 1}}],
)
def test_a_completion_is_read_as_it_was_answered(http: httpx.Client, model: str, turn: Any) -> None:
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    kept = keep(http, "read", turn, model=model, tools=tools)
    found = http.get(f"{PATH}/{kept['id']}").json()
    ChatCompletion.model_validate(found, strict=True)
    assert found == kept


def test_a_response_is_a_completion_too(http: httpx.Client) -> None:
    body = {"model": "scripted-chat", "input": script({"say": "said elsewhere"})}
    response = http.post("/responses", json=body).json()
    found = http.get(f"{PATH}/{response['id'].replace('resp_', 'chatcmpl-')}").json()
    assert found["choices"][0]["message"]["content"] == "said elsewhere"
    assert found["usage"]["prompt_tokens"] == response["usage"]["input_tokens"]


def test_the_official_client_lists_in_pages_what_it_filters(
    http: httpx.Client, official: OpenAI
) -> None:
    label = uuid.uuid4().hex
    kept = [keep(http, label, {"say": str(number)})["id"] for number in range(5)]
    keep(http, "another", {"say": "no"})
    listed = official.chat.completions.list(metadata={"label": label}, limit=2)
    assert [each.id for each in listed] == kept
    newest = official.chat.completions.list(metadata={"label": label}, order="desc", limit=1)
    assert newest.data[0].id == kept[-1]
    other = official.chat.completions.list(metadata={"label": label}, model="scripted-harmony")
    assert list(other) == []


def test_a_deleted_completion_is_gone_with_its_response(
    http: httpx.Client, official: OpenAI
) -> None:
    kept = keep(http, "deleted", {"say": "kept"})["id"]
    deleted = official.chat.completions.delete(kept)
    assert (deleted.id, deleted.deleted, deleted.object) == (kept, True, "chat.completion.deleted")
    with pytest.raises(openai.NotFoundError):
        official.chat.completions.retrieve(kept)
    assert http.get(f"/responses/{kept.replace('chatcmpl-', 'resp_')}").status_code == 404


@pytest.mark.parametrize("method", ["GET", "DELETE"])
@pytest.mark.parametrize("name", ["chatcmpl-unknown", "resp_unknown", "x"])
def test_an_unknown_completion_is_not_found(http: httpx.Client, method: str, name: str) -> None:
    answer = http.request(method, f"{PATH}/{name}")
    assert answer.status_code == 404
    assert repr(name) in answer.json()["error"]["message"]


def test_a_response_that_has_not_ended_is_no_completion(http: httpx.Client) -> None:
    asked = script({"hang": 20}, {"say": "late"})
    body = {"model": "scripted-chat", "input": asked, "background": True}
    response = http.post("/responses", json=body).json()
    answer = http.get(f"{PATH}/{response['id'].replace('resp_', 'chatcmpl-')}")
    assert answer.status_code == 404
    assert response["id"] in answer.json()["error"]["message"]
    http.post(f"/responses/{response['id']}/cancel")


def test_a_parameter_that_is_spelled_wrong_is_refused(http: httpx.Client) -> None:
    answer = http.get(PATH, params={"modle": "scripted"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "modle")
