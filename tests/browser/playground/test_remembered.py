"""What the playground remembers while the tab is open, and what it never does."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from tests.browser.browser import Page
from tests.browser.playground.forms import ask, made, open_playground, open_settings
from tests.http.conftest import create, script

pytestmark = pytest.mark.browser

SECRETS = ("Bearer canary-1", "canary-2", "canary-3")


@pytest.fixture(autouse=True)
def nothing_went_wrong(page: Page) -> Any:
    yield
    assert page.problems() == []


def stored(page: Page) -> str:
    return str(
        page.run("return JSON.stringify({...sessionStorage}) + JSON.stringify(localStorage)")
    )


def test_settings_survive_a_reload(page: Page) -> None:
    open_playground(page)
    page.click("#model option[value='scripted']")
    page.click("#second option[value='scripted-harmony']")
    fields = {
        "#instructions": "Be kind.", "#temperature": "0.5", "#top-p": "0.9", "#max-output": "99",
        "#seed": "7", "#schema": "{not yet", "#input": "A draft.",
    }  # fmt: skip
    for css, text in fields.items():
        page.fill(css, text)
    page.click("#effort option[value='low']")
    page.click("#background")
    page.click("#tool-file_search")
    page.fill("#vector-stores", "vs_1")
    page.click_text("Add a function")
    page.fill(".function input", "get_time")
    page.click(".function input[type=checkbox]")
    page.fill("#tools", '[{"type": "custom", "name": "note"}]')
    open_playground(page)
    assert {css: page.value(css) for css in fields} == fields
    assert page.value("#model") == "scripted"
    assert page.value("#second") == "scripted-harmony"
    assert page.value("#effort") == "low"
    for css in ("#background", "#tool-file_search", ".function input[type=checkbox]"):
        assert page.run("return document.querySelector(arguments[0]).checked", css)
    assert page.value(".function input") == "get_time"
    assert json.loads(page.value("#tools")) == [{"type": "custom", "name": "note"}]
    page.wait_for("This is no JSON", "#schema-verdict")


def test_a_thread_goes_on_after_a_reload(page: Page, api: httpx.Client) -> None:
    open_playground(page)
    ask(page, script({"say": "One."}, {"say": "Two."}))
    first = made(page)
    open_playground(page)
    page.wait_for(f"Continues {first}.", ".output")
    ask(page, "And then?")
    page.wait_for("Two.", ".output .item.assistant")
    assert api.get(f"/responses/{made(page)}").json()["previous_response_id"] == first
    page.click_text("New thread")
    page.wait_for("Nothing was asked yet.", ".output")
    assert page.value("#previous") == ""


def test_a_change_of_a_request_that_is_run_again_survives_a_reload(
    page: Page, api: httpx.Client
) -> None:
    response = create(api, model="scripted-chat", input="hi", metadata={"team": "ops"})
    page.visit(f"playground?again={response['id']}")
    page.wait(lambda: page.all("#input") and page.value("#input") == "hi")
    page.wait(lambda: page.fragment == "#/playground")
    page.fill("#input", "changed")
    page.driver.refresh()
    page.wait(lambda: page.all("#input") and page.value("#input") == "changed")
    open_settings(page)
    assert "Also sent: metadata" in page.text(".settings")


def test_nothing_that_is_secret_is_kept(page: Page, keys: dict[str, str]) -> None:
    open_playground(page)
    secret = [
        {"type": "mcp", "server_label": "a", "authorization": SECRETS[0]},
        {"type": "mcp", "server_label": "b", "headers": {"x-key": SECRETS[1]}},
        {"type": "mcp", "server_label": "c", "server_url": f"https://u:{SECRETS[2]}@a.example/mcp"},
        {"type": "mcp", "server_label": "d", "server_url": f"https://a.example/?k={SECRETS[2]}"},
        {"type": "shell", "environment": {"domain_secrets": [{"value": SECRETS[1]}]}},
    ]
    page.fill("#tools", json.dumps([*secret, {"type": "custom", "name": "note"}]))
    page.fill("#instructions", "Be kind.")
    assert "Be kind." in stored(page)
    for canary in (*SECRETS, keys["blue"]):
        assert canary not in stored(page)
    page.fill("#tools", f'[{{"authorization": "{SECRETS[0]}"')
    assert SECRETS[0] not in stored(page)


def test_nobody_sees_what_another_wrote_in_the_same_tab(
    visitor: Page, keys: dict[str, str]
) -> None:
    page = visitor
    page.sign_in(keys["blue"])
    open_playground(page)
    page.fill("#instructions", "Blue words.")
    page.sign_in(keys["red"])
    open_playground(page)
    assert page.value("#instructions") == ""
    page.fill("#instructions", "Red words.")
    page.click("#sign-out")
    page.wait_for("Sign in", "h1")
    assert stored(page) == "{}{}"


def test_what_a_thread_begins_after_can_be_changed(page: Page, api: httpx.Client) -> None:
    one, other = (create(api, model="scripted-chat", input=text)["id"] for text in ("a", "b"))
    page.visit(f"playground?previous={one}")
    page.wait_for(f"Continues {one}.", ".output")
    open_settings(page)
    page.fill("#previous", other)
    ask(page, "hi")
    assert api.get(f"/responses/{made(page)}").json()["previous_response_id"] == other
    page.click_text("New thread")
    page.fill("#previous", "resp_gone")
    ask(page, "hi")
    page.wait_for("previous_response_id: ", "#problem")
    page.wait(lambda: page.run("return document.activeElement.id") == "previous")
