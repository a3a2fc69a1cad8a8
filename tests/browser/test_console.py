"""Signing in and out, the shell, and two tenants."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest
from tests.browser.browser import PHONE, Page
from tests.http.conftest import create, script

pytestmark = pytest.mark.browser

VIEWS = ("responses", "approvals", "activity", "playground", "compare", "state")


def test_a_key_opens_the_console_and_signing_out_closes_it(
    visitor: Page, keys: dict[str, str]
) -> None:
    visitor.visit("responses")
    visitor.wait_for("Sign in", "h1")
    visitor.fill("#key", "ak-wrong")
    visitor.click_text("Sign in", "button")
    visitor.wait_for("Incorrect API key provided.", ".sign-in .error")
    visitor.fill("#key", keys["blue"])
    visitor.click_text("Sign in", "button")
    visitor.wait_for("Responses", "h1")
    assert "of-blue" in visitor.text(".account")
    assert visitor.run("return document.cookie + JSON.stringify(localStorage)") == "{}"
    visitor.visit("responses")
    visitor.wait_for("Responses", "h1")
    visitor.click("#sign-out")
    visitor.wait_for("Sign in", "h1")
    assert visitor.problems() == []


def test_an_ended_session_asks_for_the_key(page: Page) -> None:
    page.visit("responses")
    page.wait_for("Responses", "h1")
    page.driver.delete_all_cookies()
    page.wait_for("Sign in", "h1")


def test_tenants_see_only_their_own(
    visitor: Page, keys: dict[str, str], clients: dict[str, httpx.Client]
) -> None:
    mine = create(clients["blue"], model="scripted-chat", input=script({"say": "blue secret"}))
    theirs = create(clients["red"], model="scripted-chat", input=script({"say": "red secret"}))
    visitor.sign_in(keys["red"])
    visitor.visit("responses")
    visitor.wait(lambda: visitor.all(f'tr[data-id="{theirs["id"]}"]'))
    assert not visitor.all(f'tr[data-id="{mine["id"]}"]')
    visitor.go(f"responses/{mine['id']}")
    visitor.wait_for("There is no response")
    assert "blue secret" not in visitor.text()
    visitor.go(f"responses/{theirs['id']}")
    visitor.wait_for("red secret")


def test_a_theme_is_chosen_and_remembered(page: Page) -> None:
    page.visit("responses")
    page.wait_for("Responses", "h1")
    color = "return getComputedStyle(document.body).backgroundColor"
    light = page.run(color)
    page.prefer("dark")
    dark = page.run(color)
    assert dark != light
    page.click("#theme")
    assert page.run(color) == light
    page.visit("responses")
    page.wait_for("Responses", "h1")
    assert page.run(color) == light


def test_a_keyboard_reaches_the_content_and_each_view(page: Page) -> None:
    page.visit("responses")
    page.wait_for("Responses", "h1")
    page.wait(lambda: page.focus == "Responses")
    page.run("document.querySelector('.brand').focus()")
    page.press("\ue008\ue004")
    assert page.focus == "Skip to content"
    page.press("\ue007")
    assert page.run("return document.activeElement.id") == "main"
    for view in ("Approvals", "Activity", "Playground", "Compare", "State"):
        page.run("document.querySelector('.skip').focus()")
        while not page.focus.startswith(view):  # a number may stand beside it
            page.press("\ue004")
        page.press("\ue007")
        page.wait(lambda view=view: page.run("return document.title").startswith(view))
        page.wait(lambda: page.run("return document.activeElement.closest('main') !== null"))
        assert page.text("[aria-current=page]").startswith(view)


def test_a_keyboard_alone_signs_in_reads_a_response_and_signs_out(
    visitor: Page, keys: dict[str, str], api: httpx.Client
) -> None:
    made = create(api, model="scripted-chat", input=script({"say": "By the keys."}))
    visitor.visit("responses")
    visitor.wait(lambda: visitor.focus == "key")
    visitor.press(keys["blue"], "\ue007")
    visitor.wait_for("Responses", "h1")
    visitor.wait(lambda: visitor.all("tbody a"))
    visitor.wait(lambda: visitor.focus == "Responses")
    at = "return document.activeElement.closest('tr')?.dataset.id"
    press_until(visitor, "\ue004", lambda: visitor.run(at) == made["id"])
    visitor.press("\ue007")
    visitor.wait_for("By the keys.", "#panel")
    press_until(visitor, "\ue004", lambda: visitor.focus == "Transcript")
    visitor.press("\ue014")
    visitor.wait_for("Times of the turns and calls", "#panel")
    press_until(visitor, "\ue008\ue004", lambda: visitor.focus == "Sign out")
    visitor.press("\ue007")
    visitor.wait_for("Sign in", "h1")
    assert visitor.problems() == []


def press_until(page: Page, keys: str, holds: Callable[[], bool]) -> None:
    for _ in range(60):
        if holds():
            return
        page.press(keys)
    pytest.fail(f"the focus did not get there; it is at {page.focus!r}")


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_view_has_a_barrier(page: Page, api: httpx.Client, view: str, theme: str) -> None:
    create(api, model="scripted-chat", input=script({"say": "Hello."}))
    page.prefer(theme)
    page.visit(view)
    page.wait(lambda: page.text("h1"))
    assert page.barriers() == []
    assert page.problems() == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_sign_in_form_has_no_barrier(visitor: Page, theme: str) -> None:
    visitor.prefer(theme)
    visitor.visit("responses")
    visitor.wait_for("Sign in", "h1")
    assert visitor.barriers() == []


@pytest.mark.parametrize("view", VIEWS)
def test_a_phone_shows_each_view_without_scrolling_sideways(page: Page, view: str) -> None:
    page.resize(PHONE)
    page.visit(view)
    page.wait(lambda: page.text("h1"))
    assert not page.is_wider_than_the_window()


def test_the_form_for_the_key_says_where_a_key_comes_from(visitor: Page) -> None:
    visitor.visit("responses")
    visitor.click_text("Where do I get a key?", "summary")
    visitor.wait_for("antiphon keys create --name NAME", ".sign-in")
