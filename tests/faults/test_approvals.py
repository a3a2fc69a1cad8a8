"""What a client was asked to approve of outlives the server that asked."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.faults.support.replicas import Replica, replicas
from tests.http.conftest import MODELS, script
from tests.support import fake_mcp_server
from tests.support.fake_mcp_server import TOOLS, FakeMcpServer

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX"),
]

Json = dict[str, Any]

ARGUMENTS = '{"a": 2, "b": 40, "text": "\\u00e9 \\ud83d\\ude00 <|end|> \\"quoted\\"", "n": 1.50}'
"""As a model may write them: escapes, spaces and a number that a parser would write otherwise."""


@pytest.fixture
def site() -> Iterator[FakeMcpServer]:
    with fake_mcp_server.site() as listening:
        listening.says = {"add": "42"}
        yield listening


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Replica]:
    allowed = ("--fetch-urls", "--fetch-hosts", "127.0.0.1:*", "--fetch-private", "127.0.0.1")
    with replicas(
        tmp_path, "--store", f"sqlite:///{tmp_path}/shared.db", *allowed, count=1
    ) as started:
        yield started[0]


def create(server: Replica, site: FakeMcpServer, **fields: Any) -> Json:
    tool = {
        "type": "mcp",
        "server_label": "calc",
        "server_url": site.url,
        "authorization": "secret",
    }
    body = {"tools": [tool], **fields}
    answer = httpx.post(f"{server.api}/responses", json=body, timeout=15)
    assert answer.status_code == 200, answer.text
    created: Json = answer.json()
    return created


def approving(before: Json) -> Json:
    request = before["output"][-1]
    given = {
        "type": "mcp_approval_response",
        "approval_request_id": request["id"],
        "approve": True,
    }
    return {
        "model": before["model"],
        "input": [given],
        "previous_response_id": before["id"],
    }


@pytest.mark.timeout(60)
@pytest.mark.parametrize("model", MODELS)
def test_a_call_is_approved_of_after_the_server_was_killed(
    server: Replica, site: FakeMcpServer, model: str
) -> None:
    # Nothing is said of approvals: each call needs one.
    asked = script({"mcp": "add", "args": ARGUMENTS}, {"say": "42 it is."})
    before = create(server, site, model=model, input=asked)
    listed, request = before["output"]
    assert (request["type"], request["arguments"]) == ("mcp_approval_request", ARGUMENTS)
    server.kill()
    server.start()

    kept = httpx.get(f"{server.api}/responses/{before['id']}").json()
    assert kept["output"] == [listed, request]
    assert site.methods("tools/call") == []
    response = create(server, site, **approving(before))
    call, message = response["output"]
    assert (call["approval_request_id"], call["arguments"]) == (request["id"], ARGUMENTS)
    assert (call["output"], message["content"][0]["text"]) == ("42", "42 it is.")
    [called] = site.methods("tools/call")
    assert called["arguments"] == json.loads(ARGUMENTS)
    assert b"secret" not in b"".join(
        file.read_bytes() for file in server.output.parent.parent.rglob("*") if file.is_file()
    )


@pytest.mark.timeout(60)
def test_a_tool_that_changed_while_nobody_served_is_asked_for_again(
    server: Replica, site: FakeMcpServer
) -> None:
    asked = script({"mcp": "add", "args": {"a": 1, "b": 1}}, {"say": "2."})
    before = create(server, site, model="scripted-chat", input=asked)
    server.kill()
    site.tools = [{**TOOLS[0], "description": "Subtracts."}]
    server.start()
    again = create(server, site, **approving(before))
    assert [item["type"] for item in again["output"]] == ["mcp_list_tools", "mcp_approval_request"]
    assert site.methods("tools/call") == []
