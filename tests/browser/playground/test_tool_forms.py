"""Tools as forms: those of the server, functions of the reader, and calls that wait."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.browser.browser import Page
from tests.browser.playground.forms import EVIL, TOOL, ask, made, open_playground, transfer
from tests.http.conftest import script
from tests.support.fake_mcp_server import FakeMcpServer

pytestmark = pytest.mark.browser

SAY = {"mcp": "say", "args": {"words": 2}}
PARAMETERS = '{"type": "object", "properties": {"city": {"type": "string"}}}'
CONTROL_ENTER = "\ue009\ue007"


@pytest.fixture
def offering(elsewhere: Any) -> Iterator[tuple[Page, httpx.Client]]:
    """A page of a server that runs code and has an MCP server of its own."""
    settings = {"tool": ["tests.http.odd_tools:OddTools"], "code_interpreter": True}
    with elsewhere(**settings, **{"code.cgroup": "off"}) as started:
        yield started


def write_function(page: Page, name: str, parameters: str = PARAMETERS) -> None:
    page.click_text("Add a function")
    page.fill("fieldset.function:last-child input", name)
    page.fill("fieldset.function:last-child textarea.code", parameters)


def test_tools_of_the_server_are_checked(offering: tuple[Page, httpx.Client]) -> None:
    page, _ = offering
    open_playground(page)
    assert [each.text for each in page.all("fieldset legend")] == [
        "Run by this server",
        "MCP servers",
    ]
    page.click("#tool-code_interpreter")
    page.click("#tool-file_search")
    page.fill("#vector-stores", "vs_1, vs_2")
    page.click("#mcp-odd")
    page.click("#approval option[value='always']")
    page.click_text("Save as…")
    page.wait_for("Write a message", "#problem")
    page.fill("#input", "hi")
    page.click_text("Save as…")
    page.wait(lambda: page.all("#copied"))
    body = json.loads(page.text("#copied").partition("<<'JSON'\n")[2].rstrip().removesuffix("JSON"))
    assert body["tools"] == [
        {"type": "code_interpreter", "container": {"type": "auto"}},
        {"type": "file_search", "vector_store_ids": ["vs_1", "vs_2"]},
        {"type": "mcp", "server_label": "odd", "require_approval": "always"},
    ]


def test_an_error_of_a_tool_is_shown_at_its_field(offering: tuple[Page, httpx.Client]) -> None:
    page, _ = offering
    open_playground(page)
    page.click("#tool-file_search")
    page.run("for (const each of document.querySelectorAll('.settings, .settings details')) "
             "each.open = false")  # fmt: skip
    ask(page, "hi")
    page.wait_for("tools[0].vector_store_ids", "#problem")
    page.wait(lambda: page.run("return document.activeElement.id") == "vector-stores")


def test_a_call_is_answered_by_hand(page: Page, api: httpx.Client) -> None:
    open_playground(page)
    write_function(page, "get_weather")
    page.fill("fieldset.function div:nth-of-type(2) textarea", "The weather of a city.")
    call = {"call": "get_weather", "args": {"city": "Bonn"}}
    ask(page, script(call, {"say": "Thank you."}))
    page.wait_for("Output of get_weather", ".answers")
    assert '"city": "Bonn"' in page.text(".answers pre")
    page.fill("#input", "Another question.")
    page.click_text("Run")
    page.wait_for("The model waits: answer its calls above", "#problem")
    page.fill(".answers textarea", "21 degrees")
    page.press(CONTROL_ENTER)
    page.wait_for("Thank you.", ".output .item.assistant")
    assert page.all(".answers") == []
    last = api.get(f"/responses/{made(page)}").json()
    [tool] = last["tools"]
    assert (tool["name"], tool["description"]) == ("get_weather", "The weather of a city.")
    assert tool["parameters"] == json.loads(PARAMETERS)
    [output] = api.get(f"/responses/{last['id']}/input_items?order=desc&limit=1").json()["data"]
    assert (output["type"], output["output"]) == ("function_call_output", "21 degrees")


@pytest.mark.parametrize(("button", "said"), [("Approve", "completed"), ("Deny", None)])
def test_a_call_is_approved_or_denied_in_the_thread(
    offering: tuple[Page, httpx.Client], button: str, said: str | None
) -> None:
    page, api = offering
    open_playground(page)
    page.click("#mcp-odd")
    page.click("#approval option[value='always']")
    page.fill("#temperature", "0.5")
    ask(page, script(SAY, {"say": "So be it."}))
    page.wait_for("odd/say", ".answers")
    page.wait_for("waiting for approval", ".output .summary")
    page.click_text(button)
    page.wait_for("So be it.", ".output .item.assistant")
    last = api.get(f"/responses/{made(page)}").json()
    calls = [item for item in last["output"] if item["type"] == "mcp_call"]
    assert [call["status"] for call in calls] == ([said] if said else [])
    assert last["temperature"] == 0.5
    assert page.text(".answers .outcome") in ("Approved.", "Denied.")
    assert page.all(".answers button:not(.copy)") == []


def test_a_schema_is_checked_while_somebody_writes(page: Page) -> None:
    open_playground(page)
    for field in ("#schema", "#tools"):
        page.fill(field, "{")
        page.wait_for("This is no JSON: ", f"{field}-verdict")
    page.fill("#schema", "[]")
    page.wait_for("This must be a JSON object.", "#schema-verdict")
    page.fill("#schema", "{}")
    page.wait_for("This is a JSON object.", "#schema-verdict")
    page.fill("#tools", "{}")
    page.wait_for("This must be a JSON list.", "#tools-verdict")
    page.fill("#tools", "[]")
    write_function(page, "get weather", "{")
    page.wait_for("A name has up to 64 letters, digits, _ and -.", ".function")
    page.wait_for("This is no JSON: ", ".function .verdict")
    ask(page, "hi")
    page.wait_for("tools[0].parameters: This is no JSON", "#problem")
    page.fill(".function textarea.code", "{}")
    page.click_text("Run")
    page.wait_for("tools[0].name", "#problem")
    page.wait(lambda: page.run("return document.activeElement.matches('.function input')"))
    page.fill(".function input", "get_weather")
    page.click_text("Run")
    made(page)
    assert page.text("#problem") == ""


def test_a_function_can_be_the_choice_and_can_be_removed(page: Page, api: httpx.Client) -> None:
    open_playground(page)
    write_function(page, "get_weather")
    write_function(page, "get_time")
    page.click("#tool-choice option[value='call get_time']")
    ask(page, "hi")
    page.wait_for("Output of get_time", ".answers")
    response = api.get(f"/responses/{made(page)}").json()
    assert response["tool_choice"] == {"type": "function", "name": "get_time"}
    page.click_text("New thread")
    page.click("#tool-choice option[value='']")
    page.click_text("Remove")
    assert page.focus == "Add a function"
    ask(page, script({"say": "hi"}))
    [tool] = api.get(f"/responses/{made(page)}").json()["tools"]
    assert tool["name"] == "get_time"


def test_a_bare_schema_is_sent_with_a_name(page: Page, api: httpx.Client) -> None:
    open_playground(page)
    page.fill("#schema", '{"type": "object", "properties": {"city": {"type": "string"}}}')
    ask(page, "Where?")
    answered = api.get(f"/responses/{made(page)}").json()
    assert answered["text"]["format"]["type"] == "json_schema"
    assert answered["text"]["format"]["schema"]["properties"] == {"city": {"type": "string"}}


def test_examples_of_other_tools_are_added(page: Page) -> None:
    open_playground(page)
    page.click_text("MCP server by URL")
    page.click_text("Tool with free text")
    assert [tool["type"] for tool in json.loads(page.value("#tools"))] == ["mcp", "custom"]


def test_a_request_that_is_run_again_fills_the_forms(page: Page, api: httpx.Client) -> None:
    tools = [
        {**TOOL, "strict": False},
        {"type": "custom", "name": "note"},
    ]
    body = {"model": "scripted-chat", "input": "hi", "tools": tools, "metadata": {"team": "ops"}}
    choice = {"tool_choice": {"type": "function", "name": "get_time"}, "top_p": 0.5}
    response = api.post("/responses", json={**body, **choice}).json()
    page.visit(f"playground?again={response['id']}")
    page.wait(lambda: page.all("#input") and page.value("#input") == "hi")
    assert page.value(".function input") == "get_time"
    assert [tool["type"] for tool in json.loads(page.value("#tools"))] == ["custom"]
    assert (page.value("#tool-choice"), page.value("#top-p")) == ("call get_time", "0.5")
    assert "Also sent: metadata" in page.text(".settings")
    page.click_text("Run")
    again = api.get(f"/responses/{made(page)}").json()
    for field in ("tools", "tool_choice", "top_p", "metadata"):
        assert again[field] == response[field]
    page.click_text("Leave out")
    assert "Also sent" not in page.text(".settings")


def test_names_and_outputs_of_tools_are_text(page: Page, tools: FakeMcpServer) -> None:
    open_playground(page)
    write_function(page, EVIL, json.dumps({"type": "object", "description": EVIL}))
    page.wait_for("onerror", ".function legend")
    ask(page, "hi")
    page.wait_for("tools[0].name", "#problem")
    page.click_text("Remove")
    mcp = {"type": "mcp", "server_label": "calc", "server_url": f"{tools.origin}/mcp"}
    page.fill("#tools", json.dumps([{**mcp, "server_description": EVIL, "x": EVIL}]))
    page.fill("#schema", json.dumps({"type": "object", "description": EVIL, "title": EVIL}))
    page.click_text("Run")
    made(page)
    transfer(page, "paste", ("a.txt", EVIL, b"a"))
    page.wait(lambda: page.all(".chip"))
    page.fill("#tools", json.dumps([{"type": EVIL}]))
    page.click_text("Run")
    page.wait_for("onerror", "#problem")
    assert page.all("main img, main script") == []
    assert page.problems() == []
