"""The search for what was said: its box, what it finds and marks, and what it says it has read."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.browser.browser import PHONE, WIDE, Page
from tests.browser.test_injection import payload
from tests.browser.test_list import ids, row
from tests.http.conftest import create

pytestmark = pytest.mark.browser

ENTER = "\ue007"


def make(api: httpx.Client, text: str, **fields: Any) -> str:
    return str(create(api, model="scripted-chat", input=text, **fields)["id"])


def marks(page: Page) -> list[str]:
    found: list[str] = page.run(
        "return [...document.querySelectorAll('mark')].map((m) => m.innerText)"
    )
    return found


def test_what_was_said_is_found_by_the_keyboard(page: Page, api: httpx.Client) -> None:
    made = make(api, "Tell me of Zanzibar and Ünter den Linden.")
    other = make(api, "Something else.")
    page.visit("responses")
    page.wait(lambda: row(page, other))
    page.run("document.querySelector('#search').focus()")
    page.press(*"ZANZIBAR ünter", ENTER)
    page.wait(lambda: ids(page) == [made])
    assert page.fragment == "#/responses?search=ZANZIBAR+%C3%BCnter"
    assert marks(page)[:2] == ["Zanzibar", "Ünter"]
    assert page.value("#search") == "ZANZIBAR ünter"
    page.wait_for("1 shown, of", ".summary")
    assert page.problems() == []


def test_a_search_keeps_its_filters(page: Page, api: httpx.Client) -> None:
    sea = make(api, "Pemba is near.", metadata={"team": "sea"})
    web = make(api, "Pemba is far.", metadata={"team": "web"})
    page.visit("responses?metadata%5Bteam%5D=sea")
    page.wait(lambda: sea in ids(page))
    page.fill("#search", "pemba")
    page.press(ENTER)
    page.wait(lambda: ids(page) == [sea] and marks(page))
    page.fill("#f-metadata_value", "web")
    page.click_text("Apply")
    page.wait(lambda: ids(page) == [web])
    page.fill("#f-metadata_value", "none")
    page.click_text("Apply")
    page.wait_for("matches the search and the filters", ".nothing")


def test_nothing_that_is_found_runs(page: Page, api: httpx.Client) -> None:
    made = make(api, f"Mafia island {payload('match')}")
    page.visit("responses")
    page.wait(lambda: row(page, made))
    page.fill("#search", "mafia <script>")
    page.press(ENTER)
    page.wait(lambda: ids(page) == [made] and "<script>" in marks(page))
    assert page.run("return window.__ran ?? []") == []
    assert page.problems() == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_search_fits_and_has_no_barriers(page: Page, api: httpx.Client, theme: str) -> None:
    long = "x" * 300
    made = make(api, f"مرحبا بالعالم 👍🏽 {long} Unguja{theme}")
    page.prefer(theme)
    for size in (PHONE, WIDE):
        page.resize(size)
        page.visit(f"responses?search=unguja{theme}")
        page.wait(lambda: ids(page) == [made])
        assert not page.is_wider_than_the_window()
    assert page.barriers() == []


def test_a_search_that_is_refused_can_be_changed(page: Page, api: httpx.Client) -> None:
    made = make(api, "Kilwa.")
    page.visit("responses?search=" + "+".join("abcdefghijklmnopq"))
    page.wait_for("A search has at most 16 words", ".error")
    page.fill("#search", "kilwa")
    page.press(ENTER)
    page.wait(lambda: ids(page) == [made])
