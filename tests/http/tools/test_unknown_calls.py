"""A model whose way of calling tools is not known: requests with tools are refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

LOOK = {"type": "function", "name": "look", "parameters": {"type": "object"}}


@pytest.fixture(scope="module")
def client(serve_from: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with (
        serve_from(tmp_path_factory.mktemp("plain"), format="chat:plain") as server,
        httpx.Client(base_url=server.api, timeout=15) as client,
    ):
        yield client


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "name": "look"}])
def test_a_request_with_tools_is_refused(client: httpx.Client, choice: Any, stream: bool) -> None:
    body = {"model": "scripted-plain", "input": "Hi.", "tools": [LOOK], "tool_choice": choice}
    refused = client.post("/responses", json={**body, "stream": stream})
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, "tools")
    assert "does not know how this model calls tools (its format is chat:plain)" in error["message"]


@pytest.mark.parametrize("tools", [{}, {"tools": [LOOK], "tool_choice": "none"}])
def test_a_request_that_calls_no_tool_is_answered(client: httpx.Client, tools: Any) -> None:
    answer = client.post("/responses", json={"model": "scripted-plain", "input": "Hi.", **tools})
    assert (answer.status_code, answer.json()["status"]) == (200, "completed")
