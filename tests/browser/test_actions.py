"""What a reader can do with a response."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from tests.browser.browser import Page
from tests.browser.test_response import agent, mcp, show
from tests.http.conftest import create, script, text_of, wait_until
from tests.support.fake_mcp_server import FakeMcpServer

pytestmark = pytest.mark.browser

MODEL = "scripted-chat"
ADD = {"mcp": "add", "args": {"a": 2, "b": 40}}


@pytest.fixture(autouse=True)
def nothing_went_wrong(page: Page) -> Any:
    yield
    assert page.problems() == []


def shown_id(page: Page, before: str) -> str:
    """Return the id of the response that the page shows, once it is another one."""
    page.wait(lambda: before not in page.fragment and "/resp_" in page.fragment)
    return page.fragment.partition("/responses/")[2].partition("?")[0]


def test_a_background_response_is_cancelled(page: Page, api: httpx.Client) -> None:
    hanging = script([{"say": "Once"}, {"hang": 600}])
    response = create(api, model=MODEL, input=hanging, background=True)
    show(page, response)
    page.click_text("Cancel")
    page.wait_for("cancelled", ".facts")
    assert api.get(f"/responses/{response['id']}").json()["status"] == "cancelled"


def test_a_response_is_deleted_after_a_question(page: Page, api: httpx.Client) -> None:
    response = create(api, model=MODEL, input="hi")
    show(page, response)
    page.click_text("Delete")
    page.wait_for("It cannot be brought back", "dialog")
    page.click_text("Close")
    assert api.get(f"/responses/{response['id']}").status_code == 200
    page.click_text("Delete")
    page.click_text("Delete it")
    page.wait(lambda: page.fragment == "#/responses")
    assert api.get(f"/responses/{response['id']}").status_code == 404


@pytest.mark.parametrize("answer", ["approve", "deny"])
def test_a_call_is_approved_or_denied(
    page: Page, api: httpx.Client, tools: FakeMcpServer, answer: str
) -> None:
    asked = script([ADD], {"say": "Done."})
    response = create(api, model=MODEL, input=asked, tools=mcp(tools, require_approval="always"))
    show(page, response)
    page.click(f".approvals option[value='{'true' if answer == 'approve' else 'false'}']")
    page.click_text("Answer")
    following = shown_id(page, response["id"])
    page.wait_for("done", ".facts")
    items = api.get(f"/responses/{following}").json()["output"]
    assert any(item["type"] == "mcp_call" for item in items) is (answer == "approve")


def test_a_call_that_was_answered_cannot_be_answered_again(
    page: Page, api: httpx.Client, tools: FakeMcpServer
) -> None:
    asked = script([ADD], {"say": "Done."})
    response = create(api, model=MODEL, input=asked, tools=mcp(tools, require_approval="always"))
    show(page, response)
    page.wait_for("waiting for approval", ".facts")
    page.wait_for("It waits for you to approve or deny a call.", ".ending")
    page.click_text("Answer")
    following = shown_id(page, response["id"])
    show(page, response)
    page.wait_for(following, ".approvals")
    assert page.text(".approvals").startswith("Answered in")
    assert "Answer" not in [each.text for each in page.all("button")]
    assert "done" in page.text(".facts")


def test_two_pages_that_answer_learn_of_the_first(
    page: Page, api: httpx.Client, tools: FakeMcpServer
) -> None:
    asked = script([ADD], {"say": "Done."})
    wanted = mcp(tools, require_approval="always")
    response = create(api, model=MODEL, input=asked, tools=wanted)
    show(page, response)
    page.wait_for("Answer", ".approvals")
    approval = {
        "type": "mcp_approval_response",
        "approval_request_id": response["output"][-1]["id"],
        "approve": True,
    }
    fields = {"previous_response_id": response["id"], "tools": wanted}
    first = create(api, model=MODEL, input=[approval], **fields)
    page.click_text("Answer")
    page.wait_for(f"was answered in response '{first['id']}' already", ".actions .error")


def test_a_conversation_goes_on(page: Page, api: httpx.Client) -> None:
    response = create(api, model=MODEL, input=script({"say": "First."}, {"say": "Second."}))
    show(page, response)
    page.click_text("Continue")
    page.wait(lambda: page.all("#previous") and page.value("#previous") == response["id"])
    page.fill("#input", "And then?")
    page.click_text("Run")
    page.wait_for("Second.", ".output .item.assistant")


def test_another_run_goes_on_after_any_item(
    page: Page, api: httpx.Client, tools: FakeMcpServer
) -> None:
    response = agent(api, tools)
    show(page, response)
    page.click("select[aria-label='Continue after an item'] option[value='1']")
    page.wait(lambda: page.all("#input") and "mcp_list_tools" in page.value("#input"))
    assert "mcp_call" not in page.value("#input")


def test_a_response_runs_again_with_a_change(page: Page, api: httpx.Client) -> None:
    fields = {"instructions": "Be brief.", "temperature": 0.5, "max_output_tokens": 99}
    response = create(api, model=MODEL, input=script({"say": "Hello."}), **fields)
    show(page, response)
    page.click_text("Run again")
    page.wait(lambda: page.all("#instructions") and page.value("#instructions") == "Be brief.")
    assert (page.value("#temperature"), page.value("#max-output")) == ("0.5", "99")
    page.fill("#input", script({"say": "Changed."}))
    page.click_text("Run")
    page.wait_for("Changed.", ".output .item.assistant")
    page.wait_for("done", ".output .summary")
    made = page.text(".output .summary a")
    assert api.get(f"/responses/{made}").json()["instructions"] == "Be brief."


def test_requests_are_copied_without_a_key(
    page: Page, api: httpx.Client, keys: dict[str, str]
) -> None:
    response = create(api, model=MODEL, input="it's me", metadata={"a": "b"})
    show(page, response)
    page.click_text("Copy as…")
    page.wait_for("curl", "#copied")
    curl = page.text("#copied")
    assert "$ANTIPHON_API_KEY" in curl
    assert keys["blue"] not in curl
    body = json.loads(curl.partition("<<'JSON'\n")[2].rstrip().removesuffix("JSON"))
    assert text_of(create(api, **body)) == text_of(response)
    page.click_text("Python")
    page.wait_for("client.responses.create(", "#copied")
    compile(page.text("#copied"), "copied.py", "exec")


def test_a_script_plays_the_response_again(
    page: Page, api: httpx.Client, tools: FakeMcpServer
) -> None:
    response = agent(api, tools)
    show(page, response)
    page.click_text("Copy as…")
    page.click_text("Script for the scripted model")
    page.wait_for("@@script", "#copied")
    again = create(api, model=MODEL, input=page.text("#copied"), tools=mcp(tools))
    assert [item["type"] for item in again["output"]] == [
        item["type"] for item in response["output"]
    ]
    assert text_of(again) == text_of(response)


def test_the_bundle_is_downloaded(page: Page, api: httpx.Client, tmp_path: Any) -> None:
    response = create(api, model=MODEL, input="hi")
    show(page, response)
    allow = {"behavior": "allow", "downloadPath": str(tmp_path)}
    page.driver.execute_cdp_cmd("Browser.setDownloadBehavior", allow)
    page.click_text("Download bundle")
    file = tmp_path / f"{response['id']}.json"
    wait_until(file.exists)
    assert json.loads(file.read_text())["response_id"] == response["id"]


def test_what_another_tenant_has_cannot_be_touched(
    page: Page, clients: dict[str, httpx.Client]
) -> None:
    theirs = create(clients["red"], model=MODEL, input="theirs")
    for view in (f"playground?again={theirs['id']}", f"compare?left={theirs['id']}&right=x"):
        page.visit(view)
        page.wait_for("This did not work")
        assert "theirs" not in page.text("main").replace(theirs["id"], "")
