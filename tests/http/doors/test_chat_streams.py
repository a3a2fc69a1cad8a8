"""Every recorded stream of Responses, as a chat client would have seen it: its chunks and its
object agree, whatever tools, citations, refusals and cuts are in it.
"""

from __future__ import annotations

import json
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from tests.http.conftest import ROOT, script
from tests.http.doors.test_chat import assembled, comparable, data_of

from antiphon.domain import events as e
from antiphon.entrypoints.http.doors.chat.chunks import ChatEncoder
from antiphon.entrypoints.http.doors.chat.completion import ChatView
from antiphon.entrypoints.http.doors.choices import UsageView

GOLDEN = ROOT / "tests/golden"
FILES = sorted([*GOLDEN.glob("streams/*/stream.sse"), *GOLDEN.glob("flows/*.sse")])
VIEW = ChatView(usage=UsageView(at_end=True))

_decode: Any = msgspec.json.Decoder(reduce(or_, e.EVENT_TYPES.values())).decode  # type: ignore[arg-type]


def events_of(file: Path) -> list[Any]:
    text = file.read_text(encoding="utf-8")
    return [
        _decode(frame.partition("data: ")[2].encode())
        for frame in text.split("\n\n")
        if "data: {" in frame
    ]


def name_of(file: Path) -> str:
    return str(file.relative_to(GOLDEN))


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_a_recorded_stream_and_its_response_are_the_same_answer(file: Path) -> None:
    events = events_of(file)
    encoder = ChatEncoder(VIEW)
    frames = b"".join(encoder.frames([event]) for event in events) + encoder.last_frame()
    *chunks, end = data_of(frames.decode())
    assert end == "[DONE]"
    last = events[-1]
    if isinstance(last, e.Failed):
        assert list(chunks[-1]) == ["error"]
        return
    for chunk in chunks:
        if '"custom"' not in json.dumps(chunk):
            ChatCompletionChunk.model_validate(chunk, strict=True)
    whole = json.loads(encoder.encode_response(last.response))
    ChatCompletion.model_validate(whole, strict=True)
    assert comparable(assembled(chunks)) == comparable(whole)


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_a_stream_that_breaks_off_says_so(file: Path) -> None:
    encoder = ChatEncoder(VIEW)
    frames = encoder.frames(events_of(file)[:2]) + encoder.last_frame()
    *_, broken, end = data_of(frames.decode())
    assert (list(broken), end) == (["error"], "[DONE]")


def test_a_citation_is_where_its_text_is() -> None:
    [file] = [each for each in FILES if "web_search_with_citation" in str(each)]
    response = events_of(file)[-1].response
    message = response.output[-1]
    twice = msgspec.structs.replace(response, output=(message, message))
    [choice] = json.loads(ChatEncoder(VIEW).encode_response(twice))["choices"]
    text, citations = choice["message"]["content"], choice["message"]["annotations"]
    cited = [each["url_citation"] for each in citations]
    places = [text[each["start_index"] : each["end_index"]] for each in cited]
    half = len(cited) // 2
    assert places[:half] == places[half:]
    assert cited[half]["start_index"] > cited[half - 1]["end_index"]


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
        "messages": [
            {"role": "user", "content": script([{"say": "I ask."}, call], {"say": "1000 m."})}
        ],
        "tools": [{"type": "mcp", "server_label": "lengths"}],
    }
    whole = tools.post("/chat/completions", json=body).json()
    [choice] = whole["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"] == "I ask.\n\n1000 m."
    assert "tool_calls" not in choice["message"]
    options = {"stream": True, "stream_options": {"include_usage": True}}
    text = tools.post("/chat/completions", json={**body, **options}).text
    assert comparable(assembled(data_of(text)[:-1])) == comparable(whole)
