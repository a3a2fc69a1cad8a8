"""A silent stream sends a sign of life that its client sees, and that breaks no decoder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from openai import OpenAI
from websockets.sync.client import connect

COMMENT, EVENT = ": keepalive", 'data: {"type":"keepalive"}'
CODEX, OTHER = "codex_cli_rs/0.171.0 (Debian 12)", "openai-go/1.0"

SIGNS = [
    ("auto", CODEX, EVENT),
    ("auto", OTHER, COMMENT),
    ("comment", CODEX, COMMENT),
    ("event", OTHER, EVENT),
]


def silent(script: Any) -> dict[str, Any]:
    return {
        "model": "scripted-chat",
        "input": script([{"say": "Hi"}, {"hang": 60}]),
        "stream": True,
    }


@pytest.mark.parametrize(("style", "agent", "sign"), SIGNS)
def test_a_silent_stream_gets_signs_of_life(
    serve: Callable[..., Any], script: Any, style: str, agent: str, sign: str
) -> None:
    headers = {"user-agent": agent}
    with (
        serve(keepalive_s=0.1, keepalive=style) as server,
        httpx.stream(
            "POST", f"{server.api}/responses", json=silent(script), headers=headers
        ) as answer,
    ):
        lines = [line for line, _ in zip(signs_in(answer), range(2), strict=False)]
    assert lines == [sign, sign]


def signs_in(answer: httpx.Response) -> Iterator[str]:
    return (line for line in answer.iter_lines() if line in (COMMENT, EVENT))


def test_no_decoder_reads_a_comment_as_an_event(serve: Callable[..., Any], script: Any) -> None:
    # Some end an event at each empty line, whatever is before it.
    parts = [[{"say": "one "}, {"say": "two", "delay": 0.5}]]
    body = silent(script) | {"input": f"@@script {json.dumps(parts)}"}
    with serve(keepalive_s=0.1) as server:
        text = httpx.post(f"{server.api}/responses", json=body).text
    assert COMMENT in text
    assert all("data: " in block for block in text.strip().split("\n\n"))


@pytest.mark.parametrize("style", ["comment", "event"])
def test_the_official_client_reads_on(serve: Callable[..., Any], style: str) -> None:
    script = f"@@script {json.dumps([[{'say': 'one '}, {'say': 'two', 'delay': 0.5}]])}"
    with (
        serve(keepalive_s=0.1, keepalive=style) as server,
        OpenAI(base_url=server.api, api_key="none") as client,
        client.responses.stream(model="scripted-chat", input=script) as stream,
    ):
        types = [str(event.type) for event in stream]
        assert stream.get_final_response().output_text == "one \n\ntwo"
    assert ("keepalive" in types) is (style == "event")
    assert types[-1] == "response.completed"


@pytest.mark.parametrize(("style", "agent", "sign"), SIGNS)
def test_a_silent_lane_gets_them_as_well(
    serve: Callable[..., Any], script: Any, style: str, agent: str, sign: str
) -> None:
    with serve(keepalive_s=0.1, keepalive=style) as server:
        url = f"{server.api.replace('http', 'ws', 1)}/responses"
        with connect(url, user_agent_header=agent) as socket:
            request = silent(script) | {"type": "response.create", "stream_id": "a"}
            socket.send(json.dumps(request))
            kinds = read_for(socket, 0.6)
    assert ({"type": "keepalive", "stream_id": "a"} in kinds) is (sign == EVENT)


def read_for(socket: Any, seconds: float) -> list[dict[str, Any]]:
    """Return the frames that come until nothing came for so long, or a sign of life."""
    found: list[dict[str, Any]] = []
    try:
        while not found or found[-1]["type"] != "keepalive":
            found.append(json.loads(socket.recv(timeout=seconds)))
    except TimeoutError:
        pass
    return found
