"""A model on another server, as clients of the API see it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.http.conftest import script, text_of, wait_until
from tests.upstreams.chat_faults import SECRET
from tests.upstreams.chat_models import model_table
from tests.upstreams.chat_server import MODEL, ScriptedChatServer, scripted_chat_server

pytestmark = pytest.mark.slow

TABLES = """\
[[models]]
name = "plain"
engine = "chat"
url = "{openai}"
model = "{model}"

[[models]]
name = "careful"
engine = "chat"
url = "{openai}"
model = "{model}"
fallback = ["other"]

[[models]]
name = "other"
engine = "chat"
url = "{vllm}"
model = "{model}"
"""
SAY = script({"say": "Hello."})


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedChatServer]:
    with scripted_chat_server() as server:
        yield server


@pytest.fixture(params=[False, True], ids=["lenient", "strict"])
def server(
    request: pytest.FixtureRequest, serve: Any, upstream: ScriptedChatServer, tmp_path: Path
) -> Iterator[Any]:
    file = tmp_path / "chat.toml"
    urls = {style: upstream.url(style) for style in ("openai", "vllm")}
    file.write_text(TABLES.format(model=MODEL, **urls), encoding="utf-8")
    with serve(config=file, strict=request.param) as running:
        yield running


def ask(server: Any, model: str, **fields: Any) -> httpx.Response:
    body = {"model": model, "input": SAY, **fields}
    return httpx.post(f"{server.api}/responses", json=body, timeout=20)


@pytest.mark.parametrize("server", [False], indirect=True, ids=["lenient"])
@pytest.mark.parametrize("name", ["plain", "careful"])
def test_what_the_server_does_not_know_is_named_from_the_first_request_on(
    server: Any, name: str
) -> None:
    for _ in range(2):
        answer = ask(server, name, top_k=5, seed=3)
        assert answer.headers["x-antiphon-ignored"] == "top_k"
        assert text_of(answer.json()) == "Hello."
    assert "x-antiphon-ignored" not in ask(server, name, seed=3).headers


@pytest.mark.parametrize("server", [True], indirect=True, ids=["strict"])
def test_a_strict_server_refuses_it_once_it_knows(server: Any) -> None:
    assert ask(server, "plain", top_k=5).status_code == 200
    refused = ask(server, "plain", top_k=5)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "top_k"


ERRORS = {
    "429": (429, "rate_limit_exceeded", None),
    "401": (503, "server_error", None),
    "500": (500, "server_error", None),
    "context": (400, "context_length_exceeded", "input"),
    "filtered prompt": (400, "content_filter", "input"),
}


@pytest.mark.parametrize("server", [False], indirect=True, ids=["lenient"])
@pytest.mark.parametrize("fault", ERRORS)
def test_an_error_of_the_server_has_a_status_here(
    server: Any, upstream: ScriptedChatServer, fault: str
) -> None:
    upstream.faults.append(fault)
    answer = ask(server, "plain")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == ERRORS[fault]
    assert SECRET not in answer.text
    if fault == "429":
        assert answer.headers["retry-after"] == "7"


@pytest.mark.parametrize("server", [False], indirect=True, ids=["lenient"])
@pytest.mark.parametrize("fault", ["429", "500", "401", "closes before headers"])
def test_another_model_takes_over_from_a_server_that_fails(
    server: Any, upstream: ScriptedChatServer, fault: str
) -> None:
    upstream.faults += [fault] * (2 if fault.startswith("closes") else 1)
    answer = ask(server, "careful")
    assert (answer.status_code, text_of(answer.json())) == (200, "Hello.")
    assert upstream.chats[-1].style == "vllm"


@pytest.mark.parametrize("server", [False], indirect=True, ids=["lenient"])
def test_a_filtered_answer_is_incomplete_with_what_there_was(
    server: Any, upstream: ScriptedChatServer
) -> None:
    upstream.faults.append("content filter")
    response = ask(server, "plain", input=script({"say": "word " * 50})).json()
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "content_filter"}
    assert text_of(response).startswith("word")


@pytest.mark.parametrize("server", [False], indirect=True, ids=["lenient"])
def test_a_broken_stream_ends_as_failed_with_what_there_was(
    server: Any, upstream: ScriptedChatServer
) -> None:
    upstream.faults.append("closes")
    body = {"input": script({"say": "word " * 50}), "background": True}
    created = ask(server, "plain", **body).json()
    url = f"{server.api}/responses/{created['id']}"
    with httpx.stream("GET", url, params={"stream": "true"}, timeout=20) as events:
        assert "response.failed" in "".join(events.iter_text())
    response = httpx.get(url, timeout=20).json()
    assert response["status"] == "failed"
    assert text_of(response).startswith("word")


@pytest.mark.faults
@pytest.mark.parametrize("fault", ["503", "429"])
def test_a_background_response_that_waits_outlasts_a_failure_of_its_server(
    serve: Any, upstream: ScriptedChatServer, tmp_path: Path, fault: str
) -> None:
    file = tmp_path / "waits.toml"
    quick = '[[models]]\nname = "quick"\nengine = "scripted"\n'
    file.write_text(quick + model_table(upstream, "openai", "remote"), encoding="utf-8")
    long = script({"say": "word ", "repeat": 50, "tick": 0.01})
    with serve(config=file, store="sqlite", background_runs=1) as running:
        ask(running, "quick", input=long, background=True)
        upstream.fault = fault
        before = len(upstream.chats)
        queued = ask(running, "remote", background=True).json()
        wait_until(lambda: len(upstream.chats) > before)
        upstream.fault = None
        url = f"{running.api}/responses/{queued['id']}"
        wait_until(lambda: httpx.get(url).json()["status"] not in ("queued", "in_progress"))
        assert text_of(httpx.get(url).json()) == "Hello."


@pytest.mark.faults
def test_a_server_stops_at_once_if_its_background_responses_only_wait_for_a_model(
    serve: Any, upstream: ScriptedChatServer, tmp_path: Path
) -> None:
    file = tmp_path / "stops.toml"
    quick = '[[models]]\nname = "quick"\nengine = "scripted"\n'
    file.write_text(quick + model_table(upstream, "openai", "remote"), encoding="utf-8")
    settings = {"config": file, "store": "sqlite", "background_runs": 1}
    with serve(**settings, graceful_shutdown_s=3600) as running:
        long = script({"say": "word ", "repeat": 50, "tick": 0.01})
        ask(running, "quick", input=long, background=True)
        upstream.fault = "503"
        before = len(upstream.chats)
        queued = ask(running, "remote", background=True).json()
        wait_until(lambda: len(upstream.chats) > before)
    upstream.fault = None
    with serve(**settings) as running:
        url = f"{running.api}/responses/{queued['id']}"
        wait_until(lambda: httpx.get(url).json()["status"] not in ("queued", "in_progress"))
        assert text_of(httpx.get(url).json()) == "Hello."
