"""Guards of programs: only calls and results have the word, which a program makes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from tests.http.conftest import create, script, stream, text_of
from tests.http.guards.conftest import TOOLS, ServeGuarded
from tests.http.guards.odd_guards import MESSAGE, WORD

pytestmark = pytest.mark.slow

Json = dict[str, Any]

HALVES = f"'{WORD[:2]}' + '{WORD[2:]}'"
"""JavaScript that makes the word: the code itself does not have it."""

CALLED = ["programmatic"]
MCP = {"type": "mcp", "server_label": "odd", "require_approval": "never", "allowed_callers": CALLED}
FUNCTION = {"type": "function", "name": "f", "parameters": {}, "allowed_callers": CALLED}
NAMES = {"odd__echo": "echo", "f": "f"}
"""The tools that are called with the word: how programs call them, and their own names."""

TOOLS_OF_PROGRAMS = [{"type": "programmatic_tool_calling"}, MCP, FUNCTION]


@pytest.fixture(scope="module", params=["refuse", "stop", "mask"])
def verdict(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def servers(serve_guarded: ServeGuarded, verdict: str) -> Iterator[dict[str, httpx.Client]]:
    """A client for each place where alone guards are asked."""
    if shutil.which("bwrap") is None:
        pytest.skip("there is no bwrap here: apt-get install bubblewrap")
    with ExitStack() as stack:
        clients = {}
        for place in ("tool_call", "tool_result"):
            server = stack.enter_context(serve_guarded(verdict, place, tool=[TOOLS], programs=True))
            client = httpx.Client(base_url=server.api, timeout=30)
            clients[place] = stack.enter_context(client)
        yield clients


def run(http: httpx.Client, model: str, code: str, send: Any = create) -> Json:
    turns = ({"call": "program", "args": {"code": code}}, {"say": "Well."})
    response: Json = send(http, model=model, input=script(*turns), tools=TOOLS_OF_PROGRAMS)
    assert WORD not in json.dumps(response["output"])
    return response


def result_of(response: Json) -> Json:
    [output] = [item for item in response["output"] if item["type"] == "program_output"]
    return dict(output)


@pytest.mark.parametrize("send", [create, stream])
@pytest.mark.parametrize("tool", NAMES)
def test_a_call_that_does_not_pass_ends_its_program(
    servers: dict[str, httpx.Client], verdict: str, model: str, tool: str, send: Any
) -> None:
    """It is not made, whoever runs the tool, and no item of it is shown."""
    code = f"return await tools.{tool}({{echo: {HALVES}}})"
    response = run(servers["tool_call"], model, code, send)
    assert not any("caller" in item for item in response["output"])
    output = result_of(response)
    assert output["status"] == "incomplete"
    if verdict == "refuse":
        assert output["result"] == f"Error: the call of {NAMES[tool]} is not allowed. {MESSAGE}"
    if verdict == "stop":
        assert response["incomplete_details"] == {"reason": "content_filter"}
    else:
        assert text_of(response) == "Well.", "the model reads why, and goes on"


def test_a_program_gets_the_result_that_passes(
    servers: dict[str, httpx.Client], verdict: str, model: str
) -> None:
    code = "try { return await tools.odd__say() } catch (error) { return 'No: ' + error.message }"
    output = result_of(run(servers["tool_result"], model, code))
    if verdict == "mask":
        assert output["result"] == "The word is *****."
    elif verdict == "refuse":
        assert MESSAGE in output["result"]


def test_what_a_program_makes_of_results_is_asked_about(
    servers: dict[str, httpx.Client], verdict: str, model: str
) -> None:
    response = run(servers["tool_result"], model, f"text('So: ' + {HALVES})")
    output = result_of(response)
    if verdict == "mask":
        assert (output["status"], output["result"]) == ("completed", "So: *****")
    elif verdict == "refuse":
        assert (output["status"], output["result"]) == ("incomplete", f"Error: {MESSAGE}")
    else:
        assert response["incomplete_details"] == {"reason": "content_filter"}
