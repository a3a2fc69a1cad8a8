"""Dialects: whose names a client hears, by setting and by request."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from tests.http.conftest import create

OPEN = {"x-antiphon-dialect": "open-responses"}
THOUGHT = [[{"think": "hm"}, {"say": "done"}]]


def types(stream: str) -> list[str]:
    data = [line.removeprefix("data: ") for line in stream.split("\n") if line.startswith("data: ")]
    return [each if each == "[DONE]" else json.loads(each)["type"] for each in data]


@pytest.mark.one_process
def test_one_run_is_read_in_either_dialect(http: httpx.Client, model: str, script: Any) -> None:
    body = {"model": model, "input": script(*THOUGHT), "stream": True}
    ours = http.post("/responses", json=body).text
    theirs = http.post("/responses", json=body, headers=OPEN).text
    assert types(theirs)[-1] == "[DONE]"
    renamed = [name.replace("reasoning_text", "reasoning") for name in types(ours)]
    assert [*renamed, "[DONE]"] == types(theirs)
    response_id = json.loads(ours.split("data: ")[1].split("\n")[0])["response"]["id"]
    again = http.get(f"/responses/{response_id}", params={"stream": "true"}, headers=OPEN).text
    assert types(again) == types(theirs)
    assert f"event: {types(theirs)[4]}\ndata: " in again


def test_a_failed_stream_tells_its_error_as_an_object(
    http: httpx.Client, model: str, script: Any
) -> None:
    body = {"model": model, "input": script([{"say": "x"}, {"fail": "server_error"}])}
    stream = http.post("/responses", json=body | {"stream": True}, headers=OPEN).text
    assert types(stream)[-3:] == ["error", "response.failed", "[DONE]"]
    [error] = [line for line in stream.split("\n") if line.startswith('data: {"type":"error"')]
    told = json.loads(error.removeprefix("data: "))["error"]
    assert (told["type"], told["code"]) == ("server_error", "server_error")


def test_errors_bear_the_types_of_the_dialect(http: httpx.Client, model: str) -> None:
    for headers, wrong, missing in (
        ({}, "invalid_request_error", "invalid_request_error"),
        (OPEN, "invalid_request", "not_found"),
    ):
        refused = http.post("/responses", json={"model": model}, headers=headers)
        assert refused.json()["error"]["type"] == wrong
        unknown = http.get("/responses/resp_none", headers=headers)
        assert unknown.json()["error"]["type"] == missing


def test_an_unknown_dialect_is_refused(http: httpx.Client, model: str) -> None:
    body = {"model": model, "input": "hi"}
    refused = http.post("/responses", json=body, headers={"x-antiphon-dialect": "klingon"})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "x-antiphon-dialect"


def test_the_setting_is_the_default_dialect(serve: Callable[..., Any]) -> None:
    with serve(dialect="open-responses") as server, httpx.Client(base_url=server.api) as http:
        missing = http.get("/responses/resp_none")
        assert missing.json()["error"]["type"] == "not_found"
        other = http.get("/responses/resp_none", headers={"x-antiphon-dialect": "openai"})
        assert other.json()["error"]["type"] == "invalid_request_error"


def test_every_item_has_a_status_in_open_responses(http: httpx.Client, model: str) -> None:
    shape = create(http, model=model, input="hi")
    path = f"/responses/{shape['id']}"
    ours, theirs = http.get(path).json(), http.get(path, headers=OPEN).json()
    assert ours == theirs  # a message has one anyway; tests/golden/dialects shows others
    assert all(item["status"] for item in theirs["output"])


@pytest.mark.one_process
def test_obfuscated_deltas_have_the_same_length(
    http: httpx.Client, model: str, script: Any, frames: Any
) -> None:
    said = "a considerable accumulation of words, of 1 or 12345678 letters"
    body = {"model": model, "input": script([{"think": said}, {"say": said}]), "stream": True}
    plain = frames(http.post("/responses", json=body).text)
    assert not [event for event in plain if "obfuscation" in event]
    padded = http.post("/responses", json=body | {"stream_options": {"include_obfuscation": True}})
    response_id = frames(padded.text)[0]["response"]["id"]
    query = {"stream": "true", "include_obfuscation": "true"}
    again = http.get(f"/responses/{response_id}", params=query)
    for answer in (padded, again):
        data = [line for line in answer.text.split("\n") if '.delta","seq' in line]
        assert len({len(line) for line in data}) <= 2
        assert len(data) > 5
        events = frames(answer.text)
        assert [event["type"] for event in events] == [event["type"] for event in plain]
        deltas = [event for event in events if event["type"].endswith(".delta")]
        assert all("obfuscation" in event for event in deltas)
        assert len(deltas) == len([event for event in events if "obfuscation" in event])


def test_open_responses_show_tools_and_windows(http: httpx.Client, model: str) -> None:
    body = {"model": model, "input": "hi", "tools": [{"type": "function", "name": "look"}]}
    answer = http.post("/responses", json=body, headers=OPEN)
    assert answer.status_code == 200, answer.text
    assert answer.json()["tools"][0]["name"] == "look"
    stream = http.post("/responses", json=body | {"stream": True}, headers=OPEN).text
    assert types(stream)[-2:] == ["response.completed", "[DONE]"]
    window = http.post("/responses/compact", json={"model": model, "input": "hi"}, headers=OPEN)
    assert [item["status"] for item in window.json()["output"]] == ["completed", "completed"]
