"""What an MCP server says of its tools is shown to the model, and stays as it was listed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.http.conftest import create, script
from tests.support import fake_mcp_server
from tests.support.fake_mcp_server import FakeMcpServer

ALLOWED = {"fetch.urls": True, "fetch.hosts": ["127.0.0.1:*"], "fetch.private": ["127.0.0.1"]}
FREELY = {"require_approval": "never"}
ADD = {"mcp": "add", "args": {"a": 2, "b": 40}}


@pytest.fixture
def site() -> Iterator[FakeMcpServer]:
    with fake_mcp_server.site() as site:
        yield site


@pytest.fixture
def calling(serve: Any) -> Iterator[httpx.Client]:
    with serve(store="sqlite", **ALLOWED) as server, httpx.Client(base_url=server.api) as client:
        yield client


def test_what_a_server_says_of_its_tools_is_in_every_prompt_that_offers_them(
    calling: httpx.Client, site: FakeMcpServer, model: str
) -> None:
    site.instructions = "Numbers are in meters."
    request = {
        "model": model,
        "tools": [{"type": "mcp", "server_label": "calc", "server_url": site.url, **FREELY}],
        "enable_response_messages": True,
    }
    first = create(calling, input=script(ADD, {"say": "a"}), **request)
    assert first["output"][0]["instructions"] == "Numbers are in meters."
    site.instructions = "Numbers are in feet."
    second = create(
        calling, input=script({"say": "b"}), previous_response_id=first["id"], **request
    )
    for response in (first, second):
        prompt = str(response["input_messages"])
        assert "About all tools of calc: Numbers are in meters." in prompt
        assert "feet" not in prompt
