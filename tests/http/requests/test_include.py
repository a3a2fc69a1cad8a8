"""`include`: what is hidden without it, shown with it, and never lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from tests.http.conftest import create

Json = dict[str, Any]

WITH_ALL: Mapping[str, Json] = {
    "web_search_call.action.sources": {
        "type": "web_search_call",
        "id": "ws_1",
        "status": "completed",
        "action": {
            "type": "search",
            "query": "q",
            "sources": [{"type": "url", "url": "https://a.example"}],
        },
    },
    "web_search_call.results": {
        "type": "web_search_call",
        "id": "ws_2",
        "status": "completed",
        "action": {"type": "search", "query": "q"},
        "results": [{"url": "https://a.example"}],
    },
    "code_interpreter_call.outputs": {
        "type": "code_interpreter_call",
        "id": "ci_1",
        "status": "completed",
        "code": "1",
        "container_id": "cntr_1",
        "outputs": [{"type": "logs", "logs": "1"}],
    },
    "file_search_call.results": {
        "type": "file_search_call",
        "id": "fs_1",
        "status": "completed",
        "queries": ["q"],
        "results": [{"file_id": "file_1", "text": "found"}],
    },
}


def field(item: Json, value: str) -> Any:
    found: Any = item
    for name in value.split(".")[1:]:
        found = (found or {}).get(name)
    return found


@pytest.mark.parametrize("value", sorted(WITH_ALL))
def test_a_list_shows_a_field_only_to_those_who_include_it(
    http: httpx.Client, model: str, value: str
) -> None:
    whole = WITH_ALL[value]
    question = {"role": "user", "content": "hi"}
    response = create(http, model=model, input=[whole, question])
    path = f"/responses/{response['id']}/input_items"
    hidden = http.get(path).json()["data"][-1]
    assert field(hidden, value) is None
    assert hidden["id"] == whole["id"]
    for query in ({"include[]": value}, {"include": value}, {"include": f"{value},{value}"}):
        assert http.get(path, params=query).json()["data"][-1] == whole
    again = create(http, model=model, input=[hidden, question])
    listed = http.get(f"/responses/{again['id']}/input_items", params={"include[]": value}).json()
    assert listed["data"][-1] == whole


@pytest.mark.one_process
def test_reasoning_that_was_kept_is_sealed_for_whoever_asks_later(
    http: httpx.Client, model: str, script: Any, frames: Any
) -> None:
    asked = script([{"think": "one two"}, {"call": "f"}], {"say": "done"})
    tools = [{"type": "function", "name": "f"}]
    body = {"model": model, "input": asked, "tools": tools, "enable_response_messages": True}
    first = create(http, **body)
    assert "encrypted_content" not in first["output"][0]
    path = f"/responses/{first['id']}"
    query = {"include[]": "reasoning.encrypted_content"}
    sealed = http.get(path, params=query).json()["output"]
    assert "one two" not in sealed[0]["encrypted_content"]
    assert http.get(path).json()["output"] == first["output"]
    events = frames(http.get(path, params=query | {"stream": "true"}).text)
    done = [each["item"] for each in events if each["type"] == "response.output_item.done"]
    assert events[-1]["response"]["output"] == done
    assert done[0]["encrypted_content"]
    result = {"type": "function_call_output", "call_id": first["output"][-1]["call_id"]}
    only_sealed = {"type": "reasoning", "summary": []}
    only_sealed["encrypted_content"] = sealed[0]["encrypted_content"]
    given = [{"role": "user", "content": asked}, only_sealed, *first["output"][1:]]
    second = create(http, **body | {"input": [*given, result | {"output": "1"}]})
    assert "one two" in str(second["input_messages"])


def test_pictures_that_the_client_sent_are_always_listed(http: httpx.Client) -> None:
    picture = {"type": "input_image", "image_url": "data:image/gif;base64,R0lGODlhAQABAAAAADs="}
    given = [{"role": "user", "content": [picture]}]
    response = create(http, model="scripted-harmony", input=given)
    listed = http.get(f"/responses/{response['id']}/input_items").json()["data"]
    assert listed[0]["content"][0]["image_url"] == picture["image_url"]
    create(http, model="scripted-harmony", input=listed)


def test_an_id_that_a_client_made_up_twice_brings_nothing_back(http: httpx.Client) -> None:
    call = {"type": "code_interpreter_call", "id": "ci_x", "container_id": "cntr_1"}
    question = {"role": "user", "content": "hi"}
    one = {**call, "code": "1", "outputs": [{"type": "logs", "logs": "secret"}]}
    create(http, model="scripted-chat", input=[one, question])
    other = {**call, "code": "2", "outputs": None}
    second = create(http, model="scripted-chat", input=[other, question])
    query = {"include[]": "code_interpreter_call.outputs"}
    listed = http.get(f"/responses/{second['id']}/input_items", params=query).json()["data"]
    assert listed[-1]["outputs"] is None
