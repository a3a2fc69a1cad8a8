"""Markdown that a model wrote, and the same as plain text."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.browser.browser import PHONE, Page
from tests.http.conftest import create, script, wait_until

pytestmark = pytest.mark.browser

MODEL = "scripted-chat"
ENTER = "\ue007"
RICH = """# Two stores

**SQLite** needs *nothing else*; [PostgreSQL](https://www.postgresql.org/docs/) serves several.

| Store | Servers | Survives |
|:------|--------:|:--------:|
| memory | 1 | no |
| sqlite | 1 | yes |

1. Choose one:
   - `memory` for tests
   - `sqlite` for one machine
2. Name it:

```console
$ antiphon serve --store sqlite
```

> A quote,
> in two lines.

---
The *end*."""


@pytest.fixture(autouse=True)
def nothing_went_wrong(page: Page) -> Any:
    yield
    assert page.problems() == []


def show(page: Page, api: httpx.Client, words: str = RICH) -> None:
    page.visit(f"responses/{create(api, model=MODEL, input=script({'say': words}))['id']}")
    page.wait(lambda: page.all(".item.assistant"))


SHOWN = {
    "h3": "Two stores",
    "strong": "SQLite",
    "em": "nothing else",
    "a[href='https://www.postgresql.org/docs/'][rel='noopener noreferrer']": "PostgreSQL",
    "a + .dim": "(www.postgresql.org)",
    "table tr:nth-child(2) td.right": "1",
    "ol > li:nth-child(2)": "Name it:",
    "ol ul > li:first-child code": "memory",
    "pre": "$ antiphon serve --store sqlite",
    ".language": "console",
    "blockquote": "A quote,\nin two lines.",
    "hr + p": "The end.",
}


def test_each_kind_of_markdown_is_an_element(page: Page, api: httpx.Client) -> None:
    show(page, api)
    page.wait(lambda: page.all(".item.assistant .rich"))
    shown = {css: page.text(f".item.assistant .rich {css}").strip() for css in SHOWN}
    assert shown == SHOWN


def test_plain_text_is_one_key_away_and_remembered(page: Page, api: httpx.Client) -> None:
    show(page, api)
    page.wait(lambda: page.all(".rich table"))
    page.run("document.querySelector('.plain').focus()")
    page.press(ENTER)
    page.wait_for("| memory | 1 | no |", ".item.assistant .prose")
    page.wait(lambda: page.focus == "Plain text")
    assert page.all(".plain[aria-pressed=true]")
    show(page, api)
    page.wait_for("**SQLite**", ".item.assistant .prose")
    page.click(".plain")
    page.wait(lambda: page.all(".rich table"))


def test_what_a_client_wrote_is_as_it_wrote_it(page: Page, api: httpx.Client) -> None:
    asked = "# no *heading*\n\n" + script({"say": "a **strong** one"})
    page.visit(f"responses/{create(api, model=MODEL, input=asked)['id']}")
    page.wait_for("strong", ".item.assistant .rich strong")
    assert "# no *heading*" in page.text(".item.user .prose")


def test_a_long_text_is_plain_and_says_so(page: Page, api: httpx.Client) -> None:
    show(page, api, "**long** " * 3000)
    page.wait_for("Longer than 20,000 characters, so it is shown as plain text.", ".item.assistant")
    assert "**long**" in page.text(".item.assistant .prose")


def test_a_text_is_markdown_once_it_is_written(page: Page, api: httpx.Client) -> None:
    turn = [{"say": "**one** two **three**", "chunk": 1, "tick": 0.1}, {"hang": 1}]
    response = create(api, model=MODEL, input=script(turn), background=True)
    page.visit(f"responses/{response['id']}")
    page.wait_for("**one", ".item.assistant .prose")
    page.wait_for("three", ".item.assistant .rich strong:last-child")
    path = f"/responses/{response['id']}"
    wait_until(lambda: api.get(path).json()["status"] == "completed")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_there_is_no_barrier(page: Page, api: httpx.Client, theme: str) -> None:
    page.prefer(theme)
    show(page, api)
    page.wait(lambda: page.all(".rich table"))
    assert page.barriers() == []
    page.resize(PHONE)
    assert not page.is_wider_than_the_window()
