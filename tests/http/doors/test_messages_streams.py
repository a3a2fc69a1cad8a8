"""Every golden stream as a stream of the Messages API, and tools that the server runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.http.conftest import script
from tests.http.doors.test_chat_streams import FILES, events_of, name_of
from tests.http.doors.test_messages import assembled, comparable
from tests.http.doors.test_messages import events_of as sent_events

from antiphon.domain import events as e
from antiphon.entrypoints.http.doors.messages.message import MessageView
from antiphon.entrypoints.http.doors.messages.stream import MessageEncoder

VIEWS = [
    MessageView(thoughts="shown"),
    MessageView(thoughts="sealed"),
    MessageView(thoughts="hidden"),
]


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.thoughts)
@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_a_recorded_stream_and_its_response_are_the_same_message(
    file: Path, view: MessageView
) -> None:
    events = events_of(file)
    encoder = MessageEncoder(view)
    frames = b"".join(encoder.frames([event]) for event in events) + encoder.last_frame()
    sent = sent_events(frames.decode())
    last = events[-1]
    if isinstance(last, e.Failed):
        assert sent[-1]["type"] == "error"
        return
    assert sent[-1]["type"] == "message_stop"
    whole = json.loads(encoder.encode_response(last.response))
    streamed = assembled(sent)
    assert comparable(streamed) == comparable(whole)
    assert [block.get("signature") for block in streamed["content"]] == [
        block.get("signature") for block in whole["content"]
    ]


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_a_stream_that_breaks_off_says_so(file: Path) -> None:
    encoder = MessageEncoder(VIEWS[0])
    frames = encoder.frames(events_of(file)[:2]) + encoder.last_frame()
    last = sent_events(frames.decode())[-1]
    assert last["error"]["type"] == "overloaded_error"


def test_a_text_has_its_citations() -> None:
    [file] = [each for each in FILES if "web_search_with_citation" in str(each)]
    whole = json.loads(MessageEncoder(VIEWS[0]).encode_response(events_of(file)[-1].response))
    [text] = [block for block in whole["content"] if block["type"] == "text"]
    assert {each["type"] for each in text["citations"]} == {"web_search_result_location"}
    assert all(each["url"].startswith("http") for each in text["citations"])
    assert whole["usage"]["server_tool_use"]["web_search_requests"] > 0


# --- tools that the server runs -------------------------------------------------------------------


@pytest.fixture(scope="module")
def tools(serve_from: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tools")
    with (
        serve_from(folder, tool=["examples.tools:Lengths"]) as server,
        httpx.Client(base_url=server.api, timeout=30) as http,
    ):
        yield http


def test_a_tool_of_the_server_is_run_and_not_shown(tools: httpx.Client, model: str) -> None:
    call = {"mcp": "convert", "args": {"value": 1, "unit": "km", "into": "m"}}
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": 1000,
        "messages": [
            {"role": "user", "content": script([{"say": "I ask."}, call], {"say": "1000 m."})}
        ],
        "tools": [{"type": "mcp", "server_label": "lengths"}],
    }
    whole = tools.post("/messages", json=body).json()
    assert whole["stop_reason"] == "end_turn"
    assert [block["text"] for block in whole["content"]] == ["I ask.", "1000 m."]
    text = tools.post("/messages", json={**body, "stream": True}).text
    assert comparable(assembled(sent_events(text))) == comparable(whole)
