"""Web search over HTTP: the model searches, opens, finds, and cites what it read.

The web is a folder of pages. What a browser does with whatever comes is in
tests/application/tools/test_web_search.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai import OpenAI
from tests.http.conftest import create, frames, script, text_of, wait_until

Json = dict[str, Any]

TOOL = {"type": "web_search"}
SOURCES, RESULTS = "web_search_call.action.sources", "web_search_call.results"
CHOIRS = "https://corpus.invalid/choirs.md"
PSALMS = "https://corpus.invalid/a/psalms.md"
PAGES = {
    # No HTML: the process that reads it takes longer to begin than all else here.
    "choirs.md": "# Choirs\n\nAn antiphon is sung by two choirs. See [psalms](a/psalms.md).",
    "a/psalms.md": "# Psalms\n\nThere are 150 psalms.",
}
ANSWER = "There are 150 【1†L2】, for choirs 【0†L2-L3】 😀【2†L0】 or 【9†L1】."
ROUNDS: list[Any] = [
    [{"think": "Look it up."}, {"call": "browser.search", "args": {"query": "psalms", "topn": 1}}],
    {"call": "browser.open", "args": {"id": 0}},
    {"call": "browser.find", "args": {"pattern": "PSALMS"}},
    {"say": ANSWER},
]


@pytest.fixture(scope="module")
def searching_server(serve_from: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("pages")
    for name, text in PAGES.items():
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    given = {"web_search": "corpus", "web.folder": folder}
    with serve_from(tmp_path_factory.mktemp("web"), **given) as served:
        yield served


@pytest.fixture
def searching(searching_server: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=searching_server.api, timeout=30) as client:
        yield client


def run(client: httpx.Client, model: str, *turns: Any, **fields: Any) -> Json:
    body = {"tools": [TOOL], "include": [SOURCES, RESULTS], **fields}
    return create(client, model=model, input=script(*turns), **body)


def calls_in(response: Json) -> list[Json]:
    return [item for item in response["output"] if item["type"] == "web_search_call"]


def shown(response: Json) -> list[str]:
    return [call["results"][0]["text"] for call in calls_in(response)]


def search(query: str) -> Json:
    return {"call": "browser.search", "args": {"query": query}}


def test_the_model_searches_opens_finds_and_cites(searching: httpx.Client, model: str) -> None:
    response = run(searching, model, *ROUNDS)
    kinds = [item["type"] for item in response["output"]]
    assert kinds == ["reasoning", *["web_search_call"] * 3, "message"]
    assert [call["status"] for call in calls_in(response)] == ["completed"] * 3
    assert [call["action"] for call in calls_in(response)] == [
        {
            "type": "search",
            "query": "psalms",
            "queries": ["psalms"],
            "sources": [{"type": "url", "url": PSALMS}],
        },
        {"type": "open_page", "url": PSALMS},
        {"type": "find_in_page", "url": PSALMS, "pattern": "PSALMS"},
    ]
    found, page, places = shown(response)
    assert found.startswith("[0] psalms\n**viewing lines [0 - 2] of 2**\n\nL0: # Search Results")
    assert page.startswith(f"[1] Psalms ({PSALMS})\n**viewing lines")
    assert places.startswith(f"[2] Find results for text: `PSALMS` in `Psalms` ({PSALMS}/find?")
    [part] = response["output"][-1]["content"]
    assert part["text"] == ANSWER
    cited = [ANSWER[each["start_index"] : each["end_index"]] for each in part["annotations"]]
    assert cited == ["【1†L2】", "【0†L2-L3】", "【2†L0】"]
    for annotation in part["annotations"]:
        assert annotation["type"] == "url_citation"
        assert (annotation["url"], annotation["title"]) == (PSALMS, "Psalms")


def without_ids(output: list[Json]) -> list[Json]:
    passing = ("id", "encrypted_content")
    return [{key: item[key] for key in item if key not in passing} for item in output]


def test_a_stream_tells_each_step(searching: httpx.Client, model: str) -> None:
    body = {"model": model, "input": script(*ROUNDS), "tools": [TOOL], "stream": True}
    events = frames(searching.post("/responses", json=body).text)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"].removeprefix("response.") for event in events]
    steps = [kind.removeprefix("web_search_call.") for kind in kinds if "web_search" in kind]
    assert steps == ["in_progress", "searching", "completed"] * 3
    added = next(
        event["item"]
        for event in events
        if event["type"].endswith("output_item.added") and event["item"]["id"].startswith("ws_")
    )
    assert (added["status"], added["action"]) == (
        "in_progress",
        {"type": "search", "query": "", "queries": []},
    )
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"]
    told = [event for event in events if event["type"].endswith("annotation.added")]
    annotations = done[-1]["content"][0]["annotations"]
    assert [event["annotation"] for event in told] == annotations
    assert [event["annotation_index"] for event in told] == [0, 1, 2]
    for event in told:  # right behind the marker, and never before it
        written = "".join(
            each["delta"]
            for each in events[: event["sequence_number"]]
            if each["type"] == "response.output_text.delta"
        )
        assert len(written) >= event["annotation"]["end_index"]


def test_streamed_or_not_or_in_the_background_the_items_are_the_same(
    searching: httpx.Client, model: str
) -> None:
    plain = run(searching, model, *ROUNDS)
    body = {"model": model, "input": script(*ROUNDS), "tools": [TOOL]}
    body["include"] = [SOURCES, RESULTS]
    events = frames(searching.post("/responses", json={**body, "stream": True}).text)
    path = f"/responses/{create(searching, **body, background=True)['id']}"
    asked = {"include[]": [SOURCES, RESULTS]}
    wait_until(lambda: searching.get(path).json()["status"] == "completed")
    later = searching.get(path, params=asked).json()
    expected = without_ids(plain["output"])
    assert without_ids(events[-1]["response"]["output"]) == expected
    assert without_ids(later["output"]) == expected


def test_the_official_client_accumulates_it(searching_server: Any, model: str) -> None:
    with (
        OpenAI(base_url=searching_server.api, api_key="none") as client,
        client.responses.stream(
            model=model,
            input=script(*ROUNDS),
            tools=[{"type": "web_search", "search_context_size": "low"}],
            include=["web_search_call.action.sources"],
        ) as stream,
    ):
        response = stream.get_final_response()
    _, found, opened, places, message = response.output
    assert found.type == opened.type == places.type == "web_search_call"
    assert found.action.type == "search"
    assert [source.url for source in found.action.sources or ()] == [PSALMS]
    assert (opened.action.type, places.action.type) == ("open_page", "find_in_page")
    assert message.type == "message"
    assert message.content[0].type == "output_text"
    assert [each.type for each in message.content[0].annotations] == ["url_citation"] * 3


NAMES = (
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
)


@pytest.mark.parametrize("name", NAMES)
def test_it_has_several_names_and_can_be_forced(
    searching: httpx.Client, model: str, name: str
) -> None:
    answer = searching.post(
        "/responses",
        json={
            "model": model,
            "input": "Search!",
            "tools": [{"type": name}],
            "tool_choice": {"type": name},
        },
    )
    response = answer.json()
    assert answer.headers.get("x-antiphon-ignored") is None
    assert [call["status"] for call in calls_in(response)] == ["completed"]
    assert response["tools"][0]["type"] == name
    assert text_of(response) == "Echo: Search!"


def test_two_names_are_one_browser_with_the_last_ones_settings(
    searching: httpx.Client, model: str
) -> None:
    blocking = {"filters": {"blocked_domains": ["corpus.invalid"]}}
    tools = [{"type": "web_search_preview", "search_context_size": "low"}, {**TOOL, **blocking}]
    body = {"model": model, "input": script(search("psalms"), {"say": "ok"}), "tools": tools}
    answer = searching.post("/responses", json={**body, "include": [RESULTS]})
    assert answer.headers["x-antiphon-ignored"] == "tools[0]"
    assert "No results." in shown(answer.json())[0]
    alike = searching.post("/responses", json={**body, "tools": [TOOL, {"type": NAMES[2]}]})
    assert "x-antiphon-ignored" not in alike.headers


def test_calls_of_one_turn_run_and_are_numbered_in_their_order(searching: httpx.Client) -> None:
    response = run(
        searching,
        "scripted-chat",
        [search("psalms"), search("choirs"), {"call": "browser.open", "args": {"id": 0}}],
        {"say": "ok"},
    )
    heads = [text.split("\n")[0] for text in shown(response)]
    assert heads == ["[0] psalms", "[1] choirs", f"[2] Choirs ({CHOIRS})"]


def test_what_is_not_there_is_data_for_the_model(searching: httpx.Client, model: str) -> None:
    response = run(
        searching,
        model,
        {"call": "browser.open", "args": {"id": "https://corpus.invalid/none.md"}},
        {"call": "browser.find", "args": {"pattern": "x", "cursor": 7}},
        {"call": "browser.open", "args": {"id": "file:///etc/passwd"}},
        {"call": "browser.search", "args": "nonsense"},
        {"say": "It is not there."},
    )
    assert [call["status"] for call in calls_in(response)] == ["failed"] * 4
    assert all(call["results"][0]["text"] for call in calls_in(response))
    assert (response["status"], text_of(response)) == ("completed", "It is not there.")


def test_a_failed_call_has_no_event_that_says_completed(
    searching: httpx.Client, model: str
) -> None:
    asked = script({"call": "browser.find", "args": {"pattern": "x"}}, {"say": "No."})
    body = {"model": model, "input": asked, "tools": [TOOL], "stream": True}
    events = frames(searching.post("/responses", json=body).text)
    kinds = [event["type"] for event in events if "web_search_call" in event["type"]]
    assert kinds == [f"response.web_search_call.{step}" for step in ("in_progress", "searching")]
    assert events[-1]["response"]["output"][0]["status"] == "failed"


def test_calls_beyond_max_tool_calls_are_not_run(searching: httpx.Client, model: str) -> None:
    turns = search("psalms"), search("choirs"), {"say": "ok"}
    response = run(searching, model, *turns, max_tool_calls=1)
    assert [call["status"] for call in calls_in(response)] == ["completed", "failed"]
    assert "max_tool_calls" in shown(response)[1]
    assert calls_in(response)[1]["action"]["query"] == "choirs"


def test_a_call_that_was_cut_is_not_run(searching: httpx.Client, model: str) -> None:
    response = run(searching, model, [{**search("psalms"), "finish": "length"}])
    [call] = response["output"]
    assert (response["status"], call["status"]) == ("incomplete", "incomplete")
    assert "results" not in call


def test_sources_and_results_are_shown_to_clients_that_include_them(
    searching: httpx.Client, model: str
) -> None:
    response = run(searching, model, search("psalms"), {"say": "ok"}, include=[])
    [call] = calls_in(response)
    assert call["action"] == {"type": "search", "query": "psalms", "queries": ["psalms"]}
    assert not call.get("results")
    path = f"/responses/{response['id']}"
    read = searching.get(path, params={"include[]": [SOURCES, RESULTS]}).json()
    assert calls_in(read)[0]["action"]["sources"]
    assert shown(read)[0].startswith("[0] psalms")


@pytest.mark.parametrize("way", ["previous_response_id", "sent back", "sent back, not stored"])
def test_a_later_response_knows_the_pages(searching: httpx.Client, model: str, way: str) -> None:
    store = "not stored" not in way
    first = run(searching, model, search("psalms"), {"say": "ok"}, include=[SOURCES], store=store)
    turns = {"call": "browser.open", "args": {"id": 0, "cursor": 0}}, {"say": "It is 【1†L0】."}
    asked: list[Json] = [{"role": "user", "content": script(*turns)}]
    if way == "previous_response_id":
        given = {"input": asked, "previous_response_id": first["id"]}
    else:
        given = {"input": [*first["output"], *asked]}
    second = create(searching, model=model, tools=[TOOL], include=[RESULTS], store=store, **given)
    assert shown(second)[0].startswith(f"[1] Psalms ({PSALMS})")
    [annotation] = second["output"][-1]["content"][0]["annotations"]
    assert annotation["url"] == PSALMS


def test_a_client_may_have_functions_of_these_names(searching: httpx.Client, model: str) -> None:
    function = {"type": "function", "name": "web_search", "parameters": {"type": "object"}}
    tools = [TOOL, function]
    called = run(searching, model, {"call": "web_search", "args": {"a": 1}}, tools=tools)
    assert [item["type"] for item in called["output"]] == ["function_call"]
    searched = run(searching, model, search("psalms"), {"say": "ok"}, tools=tools)
    assert shown(searched)[0].startswith("[0] psalms")


def test_what_is_not_to_be_had_is_refused_or_named(searching: httpx.Client, model: str) -> None:
    many = {"filters": {"allowed_domains": ["example.org"] * 101}}
    body = {"model": model, "input": "hi"}
    refused = searching.post("/responses", json={**body, "tools": [{**TOOL, **many}]})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "tools[0].filters.allowed_domains"
    pictures = {**TOOL, "search_content_types": ["text", "image"], "external_web_access": False}
    named = searching.post("/responses", json={**body, "tools": [pictures]})
    assert named.headers["x-antiphon-ignored"] == "tools[0].search_content_types"


@pytest.mark.parametrize("name", NAMES)
def test_without_the_setting_it_is_named_as_ignored(
    http: httpx.Client, model: str, name: str
) -> None:
    body = {"model": model, "input": "Hi", "tools": [{"type": name}]}
    answer = http.post("/responses", json=body)
    assert answer.status_code == 200
    assert "tools[0]" in answer.headers["x-antiphon-ignored"]
    refused = http.post("/responses", json={**body, "tool_choice": {"type": name}})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "tool_choice"
