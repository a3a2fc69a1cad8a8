"""The tool file_search over HTTP: the model's queries are searched for, then it goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai import OpenAI
from tests.http.conftest import create, frames, script, text_of

Json = dict[str, Any]

RESULTS = "file_search_call.results"
TEXTS = {
    "refunds.txt": "Refunds are paid within two weeks.",
    "hours.txt": "We are open from nine to five.",
}
MARKER = "【0:0†refunds.txt】"
SEARCHED = {"call": "file_search", "args": {"queries": ["refunds paid?"]}}
ANSWERED = {"say": f"Within two weeks {MARKER}."}


@pytest.fixture(scope="module")
def store_id(server: Any) -> Iterator[str]:
    """A vector store with two files, the server's for all tests of this module."""
    with OpenAI(base_url=server.api, api_key="none") as client:
        store = client.vector_stores.create()
        client.vector_stores.file_batches.create_and_poll(
            store.id,
            files=[
                {"file_id": upload(client, name, text), "attributes": {"name": name}}
                for name, text in TEXTS.items()
            ],
            poll_interval_ms=10,
        )
        yield store.id


def upload(client: OpenAI, name: str, text: str) -> str:
    return client.files.create(file=(name, text.encode()), purpose="user_data").id


def tool(store_id: str, **given: Any) -> Json:
    return {"type": "file_search", "vector_store_ids": [store_id], **given}


def run(
    http: httpx.Client, model: str, store_id: str, *turns: Any, of: Json | None = None, **more: Any
) -> Json:
    body = {"tools": [tool(store_id, **(of or {}))], "include": [RESULTS], **more}
    return create(http, model=model, input=script(*turns), **body)


def shown(output: list[Json]) -> list[Json]:
    passing = ("id", "encrypted_content")
    return [{key: item[key] for key in item if key not in passing} for item in output]


def test_files_are_searched_and_the_model_cites(
    http: httpx.Client, model: str, store_id: str
) -> None:
    call, message = run(http, model, store_id, SEARCHED, ANSWERED)["output"]
    assert call.pop("id").startswith("fs_")
    [result] = call.pop("results")
    assert call == {
        "type": "file_search_call",
        "status": "completed",
        "queries": ["refunds paid?"],
    }
    file_id, score = result.pop("file_id"), result.pop("score")
    assert 0 < score <= 1
    assert result == {
        "filename": "refunds.txt",
        "text": TEXTS["refunds.txt"],
        "attributes": {"name": "refunds.txt"},
    }
    [part] = message["content"]
    assert part["text"] == ANSWERED["say"]
    citation = {"type": "file_citation", "file_id": file_id, "filename": "refunds.txt", "index": 17}
    assert part["annotations"] == [citation]
    assert part["text"].index("【") == 17


def test_a_stream_tells_each_step(http: httpx.Client, model: str, store_id: str) -> None:
    body = {
        "model": model,
        "input": script(SEARCHED, ANSWERED),
        "tools": [tool(store_id)],
        "include": [RESULTS],
        "stream": True,
    }
    events = frames(http.post("/responses", json=body).text)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    first = [event["type"] for event in events if event.get("output_index") == 0]
    assert first == [
        "response.output_item.added",
        "response.file_search_call.in_progress",
        "response.file_search_call.searching",
        "response.file_search_call.completed",
        "response.output_item.done",
    ]
    added = next(event["item"] for event in events if event["type"].endswith("item.added"))
    assert (added["status"], added["queries"], added["results"]) == ("in_progress", [], None)
    assert any(event["type"] == "response.output_text.annotation.added" for event in events)
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"]


def test_streamed_plain_or_in_the_background_the_items_are_the_same(
    http: httpx.Client, model: str, store_id: str, eventually: Any
) -> None:
    turns = [{"think": "Look."}, SEARCHED], ANSWERED
    plain = run(http, model, store_id, *turns)
    body = {
        "model": model,
        "input": script(*turns),
        "tools": [tool(store_id)],
        "include": [RESULTS],
    }
    events = frames(http.post("/responses", json={**body, "stream": True}).text)
    assert shown(events[-1]["response"]["output"]) == shown(plain["output"])
    begun = http.post("/responses", json={**body, "background": True}).json()

    def read() -> Json:
        found = http.get(f"/responses/{begun['id']}", params={"include[]": RESULTS})
        return dict(found.json())

    eventually(lambda: read()["status"] == "completed")
    assert shown(read()["output"]) == shown(plain["output"])


def test_results_are_shown_to_clients_that_include_them(
    http: httpx.Client, model: str, store_id: str
) -> None:
    response = run(http, model, store_id, SEARCHED, ANSWERED, include=[])
    assert response["output"][0]["results"] is None
    read = http.get(f"/responses/{response['id']}", params={"include[]": RESULTS}).json()
    assert read["output"][0]["results"][0]["filename"] == "refunds.txt"


@pytest.mark.parametrize("how", ["previous_response_id", "items", "items without results"])
def test_a_later_response_cites_what_an_earlier_one_found(
    http: httpx.Client, model: str, store_id: str, how: str
) -> None:
    include = [RESULTS] if how == "items" else []
    asked = {"role": "user", "content": script(SEARCHED, ANSWERED)}
    first = create(http, model=model, input=[asked], tools=[tool(store_id)], include=include)
    before = [asked, *first["output"]] if how != "previous_response_id" else []
    more = {} if before else {"previous_response_id": first["id"]}
    again = {"role": "user", "content": script({"say": f"As I said {MARKER}"})}
    second = create(http, model=model, input=[*before, again], tools=[tool(store_id)], **more)
    [annotation] = second["output"][0]["content"][0]["annotations"]
    assert annotation["filename"] == "refunds.txt"


@pytest.mark.parametrize("result", [{"file_id": "file-1"}, {"file_id": 1, "filename": None}, {}])
def test_results_that_a_client_made_up_cite_nothing(
    http: httpx.Client, model: str, store_id: str, result: Json
) -> None:
    call = {"type": "file_search_call", "id": "fs_1", "queries": ["a"], "results": [result]}
    say = {"role": "user", "content": script({"say": "So 【0:0†None】."})}
    response = create(http, model=model, input=[call, say], tools=[tool(store_id)])
    [part] = response["output"][0]["content"]
    assert (part["text"], part["annotations"]) == ("So 【0:0†None】.", [])


def test_two_searches_are_cited_by_their_numbers(
    http: httpx.Client, model: str, store_id: str
) -> None:
    hours = {"call": "file_search", "args": {"queries": ["open nine five"]}}
    said = {"say": f"a {MARKER} b 【1:0†hours.txt】 c 【7:0†none.txt】 d 【x】"}
    response = run(http, model, store_id, [SEARCHED, hours], said)
    [part] = response["output"][-1]["content"]
    assert [each["filename"] for each in part["annotations"]] == ["refunds.txt", "hours.txt"]


def test_filters_and_limits_are_in_force(http: httpx.Client, model: str, store_id: str) -> None:
    both = {"call": "file_search", "args": {"queries": ["refunds paid", "open from"]}}
    every = run(http, model, store_id, both, ANSWERED)
    assert len(every["output"][0]["results"]) == 2
    one = run(http, model, store_id, both, ANSWERED, of={"max_num_results": 1})
    assert len(one["output"][0]["results"]) == 1
    filters = {"type": "eq", "key": "name", "value": "hours.txt"}
    fit = run(http, model, store_id, both, ANSWERED, of={"filters": filters})
    assert [each["filename"] for each in fit["output"][0]["results"]] == ["hours.txt"]
    strict = {"score_threshold": 1}
    none = run(http, model, store_id, both, ANSWERED, of={"ranking_options": strict})
    assert none["output"][0]["results"] == []
    assert none["output"][0]["status"] == "completed"


@pytest.mark.parametrize("arguments", [{}, {"queries": []}, {"queries": "a"}, {"query": "a"}])
def test_invalid_queries_are_reported_to_the_model(
    http: httpx.Client, model: str, store_id: str, arguments: Json
) -> None:
    called = {"call": "file_search", "args": arguments}
    response = run(http, model, store_id, called, {"say": "Sorry."})
    call = response["output"][0]
    assert (call["status"], call["queries"]) == ("failed", [])
    assert "queries" in call["results"][0]["text"]
    assert (response["status"], text_of(response)) == ("completed", "Sorry.")


def test_a_search_that_was_cut_is_not_run(http: httpx.Client, model: str, store_id: str) -> None:
    response = run(http, model, store_id, [{**SEARCHED, "finish": "length"}])
    [call] = response["output"]
    assert response["status"] == "incomplete"
    assert (call["status"], call["results"]) == ("incomplete", None)


def test_calls_beyond_max_tool_calls_are_not_run(
    http: httpx.Client, model: str, store_id: str
) -> None:
    response = run(http, model, store_id, [SEARCHED, SEARCHED], ANSWERED, max_tool_calls=1)
    calls = response["output"][:2]
    assert [call["status"] for call in calls] == ["completed", "failed"]
    assert "max_tool_calls" in calls[1]["results"][0]["text"]
    assert calls[1]["queries"] == ["refunds paid?"]


def test_it_can_be_forced(http: httpx.Client, model: str, store_id: str) -> None:
    response = create(
        http,
        model=model,
        input="Look.",
        tools=[tool(store_id)],
        tool_choice={"type": "file_search"},
    )
    assert response["output"][0]["type"] == "file_search_call"
    assert response["status"] == "completed"


def test_a_client_may_have_a_function_of_that_name(
    http: httpx.Client, model: str, store_id: str
) -> None:
    function = {"type": "function", "name": "file_search", "parameters": {"type": "object"}}
    tools = [tool(store_id), function]
    called = run(http, model, store_id, {"call": "file_search", "args": {}}, tools=tools)
    assert [item["type"] for item in called["output"]] == ["function_call"]
    ours = {**SEARCHED, "call": "file_search_tool"}
    ran = run(http, model, store_id, ours, ANSWERED, tools=tools)
    assert ran["output"][0]["type"] == "file_search_call"


REFUSED: list[tuple[Json, str]] = [
    ({"vector_store_ids": []}, "vector_store_ids"),
    ({"vector_store_ids": ["vs_none"]}, "vector_store_ids[0]"),
    ({"filters": {"type": "x"}}, "filters.type"),
    ({"filters": {}}, "filters.type"),
    ({"max_num_results": 51}, "max_num_results"),
    ({"ranking_options": {"score_threshold": 2}}, "ranking_options.score_threshold"),
    ({"ranking_options": {"hybrid_search": {"embedding_weight": 0, "text_weight": 0}}},
     "ranking_options.hybrid_search"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "param"), REFUSED)
def test_what_cannot_be_searched_is_refused_before_the_first_byte(
    http: httpx.Client, store_id: str, given: Json, param: str
) -> None:
    body = {"model": "scripted-chat", "input": "Hi", "stream": True}
    answer = http.post("/responses", json={**body, "tools": [tool(store_id, **given)]})
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["param"] == f"tools[0].{param}"


def test_the_official_client_accumulates_it(server: Any, model: str, store_id: str) -> None:
    asked: Any = tool(store_id)
    with (
        OpenAI(base_url=server.api, api_key="none") as client,
        client.responses.stream(
            model=model, input=script(SEARCHED, ANSWERED), tools=[asked], include=[RESULTS]
        ) as stream,
    ):
        call, message = stream.get_final_response().output
    assert call.type == "file_search_call"
    assert call.results is not None
    assert call.results[0].filename == "refunds.txt"
    assert message.type == "message"
    assert message.content[0].annotations[0].type == "file_citation"  # type: ignore[union-attr]
