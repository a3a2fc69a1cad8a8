"""Whatever a Chat Completions server does, a response has its defined end, and the next one works.

The server under test is a process of its own, so that its memory can be measured.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.faults.support.replicas import Replica, replicas, wait_for
from tests.http.conftest import create, frames, script, text_of
from tests.upstreams.chat_faults import SECRET
from tests.upstreams.chat_models import model_name, model_table
from tests.upstreams.chat_server import ScriptedChatServer, scripted_chat_server
from tests.upstreams.chat_styles import STYLES

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(sys.platform != "linux", reason="memory is measured by Linux"),
]

Json = dict[str, Any]

DEADLINE_S = 2.0
ENDS_WITHIN_S = 15.0
"""For a busy machine; what hangs would take for ever."""
MEMORY = 20 * 1024 * 1024
MODEL = model_name("openai")
WORDS = " ".join(f"word{n}" for n in range(40))
ASKED: Json = {"model": MODEL, "input": script({"say": WORDS})}


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedChatServer]:
    with scripted_chat_server() as server:
        yield server


@pytest.fixture(autouse=True)
def _nothing_is_wrong(upstream: ScriptedChatServer) -> Iterator[None]:
    yield
    upstream.fault = None
    upstream.faults.clear()
    upstream.refused_fields.clear()


@pytest.fixture(scope="module")
def server(
    upstream: ScriptedChatServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Replica]:
    folder = tmp_path_factory.mktemp("upstreams")
    limits = f"first_token_s = {DEADLINE_S}\nbetween_tokens_s = {DEADLINE_S}\n"
    upstream.key = SECRET
    (folder / "key").write_text(SECRET)
    options = {"response_s": DEADLINE_S, "key_file": str(folder / "key")}
    tables = [model_table(upstream, style, **options) for style in STYLES]
    config = folder / "antiphon.toml"
    config.write_text('store = "memory"\n' + limits + "\n".join(tables))
    with replicas(folder, "--config", str(config), count=1) as [started]:
        yield started


@pytest.fixture(scope="module")
def client(server: Replica) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.api, timeout=30) as client:
        # What is loaded and cached for the first requests is not the memory of a fault.
        for stream in (False, True):
            for _ in range(20):
                client.post("/responses", json={**ASKED, "stream": stream})
        yield client


@contextmanager
def bounded(server: Replica) -> Iterator[None]:
    """What happens inside ends in time, and takes no memory to speak of."""
    process = Path(f"/proc/{server.pid}")
    (process / "clear_refs").write_text("5")
    before, begun = _peak(process), time.monotonic()
    yield
    assert time.monotonic() - begun < ENDS_WITHIN_S
    assert _peak(process) - before < MEMORY


def _peak(process: Path) -> int:
    """The most memory that a process has had since that was cleared, in bytes."""
    lines = (process / "status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024


def check_the_next_request_works(client: httpx.Client, upstream: ScriptedChatServer) -> None:
    """An engine that was dead is asked again after a pause."""
    upstream.fault = None
    upstream.faults.clear()

    def answered() -> bool | None:
        answer = client.post("/responses", json=ASKED)
        return (answer.status_code == 200 and text_of(answer.json()) == WORDS) or None

    wait_for(answered, limit_s=20)


# --- errors instead of an answer ------------------------------------------------------------------

STATUSES: Mapping[str, tuple[int, str | None]] = {
    "500": (500, None),
    "503": (503, None),
    "429": (429, "rate_limit_exceeded"),
    "401": (503, None),
    "403": (503, None),
    "404": (503, None),
    "redirect": (503, None),
    "context": (400, "context_length_exceeded"),
    "closes before headers": (500, None),
    "hangs before headers": (500, None),
}
"""What a client is told when the upstream refuses: the status, and the code."""


@pytest.mark.parametrize("fault", STATUSES)
def test_an_upstream_that_refuses_is_an_error_of_the_api(
    client: httpx.Client, server: Replica, upstream: ScriptedChatServer, fault: str
) -> None:
    status, code = STATUSES[fault]
    upstream.fault = fault
    with bounded(server):
        answer = client.post("/responses", json=ASKED)
    told = error_of(answer)
    assert (answer.status_code, told["code"]) == (status, code or told["code"])
    assert SECRET not in answer.text
    check_the_next_request_works(client, upstream)


def error_of(answer: httpx.Response) -> Json:
    """Return the error of an answer, or of the response that it is."""
    error: Json = answer.json()["error"]
    return error


def test_a_busy_upstream_says_when_to_come_back(
    client: httpx.Client, upstream: ScriptedChatServer
) -> None:
    upstream.fault = "429"
    answer = client.post("/responses", json=ASKED)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")


@pytest.mark.parametrize("style", STYLES)
def test_a_prompt_that_is_too_long_is_the_client_s_mistake(
    client: httpx.Client, upstream: ScriptedChatServer, style: str
) -> None:
    upstream.fault = "context"
    answer = client.post("/responses", json={**ASKED, "model": model_name(style)})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (
        400,
        "context_length_exceeded",
        "input",
    )


# --- broken streams -------------------------------------------------------------------------------

BROKEN = (
    "hangs later",
    "pings forever",
    "invalid UTF-8",
    "invalid JSON",
    "no object",
    "a long line",
    "closes",
    "closes in an event",
    "ends early",
)
"""Streams that break after some words."""

SILENT = ("hangs", "drips")
"""Streams without a first word."""


@pytest.mark.parametrize("fault", BROKEN)
def test_a_stream_that_breaks_ends_as_failed_with_what_there_was(
    client: httpx.Client, server: Replica, upstream: ScriptedChatServer, fault: str
) -> None:
    upstream.fault = fault
    with bounded(server):
        events = frames(client.post("/responses", json={**ASKED, "stream": True}).text)
    last = events[-1]
    assert last["type"] == "response.failed"
    response = last["response"]
    assert response["error"]["code"] == "server_error"
    said = text_of(response)
    assert said
    assert WORDS.startswith(said)
    assert [item["status"] for item in response["output"]] == ["incomplete"]
    check_the_next_request_works(client, upstream)


@pytest.mark.parametrize("fault", SILENT)
def test_a_stream_without_a_word_ends_as_failed(
    client: httpx.Client, server: Replica, upstream: ScriptedChatServer, fault: str
) -> None:
    upstream.fault = fault
    with bounded(server):
        events = frames(client.post("/responses", json={**ASKED, "stream": True}).text)
    assert events[-1]["type"] == "response.failed"
    assert text_of(events[-1]["response"]) == ""
    check_the_next_request_works(client, upstream)


@pytest.mark.parametrize("style", STYLES)
def test_an_error_in_the_stream_ends_it_as_failed(client: httpx.Client, style: str) -> None:
    asked = script([{"say": "So far"}, {"fail": f"CUDA error on {SECRET}"}])
    body = {"model": model_name(style), "input": asked, "stream": True}
    answer = client.post("/responses", json=body)
    last = frames(answer.text)[-1]
    assert last["type"] == "response.failed"
    assert text_of(last["response"]) == "So far"
    assert SECRET not in answer.text.replace(asked, "")


def test_an_answer_that_is_filtered_is_incomplete(
    client: httpx.Client, upstream: ScriptedChatServer
) -> None:
    upstream.fault = "content filter"
    response = create(client, **ASKED)
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "content_filter"}
    assert WORDS.startswith(text_of(response))


def test_many_broken_streams_at_once_take_no_memory(
    client: httpx.Client, server: Replica, upstream: ScriptedChatServer
) -> None:
    upstream.faults.extend(["closes", "invalid JSON", "ends early", "hangs later"] * 10)
    with bounded(server):
        started = [create(client, **ASKED, background=True)["id"] for _ in range(40)]
        for response_id in started:
            wait_for(partial(_ended, client, response_id), limit_s=20)
    check_the_next_request_works(client, upstream)


def _ended(client: httpx.Client, response_id: str) -> bool | None:
    status = client.get(f"/responses/{response_id}").json()["status"]
    return status not in ("queued", "in_progress") or None


# --- leaving --------------------------------------------------------------------------------------


def test_a_cancelled_response_leaves_the_upstream(
    client: httpx.Client, upstream: ScriptedChatServer
) -> None:
    asked = script({"say": "word ", "repeat": 5000, "tick": 0.05})
    response = create(client, model=MODEL, input=asked, background=True)
    wait_for(lambda: upstream.open_answers or None)
    client.post(f"/responses/{response['id']}/cancel")
    wait_for(lambda: upstream.open_answers == 0 or None, limit_s=10)


def test_leaving_a_stream_leaves_the_upstream(
    client: httpx.Client, upstream: ScriptedChatServer
) -> None:
    asked = script({"say": "word ", "repeat": 5000, "tick": 0.05})
    body = {"model": MODEL, "input": asked, "stream": True, "store": False}
    with client.stream("POST", "/responses", json=body) as answer:
        assert answer.status_code == 200, answer.read()
        lines = answer.iter_lines()  # a name, or httpx would leave after the first line
        next(lines)
        wait_for(lambda: upstream.open_answers or None)
    wait_for(lambda: upstream.open_answers == 0 or None, limit_s=10)


def test_connections_are_used_again(client: httpx.Client, upstream: ScriptedChatServer) -> None:
    create(client, **ASKED)
    before = upstream.connections
    for _ in range(10):
        create(client, **ASKED)
    assert upstream.connections - before <= 1


# --- keys -----------------------------------------------------------------------------------------


def test_the_key_is_not_in_the_log_though_the_upstream_repeats_it(
    client: httpx.Client, server: Replica, upstream: ScriptedChatServer
) -> None:
    for fault in ("401", "429", "500"):
        upstream.fault = fault
        assert SECRET not in client.post("/responses", json=ASKED).text
    assert "CUDA error" in server.log()  # the operator has to know
    assert SECRET not in server.log()
    assert upstream.chats[-1].headers["authorization"] == f"Bearer {SECRET}"


def test_what_a_field_is_refused_for_is_sent_without_it(
    client: httpx.Client, upstream: ScriptedChatServer
) -> None:
    upstream.refused_fields.add("seed")
    answer = client.post("/responses", json={**ASKED, "seed": 7})
    assert answer.status_code == 200, answer.text
    assert "seed" in answer.headers["x-antiphon-ignored"]
    last, again = upstream.chats[-2:]
    assert last.body["seed"] == 7
    assert again.body == {name: each for name, each in last.body.items() if name != "seed"}
