"""Two responses beside each other."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.browser.browser import PHONE, Page
from tests.http.conftest import create, script

pytestmark = pytest.mark.browser

MODEL = "scripted-chat"
EVIL = "<img src=x onerror=\"window.__ran.push('img')\">"


@pytest.fixture(autouse=True)
def nothing_went_wrong(page: Page) -> Any:
    yield
    assert page.problems() == []


def pair(api: httpx.Client, *texts: str, **fields: Any) -> list[str]:
    return [create(api, model=MODEL, input=script({"say": text}), **fields)["id"] for text in texts]


def compare(page: Page, left: str, right: str) -> None:
    page.visit(f"compare?left={left}&right={right}")
    page.wait_for("Output", "main")
    page.wait(lambda: page.all("section[aria-label='Output']"))


def marked(page: Page, kind: str, part: str = "Output") -> list[str]:
    found = page.all(f"section[aria-label='{part}'] mark.{kind}")
    return [each.text.strip() for each in found]


def test_words_that_differ_are_marked(page: Page, api: httpx.Client) -> None:
    left, right = pair(api, "The quick brown fox jumps", "The slow brown fox jumps high")
    compare(page, left, right)
    assert marked(page, "removed") == ["quick"]
    assert marked(page, "added") == ["slow", "high"]
    assert left in page.text("table")


def test_the_same_text_is_said_to_be_the_same(page: Page, api: httpx.Client) -> None:
    compare(page, *pair(api, "Alike.", "Alike."))
    assert "The same on both sides." in page.text("section[aria-label='Output']")
    assert "All settings are the same." in page.text("main")


def test_settings_that_differ_are_shown(page: Page, api: httpx.Client) -> None:
    [left] = pair(api, "One.", temperature=0.2)
    [right] = pair(api, "One.", temperature=0.9, instructions="Be brief.")
    compare(page, left, right)
    shown = page.text("[aria-label='Settings that differ']")
    assert "temperature" in shown
    assert "0.2" in shown
    assert "Be brief." in shown
    assert "top_p" not in shown


def test_long_texts_do_not_stall_the_page(page: Page, api: httpx.Client) -> None:
    texts = [" ".join(f"{word}{number}" for number in range(8000)) for word in ("a", "b")]
    left, right = (create(api, model=MODEL, input=text)["id"] for text in texts)
    compare(page, left, right)
    page.wait_for("Too long to compare word by word", "section[aria-label='Input']")
    assert page.longest_task_ms() < 1000


def test_the_form_asks_for_two(page: Page, api: httpx.Client) -> None:
    left, right = pair(api, "One.", "Two.")
    page.visit("compare")
    page.fill("#left", left)
    page.fill("#right", right)
    page.click("main form button")
    page.wait(lambda: page.all("section[aria-label='Output']"))
    assert marked(page, "removed") == ["One."]


def test_nothing_that_a_model_wrote_runs(page: Page, api: httpx.Client) -> None:
    compare(page, *pair(api, f"a {EVIL}", f"b {EVIL}", metadata={"x": EVIL}))
    assert page.all("main img") == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_there_is_no_barrier(page: Page, api: httpx.Client, theme: str) -> None:
    page.prefer(theme)
    compare(page, *pair(api, "One thing.", "Another thing."))
    assert page.barriers() == []
    page.resize(PHONE)
    assert not page.is_wider_than_the_window()
