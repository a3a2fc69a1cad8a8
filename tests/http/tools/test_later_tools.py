"""Tools that come later: by additional_tools, by a search of the client or of the server."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter
from tests.http.conftest import create

EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)

PAY = {"type": "function", "name": "pay_invoice", "description": "Pays a bill."}
HIDDEN = {**PAY, "defer_loading": True}
CRM = {
    "type": "namespace",
    "name": "crm",
    "description": "Customers and orders.",
    "tools": [
        {"type": "function", "name": "find_order", "defer_loading": True},
        {"type": "function", "name": "merge_customers", "defer_loading": True},
    ],
}
SEARCH = {"type": "tool_search"}


def types(output: list[dict[str, Any]]) -> list[str]:
    return [item["type"] for item in output]


def test_tools_of_the_input_are_callable_from_there_on(
    http: httpx.Client, model: str, script: Any
) -> None:
    asked = script({"call": "pay_invoice", "args": {}}, {"say": "paid"})
    brought = {"type": "additional_tools", "role": "developer", "tools": [PAY]}
    first = create(http, model=model, input=[brought, {"role": "user", "content": asked}])
    assert types(first["output"]) == ["function_call"]
    assert first["tools"] == []
    call = first["output"][0]
    answer = {"type": "function_call_output", "call_id": call["call_id"], "output": "ok"}
    again = script({"call": "pay_invoice", "args": {"n": 2}})
    second = create(
        http,
        model=model,
        input=[answer, {"role": "user", "content": again}],
        previous_response_id=first["id"],
    )
    assert second["output"][-1]["arguments"] == '{"n": 2}'


def test_a_bad_tool_of_the_input_is_named(http: httpx.Client, model: str) -> None:
    brought = {"type": "additional_tools", "role": "developer", "tools": [PAY, {"name": "f"}]}
    refusal = http.post("/responses", json={"model": model, "input": [brought]})
    assert refusal.status_code == 400
    assert refusal.json()["error"]["param"] == "input[0].tools[1].type"


def test_tools_that_the_client_found_are_callable(
    http: httpx.Client, model: str, script: Any
) -> None:
    asked = script(
        {"call": "tool_search", "args": {"query": "pay"}},
        {"call": "pay_invoice", "args": {}},
    )
    tools = [{**SEARCH, "execution": "client"}]
    first = create(http, model=model, input=asked, tools=tools)
    search = first["output"][0]
    found = {"type": "tool_search_output", "call_id": search["call_id"], "tools": [HIDDEN]}
    second = create(http, model=model, input=[found], tools=tools, previous_response_id=first["id"])
    assert types(second["output"]) == ["function_call"]


def test_the_server_searches_and_goes_on_with_what_it_found(
    http: httpx.Client, model: str, script: Any
) -> None:
    asked = script(
        {"call": "tool_search", "args": {"query": "pay the invoice"}},
        {"call": "pay_invoice", "args": {}},
        {"say": "paid"},
    )
    tools = [HIDDEN, CRM, SEARCH]
    first = create(http, model=model, input=asked, tools=tools)
    search, found, call = first["output"]
    assert (search["type"], search["execution"], search["call_id"]) == (
        "tool_search_call",
        "server",
        None,
    )
    assert (found["type"], found["execution"], found["call_id"]) == (
        "tool_search_output",
        "server",
        None,
    )
    assert [tool["name"] for tool in found["tools"]] == ["pay_invoice"]
    assert (call["type"], call["name"]) == ("function_call", "pay_invoice")
    answer = {"type": "function_call_output", "call_id": call["call_id"], "output": "ok"}
    second = create(
        http, model=model, input=[answer], tools=tools, previous_response_id=first["id"]
    )
    assert second["output"][-1]["content"][0]["text"] == "paid"
    asked_again = [{"role": "user", "content": asked}, *first["output"], answer]
    replayed = create(http, model=model, input=asked_again, tools=tools, store=False)
    assert replayed["usage"]["input_tokens"] == second["usage"]["input_tokens"]


def test_a_search_streams_as_items_that_open_and_close_at_once(
    http: httpx.Client, model: str, script: Any, frames: Any
) -> None:
    asked = script({"call": "tool_search", "args": {"query": "find"}}, {"say": "found"})
    body = {"model": model, "input": asked, "tools": [CRM, SEARCH], "stream": True}
    events = frames(http.post("/responses", json=body).text)
    for event in events:
        EVENT.validate_python(event)
    assert [event["type"].rpartition(".")[2] for event in events[2:6]] == [
        "added",
        "done",
        "added",
        "done",
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    final = events[-1]["response"]
    assert types(final["output"]) == ["tool_search_call", "tool_search_output", "message"]
    [crm] = final["output"][1]["tools"]
    assert [tool["name"] for tool in crm["tools"]] == ["find_order"]


def test_a_call_beside_a_search_is_the_clients_to_answer_first(
    http: httpx.Client, model: str, script: Any
) -> None:
    open_tool = {"type": "function", "name": "now"}
    turn = [{"call": "tool_search", "args": {"query": "pay"}}, {"call": "now", "args": {}}]
    asked = script(turn, {"say": "done"})
    response = create(http, model=model, input=asked, tools=[open_tool, HIDDEN, SEARCH])
    assert types(response["output"])[-2:] == ["function_call", "tool_search_output"]
    assert response["status"] == "completed"


def test_all_turns_share_the_token_limit_of_the_response(
    http: httpx.Client, model: str, script: Any
) -> None:
    search = {"call": "tool_search", "args": {"query": "pay"}}
    talk = {"say": "word ", "repeat": 90}
    asked = script(search, talk)
    free = create(http, model=model, input=asked, tools=[CRM, SEARCH])
    assert free["status"] == "completed"
    cut = create(http, model=model, input=asked, tools=[CRM, SEARCH], max_output_tokens=60)
    assert cut["status"] == "incomplete"
    assert cut["incomplete_details"] == {"reason": "max_output_tokens"}
    assert cut["usage"]["output_tokens"] == 60
    assert types(cut["output"])[-1] == "message"
    searches = script(*[search] * 9, {"say": "done"})
    ended = create(http, model=model, input=searches, tools=[CRM, SEARCH], max_output_tokens=60)
    assert ended["status"] == "incomplete"
    assert ended["usage"]["output_tokens"] <= 60


@pytest.mark.parametrize("tools", [[HIDDEN], [HIDDEN, CRM]])
def test_deferred_tools_without_a_search_are_callable_immediately(
    http: httpx.Client, model: str, tools: Any
) -> None:
    assert create(http, model=model, input="hi", tools=tools)["output"][-1]["name"] == "pay_invoice"
