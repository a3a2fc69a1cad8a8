"""The state of the server, as a tenant may see it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.browser.browser import PHONE, Page
from tests.http.conftest import create, script

pytestmark = pytest.mark.browser

MODEL = "scripted-chat"


@pytest.fixture(autouse=True)
def nothing_went_wrong(page: Page) -> Any:
    yield
    assert page.problems() == []


def test_models_runs_store_and_cache_are_shown(page: Page, api: httpx.Client) -> None:
    for _ in range(2):
        create(api, model=MODEL, input="the same long prompt " * 40)
    page.visit("state")
    page.wait_for("sqlite", "[aria-label='Server']")
    assert MODEL in page.text("[aria-label='Models']")
    assert "prompt tokens were cached" in page.text("[aria-label='Prefix cache']")
    assert "blue" in page.text("[aria-label='You']")
    assert "Background" in page.text("main")


def test_what_runs_is_seen_when_it_starts(page: Page, api: httpx.Client) -> None:
    page.visit("state")
    page.wait_for("Running", "main")
    hanging = script([{"say": "Once"}, {"hang": 600}])
    response = create(api, model=MODEL, input=hanging, background=True)
    page.wait_for("1 writing", "main")
    api.post(f"/responses/{response['id']}/cancel")
    page.wait(lambda: "1 writing" not in page.text("main"))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_there_is_no_barrier(page: Page, theme: str) -> None:
    page.prefer(theme)
    page.visit("state")
    page.wait_for("Models", "main")
    assert page.barriers() == []
    page.resize(PHONE)
    assert not page.is_wider_than_the_window()


def test_use_is_shown_beside_its_limit(visitor: Page, serve: Any) -> None:
    with serve(quota_responses=50) as server, httpx.Client(base_url=server.api) as api:
        create(api, model=MODEL, input="hi")
        page = Page(visitor.driver, server.url)
        page.visit("state")
        page.wait_for("1 of 50", "[aria-label='You']")
        meter = "return document.querySelector('[aria-label^=\"Stored responses\"]').value"
        assert page.run(meter) == 1


def test_a_phone_shows_the_state_in_words_and_not_in_letters(page: Page) -> None:
    page.resize(PHONE)
    page.visit("state")
    page.wait_for("Models", "main")
    widths = page.run(
        "return [...document.querySelectorAll('main th, main td, main dd, main dt')]"
        ".filter((each) => each.innerText.length > 4)"
        ".map((each) => [each.innerText, each.getBoundingClientRect().width])"
    )
    assert all(width > 30 for _, width in widths), widths
