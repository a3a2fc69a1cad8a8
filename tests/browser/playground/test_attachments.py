"""Images and files of a message: attached, pasted or dropped."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.browser.browser import Page
from tests.browser.playground.forms import EVIL, PNG, ask, made, open_playground, transfer

pytestmark = pytest.mark.browser

ENTER, SHIFT_TAB = "\ue007", "\ue008\ue004"


@pytest.fixture(autouse=True)
def nothing_went_wrong(page: Page) -> Any:
    yield
    assert page.problems() == []


def chips(page: Page) -> list[str]:
    script = (
        "return [...document.querySelectorAll('.chip')].map((chip) => "
        "[...chip.querySelectorAll('span')].map((each) => each.innerText).join(' '))"
    )
    found: list[str] = page.run(script)
    return found


def content_of(api: httpx.Client, response_id: str) -> list[dict[str, Any]]:
    [item] = api.get(f"/responses/{response_id}/input_items").json()["data"]
    content: list[dict[str, Any]] = item["content"]
    return content


def test_chosen_images_and_files_are_sent_with_the_message(
    page: Page, api: httpx.Client, tmp_path: Path
) -> None:
    (tmp_path / "dot.png").write_bytes(PNG)
    (tmp_path / "notes.txt").write_text("The meeting is at noon.", encoding="utf-8")
    open_playground(page)
    page.all("#files")[0].send_keys(f"{tmp_path / 'dot.png'}\n{tmp_path / 'notes.txt'}")
    page.wait(lambda: chips(page) == ["dot.png 70 bytes", "notes.txt 23 bytes"])
    ask(page, "What is this?")
    text, image, file = content_of(api, made(page))
    assert text["text"] == "What is this?"
    assert image["type"] == "input_image"
    assert image["image_url"] == f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    assert (file["type"], file["filename"]) == ("input_file", "notes.txt")
    assert base64.b64decode(file["file_data"].partition(",")[2]) == b"The meeting is at noon."
    assert chips(page) == []
    assert len(page.all(".round img.picture")) == 1
    assert "Save notes.txt" in page.text(".round")


@pytest.mark.parametrize("kind", ["paste", "drop"])
def test_files_are_pasted_and_dropped(page: Page, api: httpx.Client, kind: str) -> None:
    open_playground(page)
    transfer(page, kind, ("dot.png", "image/png", PNG))
    page.wait(lambda: chips(page) == ["dot.png 70 bytes"])
    page.click_text("Run")
    [image] = content_of(api, made(page))
    assert image["type"] == "input_image"


def test_a_text_that_is_pasted_is_no_file(page: Page) -> None:
    open_playground(page)
    prevented = page.run(
        "const data = new DataTransfer(); data.setData('text/plain', 'words');"
        "return !document.querySelector('#input').dispatchEvent(new ClipboardEvent('paste', "
        "{bubbles: true, cancelable: true, clipboardData: data}))"
    )
    assert not prevented
    assert chips(page) == []


def test_a_file_is_removed_with_the_keyboard(page: Page, api: httpx.Client) -> None:
    open_playground(page)
    transfer(page, "paste", ("a.txt", "text/plain", b"a"), ("b.txt", "text/plain", b"b"))
    page.wait(lambda: len(chips(page)) == 2)
    page.run("document.querySelector('.chip button').focus()")
    page.press(ENTER)
    page.wait(lambda: chips(page) == ["b.txt 1 byte"])
    assert page.run("return document.activeElement.id") == "files"
    page.click_text("Run")
    [file] = content_of(api, made(page))
    assert file["filename"] == "b.txt"


def test_limits_are_said_before_anything_is_sent(elsewhere: Any) -> None:
    with elsewhere(max_body_bytes=100_000, max_media=2) as (page, api):
        open_playground(page)
        transfer(page, "paste", ("long.txt", "text/plain", b"x" * 60_000))
        page.wait_for(
            "long.txt (60.0 kB) is too large: a request may have 100.0 kB, and files take a third "
            "more in it.",
            ".composer",
        )
        files = [(f"{name}.txt", "text/plain", b"x") for name in "abc"]
        transfer(page, "paste", *files, ("empty.txt", "text/plain", b""))
        page.wait_for("c.txt is left out: a request may have 2 files.", ".composer")
        assert chips(page) == ["a.txt 1 byte", "b.txt 1 byte"]
        page.run("document.querySelector('#input').value = 'x'.repeat(100_001)")
        page.click_text("Run")
        page.wait_for("The request has 100.3 kB; this server takes 100.0 kB.", "#problem")
        assert api.get("/responses").json()["data"] == []


def test_an_empty_file_is_not_attached(page: Page) -> None:
    open_playground(page)
    transfer(page, "drop", ("empty.txt", "text/plain", b""))
    page.wait_for("empty.txt is empty.", ".composer")
    assert chips(page) == []


def test_a_model_that_reads_no_images_says_so_and_the_message_stays(
    several: tuple[Page, httpx.Client],
) -> None:
    page, _ = several
    open_playground(page)
    page.click("#model option[value='blind']")
    transfer(page, "paste", ("dot.png", "image/png", PNG))
    page.wait_for("blind cannot read images.", ".composer")
    ask(page, "What is this?")
    page.wait_for("The server refused the request.", ".output")
    page.wait_for("input[0].content[1]: ", "#problem")
    assert "image" in page.text("#problem").partition(": ")[2]
    assert page.text("#problem") in page.text(".output")
    assert page.value("#input") == "What is this?"
    assert chips(page) == ["dot.png 70 bytes"]
    page.click("#model option[value='seeing']")
    assert "cannot read" not in page.text(".composer")
    page.click_text("Run")
    made(page)


def test_the_name_of_a_file_is_text(page: Page, api: httpx.Client) -> None:
    open_playground(page)
    transfer(page, "paste", (EVIL.replace("/", "_"), "text/plain", b"a"), ("b.txt", "a/b", b"b"))
    page.wait(lambda: len(chips(page)) == 2)
    page.click_text("Run")
    made(page)
    assert "onerror" in page.text(".round")
    assert page.all("main img, main script") == []
