"""Conversations: objects of their own, and what responses leave in them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.http.conftest import create as create_response

LONG = {"say": "x ", "repeat": 100_000, "tick": 0.01}
ITEMS = {"items": [{"role": "user", "content": "hi"}]}


def converse(http: httpx.Client, *texts: str, **body: Any) -> str:
    """Create a conversation with a user message for each text, and return its path."""
    items = [{"role": "user", "content": text} for text in texts]
    answer = http.post("/conversations", json={"items": items, **body})
    assert answer.status_code == 200, answer.text
    return f"/conversations/{answer.json()['id']}"


def id_of(path: str) -> str:
    return path.removeprefix("/conversations/")


def create(http: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    fields = {"model": "scripted-chat", "input": "hi", "conversation": id_of(path), **body}
    return create_response(http, **fields)


def listed(http: httpx.Client, path: str) -> list[dict[str, Any]]:
    answer = http.get(f"{path}/items", params={"order": "asc", "limit": 100})
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["data"]
    return found


def texts(items: list[dict[str, Any]]) -> list[str]:
    return ["".join(part["text"] for part in item["content"]) for item in items]


def refused(answer: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


# --- the object -----------------------------------------------------------------------------------


def test_a_conversation_is_retrieved_as_it_was_created(http: httpx.Client) -> None:
    created = http.post("/conversations", json={"metadata": {"topic": "é"}}).json()
    assert set(created) == {"id", "object", "created_at", "metadata"}
    assert created["id"].startswith("conv_")
    assert (created["object"], created["metadata"]) == ("conversation", {"topic": "é"})
    assert http.get(f"/conversations/{created['id']}").json() == created


def test_metadata_is_replaced_whole(http: httpx.Client) -> None:
    path = converse(http, metadata={"a": "1", "b": "2"})
    updated = http.post(path, json={"metadata": {"c": "3"}}).json()
    assert updated["metadata"] == {"c": "3"}
    assert http.get(path).json() == updated
    assert http.post(path, json={"metadata": None}).json()["metadata"] == {}


def test_a_deleted_conversation_is_gone_for_every_verb(http: httpx.Client) -> None:
    path = converse(http, "hi")
    item_id = listed(http, path)[0]["id"]
    deleted = http.delete(path)
    assert deleted.json() == {
        "id": id_of(path),
        "object": "conversation.deleted",
        "deleted": True,
    }
    for answer in (
        http.get(path),
        http.post(path, json={"metadata": {}}),
        http.delete(path),
        http.get(f"{path}/items"),
        http.post(f"{path}/items", json=ITEMS),
        http.get(f"{path}/items/{item_id}"),
        http.delete(f"{path}/items/{item_id}"),
    ):
        assert refused(answer, 404)["message"]
    body = {"model": "scripted-chat", "input": "x", "conversation": id_of(path)}
    assert refused(http.post("/responses", json=body), 404)["param"] == "conversation"
    assert refused(http.post("/responses/input_tokens", json=body), 404)["param"] == "conversation"


# --- its items ------------------------------------------------------------------------------------


def test_items_are_listed_as_resources_and_keep_what_is_unknown(http: httpx.Client) -> None:
    easy = {"role": "user", "content": "hi", "made_up": {"x": 1}}
    call = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
    path = converse(http, items=[easy, {**call, "id": "fc_mine"}])
    message, called = listed(http, path)
    assert message["id"].startswith("msg_")
    assert message == {
        "type": "message",
        "id": message["id"],
        "role": "user",
        "status": "completed",
        "content": [{"type": "input_text", "text": "hi"}],
        "made_up": {"x": 1},
    }
    assert called == {**call, "id": "fc_mine", "status": "completed"}


def test_adding_items_answers_with_the_list_of_them(http: httpx.Client) -> None:
    path = converse(http, "first")
    added = http.post(
        f"{path}/items",
        params={"include[]": "message.output_text.logprobs"},
        json={"items": [{"role": "developer", "content": t} for t in ("second", "third")]},
    ).json()
    assert (added["object"], added["has_more"]) == ("list", False)
    assert texts(added["data"]) == ["second", "third"]
    assert (added["first_id"], added["last_id"]) == tuple(item["id"] for item in added["data"])
    assert listed(http, path)[1:] == added["data"]


def test_items_are_paged_in_both_orders_by_last_id(http: httpx.Client) -> None:
    path = converse(http, *"abcde")
    seen: list[dict[str, Any]] = []
    query: dict[str, Any] = {"limit": 2}
    while True:
        page = http.get(f"{path}/items", params=query).json()
        seen += page["data"]
        if not page["has_more"]:
            break
        query["after"] = page["last_id"]
    assert texts(seen) == list("edcba")
    assert seen[::-1] == listed(http, path)


def test_an_empty_list_has_no_ids(http: httpx.Client) -> None:
    page = http.get(f"{converse(http)}/items").json()
    assert page == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }


def test_one_item_is_retrieved_and_removed(http: httpx.Client) -> None:
    path = converse(http, "keep", "drop")
    keep, drop = listed(http, path)
    assert http.get(f"{path}/items/{drop['id']}").json() == drop
    assert http.delete(f"{path}/items/{drop['id']}").json() == http.get(path).json()
    assert listed(http, path) == [keep]
    refused(http.get(f"{path}/items/{drop['id']}"), 404)
    refused(http.delete(f"{path}/items/{drop['id']}"), 404)


def test_an_item_of_another_conversation_is_unknown(http: httpx.Client) -> None:
    path, other = converse(http, "mine"), converse(http, "theirs")
    theirs = listed(http, other)[0]
    refused(http.get(f"{path}/items/{theirs['id']}"), 404)
    refused(http.delete(f"{path}/items/{theirs['id']}"), 404)
    assert listed(http, other) == [theirs]


def test_an_item_can_be_referenced_from_anywhere(http: httpx.Client) -> None:
    item = listed(http, converse(http, "remember me"))[0]
    reference = {"type": "item_reference", "id": item["id"]}
    other = converse(http, items=[reference])
    assert listed(http, other) == [item]
    answered = create_response(http, model="scripted-chat", input=[reference])
    assert answered["output"][0]["content"][0]["text"] == "Echo: remember me"


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"items": 5}, "items", "invalid_type"),
        ({"items": [{"role": "user", "content": "x"}] * 21}, "items", "array_above_max_length"),
        ({"metadata": {"k": 5}}, "metadata.k", "invalid_type"),
        ({"metadata": {"k": "x" * 513}}, "metadata.k", "string_above_max_length"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata", "object_above_max_properties"),
        ({"items": ["hi"]}, "items[0]", "invalid_type"),
        ({"items": [{"role": "user"}]}, "items[0].content", "missing_required_parameter"),
        (
            {"items": [*ITEMS["items"] * 3, {"role": "judge", "content": "x"}]},
            "items[3].role",
            "invalid_value",
        ),
        ({"items": [{"type": "bogus"}]}, "items[0].type", "invalid_value"),
        (
            {"items": [{"type": "function_call_output", "output": "x"}]},
            "items[0].call_id",
            "missing_required_parameter",
        ),
        ({"items": [{"type": "item_reference", "id": "msg_none"}]}, "items", None),
    ],
)
def test_a_wrong_field_of_a_new_conversation_is_named(
    http: httpx.Client, body: dict[str, Any], param: str, code: str | None
) -> None:
    error = refused(http.post("/conversations", json=body))
    assert (error["param"], error["code"]) == (param, code)


@pytest.mark.parametrize(
    ("method", "below", "body", "param"),
    [
        ("POST", "", {}, "metadata"),
        ("POST", "", {"metadata": 5}, "metadata"),
        ("POST", "/items", {}, "items"),
        ("POST", "/items", {"items": []}, "items"),
        ("POST", "/items", {"items": [{"role": "judge", "content": "x"}]}, "items[0].role"),
        ("POST", "/items?include[]=bogus", ITEMS, "include[0]"),
        ("GET", "/items?limit=0", None, "limit"),
        ("GET", "/items?limit=101", None, "limit"),
        ("GET", "/items?order=sideways", None, "order"),
        ("GET", "/items?after=msg_none", None, "after"),
        ("GET", "/items?include=bogus", None, "include[0]"),
        ("GET", "/items/msg_none?include[]=bogus", None, "include[0]"),
    ],
)
def test_a_wrong_field_or_query_is_named(
    http: httpx.Client, method: str, below: str, body: Any, param: str
) -> None:
    path = converse(http, "hi")
    assert refused(http.request(method, path + below, json=body))["param"] == param
    assert texts(listed(http, path)) == ["hi"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b'{"metadata": {"a": "\\ud800"}}'])
def test_a_body_that_is_no_object_is_refused(http: httpx.Client, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    refused(http.post("/conversations", content=body, headers=headers))


def test_an_unknown_field_is_reported_or_refused(serve: Callable[..., Any]) -> None:
    answers = []
    for strict in (False, True):
        with serve(strict_unknown_fields=strict) as server:
            answers.append(httpx.post(f"{server.api}/conversations", json={"made_up": 1}))
    assert answers[0].headers["x-antiphon-ignored"] == "made_up"
    assert refused(answers[1])["code"] == "unknown_parameter"


# --- responses in it ------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("store", [False, True])
def test_a_response_leaves_its_input_and_output_in_order(
    http: httpx.Client, model: str, frames: Any, stream: bool, store: bool
) -> None:
    path = converse(http, "seed")
    body = {"model": model, "input": "one", "conversation": id_of(path), "store": store}
    if stream:
        events = frames(http.post("/responses", json={**body, "stream": True}).text)
        first = events[-1]["response"]
        assert events[0]["response"]["conversation"] == {"id": id_of(path)}
    else:
        first = create_response(http, **body)
    assert first["conversation"] == {"id": id_of(path)}
    second = create_response(http, **{**body, "input": "two", "conversation": {"id": id_of(path)}})
    items = listed(http, path)
    assert texts(items) == ["seed", "one", "Echo: one", "two", "Echo: two"]
    assert items[2] == first["output"][0]
    assert items[4] == second["output"][0]
    assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]


def test_a_tool_call_is_answered_in_the_next_response(
    http: httpx.Client, model: str, script: Any
) -> None:
    path = converse(http, script({"call": "f", "args": {}}, {"say": "done"}))
    tools = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]
    called = create(http, path, model=model, input=None, tools=tools)
    call = next(item for item in called["output"] if item["type"] == "function_call")
    answer = {"type": "function_call_output", "call_id": call["call_id"], "output": "1"}
    done = create(http, path, model=model, input=[answer], tools=tools)
    assert done["output"][-1]["content"][0]["text"] == "done"
    kinds = [item["type"] for item in listed(http, path)]
    assert kinds == ["message", "function_call", "function_call_output", "message"]


def test_input_items_are_the_items_that_the_model_received(http: httpx.Client) -> None:
    path = converse(http, "seed")
    first = create(http, path, input="one")
    second = create(http, path, input="two")

    def given(response: dict[str, Any]) -> list[dict[str, Any]]:
        query = {"order": "asc"}
        found: list[dict[str, Any]] = http.get(
            f"/responses/{response['id']}/input_items", params=query
        ).json()["data"]
        return found

    everything = listed(http, path)
    assert given(first) == everything[:2]
    assert given(second) == everything[:4]
    third = create_response(
        http, model="scripted-chat", input="three", previous_response_id=second["id"]
    )
    assert given(third)[:5] == everything
    assert third["conversation"] is None


def test_a_count_is_what_a_run_is_charged_for(http: httpx.Client, model: str) -> None:
    path = converse(http, "a few words")
    body = {"model": model, "input": "more", "conversation": id_of(path)}
    counted = http.post("/responses/input_tokens", json=body).json()["input_tokens"]
    assert counted == create_response(http, **body)["usage"]["input_tokens"]


def test_items_outlive_their_response_and_a_response_its_conversation(http: httpx.Client) -> None:
    path = converse(http)
    first, second = create(http, path, input="one"), create(http, path, input="two")
    http.delete(f"/responses/{first['id']}")
    assert texts(listed(http, path)) == ["one", "Echo: one", "two", "Echo: two"]
    http.delete(path)
    assert http.get(f"/responses/{second['id']}").json() == second


def test_a_conversation_and_another_source_exclude_each_other(http: httpx.Client) -> None:
    path = converse(http)
    body = {"model": "scripted-chat", "input": "x", "conversation": id_of(path)}
    for field, value in (("previous_response_id", "resp_x"), ("previous_input_messages", [])):
        for url in ("/responses", "/responses/input_tokens"):
            error = refused(http.post(url, json={**body, field: value}))
            assert error["code"] == "mutually_exclusive_parameters"


@pytest.mark.parametrize("value", [5, {}, {"id": 5}, ["conv_x"]])
def test_a_conversation_is_named_by_its_id(http: httpx.Client, value: Any) -> None:
    body = {"model": "scripted-chat", "input": "x", "conversation": value}
    assert refused(http.post("/responses", json=body))["param"].startswith("conversation")


# --- one at a time --------------------------------------------------------------------------------


def wait_for_output(http: httpx.Client, response_id: str) -> None:
    """Return once the response has written something."""
    with http.stream("GET", f"/responses/{response_id}", params={"stream": "true"}) as answer:
        assert any("output_text.delta" in line for line in answer.iter_lines())


def test_a_second_response_in_a_conversation_is_refused_with_retry_advice(
    http: httpx.Client, script: Any
) -> None:
    path = converse(http)
    running = create(http, path, input=script(LONG), background=True)
    body = {"model": "scripted-chat", "input": "x", "conversation": id_of(path)}
    for answer in (
        http.post("/responses", json=body),
        http.post("/responses", json={**body, "stream": True, "store": False}),
        http.post(f"{path}/items", json=ITEMS),
    ):
        error = refused(answer)
        assert (error["code"], error["param"]) == ("conversation_locked", "conversation")
        assert "Another process is currently operating on this conversation" in error["message"]
    assert http.post("/responses/input_tokens", json=body).status_code == 200
    assert http.post(path, json={"metadata": {"while": "it runs"}}).status_code == 200
    assert listed(http, path) == []
    wait_for_output(http, running["id"])
    cancelled = http.post(f"/responses/{running['id']}/cancel").json()
    assert create(http, path, input=script({"say": "next"}))["status"] == "completed"
    assert cancelled["output"][0] in listed(http, path)


def test_concurrent_responses_are_neither_lost_nor_interleaved(http: httpx.Client) -> None:
    path = converse(http)
    body = {"model": "scripted-chat", "conversation": id_of(path)}
    answers: list[httpx.Response] = []

    def ask(number: int) -> None:
        answers.append(http.post("/responses", json={**body, "input": f"from {number}"}))

    threads = [threading.Thread(target=ask, args=[n]) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done = [answer.json() for answer in answers if answer.status_code == 200]
    assert done
    for answer in answers:
        assert answer.status_code == 200 or refused(answer)["code"] == "conversation_locked"
    found = texts(listed(http, path))
    assert len(found) == 2 * len(done)
    assert all(said == f"Echo: {asked}" for asked, said in zip(found[::2], found[1::2]))  # noqa: B905


@pytest.mark.parametrize("store", [False, True])
def test_a_failed_response_leaves_nothing_and_frees(
    http: httpx.Client, script: Any, store: bool
) -> None:
    path = converse(http, "seed")
    body = {"model": "scripted-chat", "conversation": id_of(path), "store": store}
    failing = script([{"say": "half"}, {"fail": "server_error"}])
    assert http.post("/responses", json={**body, "input": failing}).status_code == 500
    assert texts(listed(http, path)) == ["seed"]
    assert create(http, path, input="next")["status"] == "completed"


@pytest.mark.parametrize(
    "wrong",
    [
        {"model": "none"},
        {"input": [{"role": "judge", "content": "x"}]},
        {"input": [{"type": "function_call_output", "call_id": "call_none", "output": "x"}]},
        {"input": "word " * 200_000},
        {"tools": [{"type": "function"}]},
    ],
    ids=["model", "item", "pair", "context length", "tool"],
)
def test_a_request_that_is_refused_frees(http: httpx.Client, wrong: dict[str, Any]) -> None:
    path = converse(http)
    body = {"model": "scripted-chat", "input": "x", "conversation": id_of(path)}
    refused(http.post("/responses", json={**body, **wrong}))
    assert create(http, path)["status"] == "completed"


@pytest.mark.parametrize("store", [False, True])
def test_a_client_that_leaves_frees(http: httpx.Client, script: Any, store: bool) -> None:
    path = converse(http)
    body = {"model": "scripted-chat", "conversation": id_of(path), "store": store}
    body |= {"input": script(LONG), "stream": True}
    with http.stream("POST", "/responses", json=body) as stream:
        assert next(stream.iter_lines()) == "event: response.created"
    next_one = {**body, "input": script({"say": "next"}), "stream": False}
    while (answer := http.post("/responses", json=next_one)).status_code != 200:
        assert refused(answer)["code"] == "conversation_locked"
    found = texts(listed(http, path))
    assert found[0] == body["input"]
    assert found[-2:] == [next_one["input"], "next"]


def test_a_conversation_that_is_deleted_while_it_runs(http: httpx.Client, script: Any) -> None:
    path = converse(http)
    running = create(http, path, input=script(LONG), background=True)
    http.delete(path)
    response = f"/responses/{running['id']}"
    assert http.post(f"{response}/cancel").json()["status"] == "cancelled"
    refused(http.get(path), 404)


@pytest.mark.parametrize("store", [False, True])
def test_a_server_that_stops_frees(
    serve: Callable[..., Any], tmp_path: Path, script: Any, store: bool
) -> None:
    kept = {"store": f"sqlite:///{tmp_path}/kept.db", "graceful_shutdown_s": 0}
    with httpx.Client() as staying, serve(**kept) as server:
        with httpx.Client(base_url=server.api) as http:
            path = converse(http, "seed")
        body = {"model": "scripted-chat", "conversation": id_of(path), "store": store}
        body |= {"input": script(LONG), "stream": True}
        asked = staying.build_request("POST", f"{server.api}/responses", json=body)
        lines = staying.send(asked, stream=True).iter_lines()  # which is left when it is let go
        assert next(lines) == "event: response.created"
    with serve(**kept) as server, httpx.Client(base_url=server.api) as http:
        assert texts(listed(http, path)) == ["seed"]
        create(http, path, input="next")
        assert texts(listed(http, path)) == ["seed", "next", "Echo: next"]


def test_the_server_describes_its_conversations(server: Any) -> None:
    described = httpx.get(f"{server.url}/schema/openapi.json").json()
    added = described["paths"]["/v1/conversations/{conversation_id}/items"]["post"]
    body = added["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/NewItems"}
    assert "metadata" in json.dumps(described["components"]["schemas"]["Conversation"])


def test_a_conversation_has_an_item_once(http: httpx.Client) -> None:
    item = {"type": "message", "id": "msg_twice", "role": "user", "content": "hi"}
    assert (
        "msg_twice" in refused(http.post("/conversations", json={"items": [item, item]}))["message"]
    )
    path = converse(http)
    assert http.post(f"{path}/items", json={"items": [item]}).status_code == 200
    error = refused(http.post(f"{path}/items", json={"items": [item]}))
    assert error["param"] == "items"
    assert len(listed(http, path)) == 1
