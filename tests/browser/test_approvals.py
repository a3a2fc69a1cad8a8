"""The inbox: calls that wait for a yes or a no."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.browser.browser import PHONE, Page
from tests.browser.test_response import ADD, LOOK, mcp
from tests.http.conftest import create, script
from tests.support import fake_mcp_server
from tests.support.fake_mcp_server import FakeMcpServer

pytestmark = pytest.mark.browser

MODEL = "scripted-chat"
DONE = {"say": "Done."}
TAB, ENTER = "\ue004", "\ue007"
NOBODY_LOOKS = "Object.defineProperty(document, 'hidden', { value: true })"


@pytest.fixture
def called() -> Iterator[FakeMcpServer]:
    """A server of tools whose calls a test counts."""
    with fake_mcp_server.site() as listening:
        yield listening


@pytest.fixture(autouse=True)
def nothing_went_wrong(page: Page, api: httpx.Client) -> Any:
    """Nothing waits before a test, so that it can count."""
    for left in api.get("/responses", params={"awaits_approval": "true"}).json()["data"]:
        api.delete(f"/responses/{left['id']}")
    yield
    assert page.problems() == []


def ask(api: httpx.Client, tools: FakeMcpServer, *calls: dict[str, Any]) -> dict[str, Any]:
    return create(api, model=MODEL, input=script([*calls], DONE), tools=wanted(tools))


def wanted(tools: FakeMcpServer) -> list[dict[str, Any]]:
    return mcp(tools, require_approval="always")


def card(response: dict[str, Any]) -> str:
    return f'article[data-id="{response["id"]}"]'


def count(page: Page) -> str:
    return page.text("nav [data-view=approvals] .count").split("\n")[0].strip()


def following(page: Page, response: dict[str, Any]) -> str:
    """Return the id of the response that the card says has the answer."""
    page.wait(lambda: page.all(f"{card(response)} .outcome a"))
    return page.text(f"{card(response)} .outcome a")


def test_calls_are_approved_and_denied_where_they_wait(
    page: Page, api: httpx.Client, called: FakeMcpServer
) -> None:
    page.visit("approvals")
    page.wait_for("No call waits for an answer.", ".nothing")
    first, second = ask(api, called, ADD), ask(api, called, LOOK)
    page.wait(lambda: page.all(card(first)) and page.all(card(second)))  # by itself
    assert count(page) == "2"
    shown = page.text(card(first))
    for words in ("calc/add", '"b": 40', MODEL, "of-blue", "Waits since"):
        assert words in shown
    page.click(f"{card(first)} button.primary")
    page.wait_for("Approved. The answer is in", card(first))
    page.click(f"{card(second)} button.danger")
    page.wait_for("Denied. The answer is in", card(second))
    page.wait(lambda: count(page) == "")
    assert page.focus == following(page, second)
    page.click(f"{card(first)} .outcome a")
    page.wait_for("Done.", "#panel")
    assert [each["name"] for each in called.methods("tools/call")] == ["add"]


def test_the_calls_of_one_response_are_answered_together(
    page: Page, api: httpx.Client, called: FakeMcpServer
) -> None:
    response = ask(api, called, ADD, LOOK)
    page.visit("approvals")
    page.click("[aria-label='Approve calc/add']")
    page.wait_for("1 call of this response left to answer.", card(response))
    page.click("[aria-label='Deny calc/look']")
    page.wait_for("1 approved, 1 denied.", card(response))
    path = f"/responses/{following(page, response)}/input_items"
    answers = [
        each["approve"]
        for each in api.get(path).json()["data"]
        if each["type"] == "mcp_approval_response"
    ]
    assert sorted(answers) == [False, True]


def test_a_call_that_somebody_else_has_answered_names_the_answer(
    page: Page, api: httpx.Client, called: FakeMcpServer
) -> None:
    response = ask(api, called, ADD)
    page.visit("approvals")
    page.wait(lambda: page.all(card(response)))
    page.run(NOBODY_LOOKS)  # so the page does not learn of it before
    approval = {
        "type": "mcp_approval_response",
        "approval_request_id": response["output"][-1]["id"],
        "approve": True,
    }
    fields = {"previous_response_id": response["id"], "tools": wanted(called)}
    first = create(api, model=MODEL, input=[approval], **fields)
    page.click(f"{card(response)} button.danger")
    page.wait_for("It was answered before, and each call is answered once.", card(response))
    assert following(page, response) == first["id"]


def test_a_conversation_has_the_answer(
    page: Page, api: httpx.Client, called: FakeMcpServer
) -> None:
    conversation = api.post("/conversations", json={}).json()["id"]
    fields = {"conversation": conversation, "tools": wanted(called)}
    response = create(api, model=MODEL, input=script([ADD], DONE), **fields)
    page.visit("approvals")
    page.click(f"{card(response)} button.primary")
    page.click(f"{card(response)} .outcome a")
    page.wait_for("done", ".facts")
    items = api.get(f"/conversations/{conversation}/items").json()["data"]
    assert "Done." in json.dumps(items)


def test_a_tenant_answers_its_own_calls_only(
    page: Page, clients: dict[str, httpx.Client], called: FakeMcpServer
) -> None:
    ask(clients["red"], called, ADD)
    page.visit("approvals")
    page.wait_for("No call waits for an answer.", ".nothing")
    assert count(page) == ""


def test_a_keyboard_answers(page: Page, api: httpx.Client, called: FakeMcpServer) -> None:
    response = ask(api, called, ADD)
    page.visit("approvals")
    page.wait(lambda: page.all(card(response)))
    page.wait(lambda: page.focus == "Approvals")
    for _ in range(9):
        page.press(TAB)
        if page.focus == "Deny":
            break
    page.press(ENTER)
    page.wait_for("Denied.", card(response))
    assert page.focus == following(page, response)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_there_is_no_barrier(
    page: Page, api: httpx.Client, called: FakeMcpServer, theme: str
) -> None:
    response = ask(api, called, ADD, LOOK)
    page.prefer(theme)
    page.visit("approvals")
    page.click(f"{card(response)} button.primary")
    page.wait_for("left to answer", card(response))
    assert page.barriers() == []
    page.resize(PHONE)
    assert not page.is_wider_than_the_window()
