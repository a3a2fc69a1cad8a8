"""Ids that come twice: what loses nothing is accepted, and what is ambiguous is refused."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.http.conftest import create, text_of

USER = {"type": "message", "role": "user"}
CALL = {"type": "function_call", "id": "fc_1", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "output": "x"}


def input_of(http: httpx.Client, response: dict[str, Any]) -> list[dict[str, Any]]:
    url = f"/responses/{response['id']}/input_items"
    listed: list[dict[str, Any]] = http.get(url, params={"order": "asc"}).json()["data"]
    return listed


def test_ids_of_a_client_may_come_twice(http: httpx.Client, model: str) -> None:
    asked = [{**USER, "id": "msg_1", "content": text} for text in ("One.", "Two.")]
    first = create(http, model=model, input=asked)
    assert text_of(first) == "Echo: Two."
    listed = input_of(http, first)
    assert [item["content"][0]["text"] for item in listed] == ["One.", "Two."]
    assert listed[0]["id"] == "msg_1"
    assert listed[1]["id"] not in ("msg_1", None)
    again = [{**USER, "id": "msg_1", "content": "Three."}]
    second = create(http, model=model, input=again, previous_response_id=first["id"])
    ids = [item["id"] for item in input_of(http, second)]
    assert len(ids) == len(set(ids)) == 4


def test_calls_with_one_id_keep_their_outputs(http: httpx.Client, model: str) -> None:
    pairs = [
        ({**CALL, "call_id": call_id}, {**OUTPUT, "id": "fco", "call_id": call_id})
        for call_id in ("c1", "c2")
    ]
    listed = input_of(
        http, create(http, model=model, input=[item for pair in pairs for item in pair])
    )
    assert [item["call_id"] for item in listed] == ["c1", "c1", "c2", "c2"]
    assert len({item["id"] for item in listed}) == 4


@pytest.mark.parametrize("store", [True, False])
def test_a_reference_to_what_is_there_has_no_effect(
    http: httpx.Client, model: str, store: bool
) -> None:
    first = create(http, model=model, input="hi")
    (item,) = first["output"]
    reference = {"type": "item_reference", "id": item["id"]}
    asked = {**USER, "content": "And now?"}
    plain = {"model": model, "store": store}
    beside = create(http, **plain, input=[reference, asked], previous_response_id=first["id"])
    without = create(http, **plain, input=[asked], previous_response_id=first["id"])
    assert beside["usage"]["input_tokens"] == without["usage"]["input_tokens"]
    once = create(http, **plain, input=[reference, asked])
    for others in ([reference, reference], [item, reference], [reference, item]):
        twice = create(http, **plain, input=[*others, asked])
        assert twice["usage"]["input_tokens"] == once["usage"]["input_tokens"]


def test_an_approval_that_two_items_could_mean_is_refused(http: httpx.Client, model: str) -> None:
    approval = {
        "type": "mcp_approval_request",
        "id": "mcpr_1",
        "server_label": "s",
        "name": "t",
        "arguments": "{}",
    }
    refused = http.post("/responses", json={"model": model, "input": [approval, approval]})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith("Duplicate item found with id mcpr_1.")


def test_a_conversation_takes_items_with_an_id_that_it_has(http: httpx.Client, model: str) -> None:
    said = {**USER, "id": "msg_1", "content": "One."}
    conversation = http.post("/conversations", json={"items": [said]}).json()["id"]
    asked = [{"type": "item_reference", "id": "msg_1"}, {**said, "content": "Two."}]
    create(http, model=model, input=asked, conversation=conversation)
    items = http.get(f"/conversations/{conversation}/items", params={"order": "asc"}).json()["data"]
    assert [item["content"][0]["text"] for item in items] == ["One.", "Two.", "Echo: Two."]
    assert len({item["id"] for item in items}) == 3


@pytest.mark.parametrize("length", [64, 65, 256])
def test_the_ids_of_calls_may_be_long(http: httpx.Client, model: str, length: int) -> None:
    call_id = "c" * length
    asked = [{**CALL, "call_id": call_id}, {**OUTPUT, "call_id": call_id}]
    assert create(http, model=model, input=asked)["status"] == "completed"


@pytest.mark.parametrize(
    ("query", "param", "values"),
    [
        ("order=bogus", "order", ("'asc'", "'desc'")),
        ("include=bogus", "include[0]", ("'reasoning.encrypted_content'",)),
    ],
)
def test_wrong_parameters_of_an_address_list_the_right_ones(
    http: httpx.Client, query: str, param: str, values: tuple[str, ...]
) -> None:
    response = create(http, model="scripted-chat", input="hi")
    refused = http.get(f"/responses/{response['id']}/input_items?{query}")
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, param)
    assert all(value in error["message"] for value in values)


def test_a_wrong_type_of_tool_choice_lists_the_right_ones(http: httpx.Client) -> None:
    body = {"model": "scripted-chat", "input": "hi", "tool_choice": {"type": "bogus"}}
    error = http.post("/responses", json=body).json()["error"]
    assert error["param"] == "tool_choice"
    assert "allowed_tools" in error["message"]
    assert "function" in error["message"]
