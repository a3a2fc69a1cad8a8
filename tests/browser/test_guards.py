"""What guards said of a response is on its page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.browser.browser import Page
from tests.http.conftest import script
from tests.http.guards.odd_guards import WORD

pytestmark = pytest.mark.browser


@pytest.fixture
def guarded(serve: Any, tmp_path: Path) -> Iterator[Any]:
    file = tmp_path / "guarded.toml"
    file.write_text('[options.guard.words]\ndoes = "mask"\nplaces = ["output"]\n')
    guard = ["words=tests.http.guards.odd_guards:WordGuard"]
    with serve(config=file, guard=guard, store="sqlite") as server:
        yield server


@pytest.fixture
def page(_browser: Any, guarded: Any) -> Page:
    return Page(_browser, guarded.url)


def test_each_guard_says_what_it_did_and_where(page: Page, guarded: Any) -> None:
    turns = script({"say": f"I know the word, {WORD}, well."})
    body = {"model": "scripted-chat", "input": turns}
    made = httpx.post(f"{guarded.api}/responses", json=body).json()
    page.visit(f"responses/{made['id']}")
    page.wait_for("words replaced parts of the output", ".facts .plain")
    assert "*****" in page.text(".item.message.assistant")
