"""What clients are shown of the tools that an MCP server lists, wherever they look."""

from __future__ import annotations

from typing import Any

import httpx
from tests.http.conftest import create, frames, script
from tests.support.fake_mcp_server import FakeMcpServer

ALLOWED = {"fetch.urls": True, "fetch.hosts": ["127.0.0.1:*"], "fetch.private": ["127.0.0.1"]}


def test_a_listed_tool_has_only_the_fields_that_its_server_gave(serve: Any, model: str) -> None:
    site = FakeMcpServer()
    tool = {"type": "mcp", "server_label": "calc", "server_url": site.url}
    body = {"model": model, "input": script({"say": "ok"}), "tools": [tool], "stream": True}
    try:
        with serve(store="sqlite", **ALLOWED) as server, httpx.Client(base_url=server.api) as http:
            events = frames(http.post("/responses", json=body).text)
            last = events[-1]["response"]
            stored = http.get(f"/responses/{last['id']}").json()
            again = create(http, model=model, input="hi", previous_response_id=last["id"])
            items = http.get(f"/responses/{again['id']}/input_items?limit=9").json()["data"]
    finally:
        site.close()
    shown = [
        next(event["item"] for event in events if event["type"] == "response.output_item.done"),
        *(response["output"][0] for response in (last, stored)),
        *(item for item in items if item["type"] == "mcp_list_tools"),
    ]
    assert len(shown) == 4
    for listed in shown:
        assert "error" not in listed
        assert [list(tool) for tool in listed["tools"]] == [
            ["name", "description", "input_schema"],
            ["name", "input_schema", "annotations"],
            ["name", "input_schema"],
        ]
