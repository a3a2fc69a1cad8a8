"""A chain or a conversation as one page."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest
from tests.browser.browser import PHONE, Page
from tests.http.conftest import create, script

pytestmark = pytest.mark.browser

MODEL = "scripted-chat"
LONG = 60
OPENS_S = 3.0
ENTER = "\ue007"


@pytest.fixture(autouse=True)
def nothing_went_wrong(page: Page) -> Any:
    yield
    assert page.problems() == []


def say(api: httpx.Client, words: str, before: str | None = None, **fields: Any) -> str:
    asked = f"ask {words}\n\n" + script({"say": f"answer {words}"})
    made = create(api, model=MODEL, input=asked, previous_response_id=before, **fields)
    return str(made["id"])


def turn(response_id: str) -> str:
    return f'.turn[data-id="{response_id}"]'


def turns(page: Page) -> list[str]:
    found: list[str] = page.run(
        "return [...document.querySelectorAll('.turn')].map((turn) => turn.dataset.id)"
    )
    return found


def test_a_chain_is_read_from_its_beginning_with_its_forks(page: Page, api: httpx.Client) -> None:
    root = say(api, "one")
    first = say(api, "two", root)
    fork = say(api, "other", root)
    last = say(api, "three", first)
    page.visit(f"threads/{first}")
    page.wait(lambda: turns(page) == [root, fork, first, last])
    assert page.text(".summary") == "4 responses, 1 fork, 0 running"
    for words in ("ask two", "answer two", "done", MODEL, " in, "):
        assert words in page.text(turn(first))
    assert "Fork: 1 response" in page.text(".fork summary")
    assert page.all(f".fork {turn(fork)}")
    assert page.text("[aria-current=true]").startswith("2. ")
    page.go(f"threads/{fork}")
    page.wait(lambda: turns(page) == [root, first, last, fork])
    added = say(api, "four", fork)
    page.wait(lambda: turns(page)[-1] == added)  # by itself


def test_a_whole_turn_is_one_click_away(page: Page, api: httpx.Client) -> None:
    root = say(api, "one")
    last = say(api, "two", root)
    page.visit(f"threads/{last}")
    page.click(f"{turn(last)} summary")
    page.wait_for("answer two", f"{turn(last)} [aria-label=Output]")
    page.wait_for("@@script", f"{turn(last)} [aria-label=Input]")
    page.click(f"{turn(root)} .head a")
    page.wait_for(root, ".facts")
    page.click_text("all turns", "a")
    page.wait(lambda: turns(page) == [root, last])


def test_a_long_chain_opens_at_once_and_at_its_end(page: Page, api: httpx.Client) -> None:
    made = [say(api, "0")]
    for number in range(1, LONG):
        made.append(say(api, str(number), made[-1]))
    page.visit("compare")
    page.wait_for("Compare", "h1")
    page.run("performance.clearResourceTimings()")
    started = time.monotonic()
    page.go(f"threads/{made[-1]}")
    page.wait(lambda: turns(page) == made)
    assert time.monotonic() - started < OPENS_S
    asked = page.run("return performance.getEntriesByType('resource').map((each) => each.name)")
    assert len([each for each in asked if "/console/" in each or "/v1/" in each]) < 5
    seen = "const box = document.querySelector(arguments[0]).getBoundingClientRect(); "
    page.wait(lambda: page.run(seen + "return box.bottom <= innerHeight + 1", turn(made[-1])))
    at = "return document.activeElement.closest('.turn')?.dataset.id"
    assert page.run(at) == made[-1]  # and a keyboard begins there
    page.press(ENTER)
    page.wait_for(made[-1], ".facts")


def test_a_conversation_is_a_thread(page: Page, api: httpx.Client) -> None:
    conversation = api.post("/conversations", json={}).json()["id"]
    made = [
        str(create(api, model=MODEL, input=f"turn {number}", conversation=conversation)["id"])
        for number in range(3)
    ]
    page.visit("responses")
    page.click(f'tr[data-id="{made[1]}"] .to-thread')
    page.wait(lambda: turns(page) == made)
    assert page.fragment == f"#/threads/{conversation}"
    page.visit("threads")
    page.fill("#thread", "conv_none")
    page.press(ENTER)
    page.wait_for("No response is of this conversation.", "main")


def test_another_tenants_thread_is_not_found(page: Page, clients: dict[str, httpx.Client]) -> None:
    theirs = say(clients["red"], "theirs")
    page.visit(f"threads/{theirs}")
    page.wait_for("This did not work", "h1")
    assert "ask theirs" not in page.text()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_there_is_no_barrier(page: Page, api: httpx.Client, theme: str) -> None:
    root = say(api, "one")
    last = say(api, "two", root)
    say(api, "three", root)
    page.prefer(theme)
    page.visit(f"threads/{last}")
    page.click(f"{turn(last)} summary")
    page.wait_for("answer two", f"{turn(last)} [aria-label=Output]")
    assert page.barriers() == []
    page.resize(PHONE)
    assert not page.is_wider_than_the_window()
