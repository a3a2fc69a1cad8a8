"""What tools put out is shown in place: text, errors, images, files, passages and pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.browser.browser import Page
from tests.browser.test_response import show
from tests.http.conftest import create, script, wait_until

pytestmark = pytest.mark.browser

MODEL = "scripted-chat"
CODE = {"type": "code_interpreter", "container": {"type": "auto"}}
CALL = ".item.code_interpreter_call"
DRAW = """
import base64, pathlib
dot = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9Q"
    "DwADhgGAWjR9awAAAABJRU5ErkJggg==")
pathlib.Path("/mnt/data/dot.png").write_bytes(dot)
pathlib.Path("/mnt/data/notes.txt").write_text("Buy bread.")
"""
EVIL = "<img src=x onerror=\"window.__ran.push('img')\">"


@pytest.fixture(scope="module")
def workshop(serve_from: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server without keys that runs code and searches a small web."""
    if shutil.which("bwrap") is None:
        pytest.skip("there is no bwrap here: apt-get install bubblewrap")
    web = tmp_path_factory.mktemp("pages")
    (web / "psalms.md").write_text(f"# Psalms\n\nThere are 150 psalms. {EVIL}")
    given = {
        "code_interpreter": True,
        "code.cgroup": "off",
        "code.memory_mb": 1024,
        "web_search": "corpus",
        "web.folder": web,
    }
    with serve_from(tmp_path_factory.mktemp("workshop"), **given) as server:
        yield server


@pytest.fixture
def own(workshop: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=workshop.api, timeout=30) as client:
        yield client


@pytest.fixture
def shown(visitor: Page, workshop: Any) -> Iterator[Page]:
    page = Page(visitor.driver, workshop.url)
    yield page
    assert page.problems() == []


def test_what_code_prints_is_shown_below_it(shown: Page, own: httpx.Client) -> None:
    turns = script({"python": "print(6 * 7)"}, {"say": "42"})
    show(shown, create(own, model=MODEL, input=turns, tools=[CODE]))
    shown.wait_for("42", f"{CALL} .body")
    assert "print(6 * 7)" in shown.text(f"{CALL} .body")
    assert not shown.all(f"{CALL}.failed")


def test_code_that_raises_is_marked_as_failed(shown: Page, own: httpx.Client) -> None:
    turns = script({"python": "1 / 0"}, {"say": "It failed."})
    show(shown, create(own, model=MODEL, input=turns, tools=[CODE]))
    shown.wait_for("ZeroDivisionError", f"{CALL} summary .tag.bad")
    assert "division by zero" in shown.text(f"{CALL} .failed-output")
    color = "return getComputedStyle(document.querySelector(arguments[0])).color"
    assert shown.run(color, f"{CALL} .tag.bad") == shown.run(color, ".danger")


def test_an_image_that_code_makes_is_shown(shown: Page, own: httpx.Client) -> None:
    turns = script({"python": f"{DRAW}display(dot)"}, {"say": "See."})
    show(shown, create(own, model=MODEL, input=turns, tools=[CODE]))
    shown.wait(lambda: shown.run(f"return document.querySelector('{CALL} img')?.naturalWidth") == 1)


def test_files_that_code_writes_are_shown(shown: Page, own: httpx.Client) -> None:
    turns = script({"python": DRAW}, {"say": "Written."})
    show(shown, create(own, model=MODEL, input=turns, tools=[CODE]))
    shown.click_text("Files in its container")
    shown.wait_for("notes.txt", CALL)
    shown.wait(lambda: shown.run(f"return document.querySelector('{CALL} img')?.naturalWidth") == 1)
    shown.click_text("Show")
    shown.wait_for("Buy bread.", f"{CALL} .file-body pre")


def test_the_output_of_running_code_appears_when_it_is_there(
    shown: Page, own: httpx.Client
) -> None:
    turns = script({"python": "print('early')"}, {"say": "word " * 40, "chunk": 1, "tick": 0.1})
    response = create(own, model=MODEL, input=turns, tools=[CODE], background=True)
    show(shown, response)
    shown.wait_for("early", f"{CALL} .body section + section")
    assert own.get(f"/responses/{response['id']}").json()["status"] == "in_progress"
    own.post(f"/responses/{response['id']}/cancel")


def test_pages_that_a_search_found_are_shown_as_text(shown: Page, own: httpx.Client) -> None:
    turns = script(
        {"call": "browser.search", "args": {"query": "psalms"}},
        {"call": "browser.open", "args": {"id": 0}},
        {"say": "150."},
    )
    show(shown, create(own, model=MODEL, input=turns, tools=[{"type": "web_search"}]))
    shown.wait(lambda: len(shown.all(".item.web_search_call")) == 2)
    for summary in shown.all(".item.web_search_call summary"):
        summary.click()
    shown.wait_for("psalms.md", ".item.web_search_call .sources a")
    shown.wait_for("There are 150 psalms.", "#panel")
    assert shown.all(".item img") == []


def test_passages_that_a_search_found_are_shown(shown: Page, own: httpx.Client) -> None:
    files = {"file": ("bread.txt", b"Bread needs flour and water.")}
    file = own.post("/files", files=files, data={"purpose": "assistants"}).json()["id"]
    store = own.post("/vector_stores", json={"file_ids": [file]}).json()["id"]
    path = f"/vector_stores/{store}"
    wait_until(lambda: own.get(path).json()["file_counts"]["completed"] == 1)
    turns = script({"call": "file_search", "args": {"queries": ["flour"]}}, {"say": "Flour."})
    tool = {"type": "file_search", "vector_store_ids": [store]}
    show(shown, create(own, model=MODEL, input=turns, tools=[tool]))
    shown.click(".item.file_search_call summary")
    shown.wait_for("Bread needs flour", ".item.file_search_call .body")
    assert "bread.txt" in shown.text(".item.file_search_call .body")
