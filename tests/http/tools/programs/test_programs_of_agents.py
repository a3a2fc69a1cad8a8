"""Sub-agents that write programs: each runs its own, and the client answers all of their calls."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.http.conftest import create, script
from tests.http.tools.test_multi_agent import AGENTS, BETA, WAIT, said, spawn, texts, told

Json = dict[str, Any]

CALLED = ["programmatic"]
FUNCTION = {
    "type": "function",
    "name": "stock",
    "parameters": {"type": "object", "properties": {"sku": {"type": "string"}}},
    "allowed_callers": CALLED,
}
ODD = {"type": "mcp", "server_label": "odd", "require_approval": "never", "allowed_callers": CALLED}
TOOLS = [{"type": "programmatic_tool_calling"}, FUNCTION, ODD]
BY_SERVER = "return 'Odd: ' + (await tools.odd__say({words: 2})).trim()"
BY_CLIENT = "return 'Stock: ' + await tools.stock({sku: 'a'})"


@pytest.fixture(scope="module")
def beta(serve_odd_tools: Any) -> Iterator[httpx.Client]:
    if shutil.which("bwrap") is None:
        pytest.skip("there is no bwrap here: apt-get install bubblewrap")
    with serve_odd_tools(programs=True) as client:
        client.headers.update(BETA)
        yield client


def program(code: str) -> Json:
    return {"call": "program", "args": {"code": code}}


def ask(client: httpx.Client, model: str, *turns: Any) -> Json:
    body = {"model": model, "input": script(*turns), "tools": TOOLS, "multi_agent": AGENTS}
    return create(client, **body)


def programs_of(response: Json, agent: str) -> list[Json]:
    """Return what the programs of an agent have come to."""
    return [
        item
        for item in response["output"]
        if item["type"] == "program_output" and item["agent"]["agent_name"] == agent
    ]


def test_each_agent_runs_its_own_programs(beta: httpx.Client, model: str) -> None:
    child = spawn("odd", program(BY_SERVER), said("One odd thing."))
    response = ask(beta, model, child, WAIT, program("return 'Mine.'"), said("All done."))
    assert response["status"] == "completed", response
    [own] = programs_of(response, "/root")
    assert own["result"] == "Mine."
    [output] = programs_of(response, "/root/odd")
    assert output["status"] == "completed"
    assert ("/root/odd", "/root", "One odd thing.") in told(response)


def test_the_client_answers_the_call_of_an_agents_program(beta: httpx.Client, model: str) -> None:
    child = spawn("stock", program(BY_CLIENT), said("Counted."))
    first = ask(beta, model, child, WAIT, said("All counted."))
    [call] = [item for item in first["output"] if item["type"] == "function_call"]
    assert call["agent"]["agent_name"] == "/root/stock"
    assert call["caller"]["type"] == "program"
    answer = {
        "type": "function_call_output",
        "call_id": call["call_id"],
        "output": "17",
        "caller": call["caller"],
    }
    fields = {"tools": TOOLS, "multi_agent": AGENTS, "previous_response_id": first["id"]}
    second = create(beta, model=model, input=[answer], **fields)
    [output] = programs_of(second, "/root/stock")
    assert output["result"] == "Stock: 17"
    assert ("/root/stock", "/root", "Counted.") in told(second)
    assert ("/root", "All counted.") in texts(second)
