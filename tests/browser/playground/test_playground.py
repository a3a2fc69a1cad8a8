"""The playground: a form for requests, and what the model answers."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from tests.browser.browser import PHONE, Page
from tests.browser.playground.forms import (
    EVIL,
    PNG,
    TOOL,
    ask,
    made,
    open_playground,
    transfer,
)
from tests.http.conftest import script

pytestmark = pytest.mark.browser

TAB, ENTER, CONTROL = "\ue004", "\ue007", "\ue009"


@pytest.fixture(autouse=True)
def nothing_went_wrong(page: Page) -> Any:
    yield
    assert page.problems() == []


def test_a_message_is_answered(page: Page, api: httpx.Client) -> None:
    open_playground(page)
    page.fill("#input", script([{"think": "Hm."}, {"say": "Hello you."}]))
    page.fill("#instructions", "Be kind.")
    page.click_text("Run")
    page.wait_for("Hello you.", ".output .item.assistant")
    assert api.get(f"/responses/{made(page)}").json()["instructions"] == "Be kind."


def test_a_schema_is_kept(page: Page, api: httpx.Client) -> None:
    open_playground(page)
    page.click_text("Add a schema")
    page.fill("#input", "Where?")
    page.click_text("Run")
    answer = api.get(f"/responses/{made(page)}").json()
    assert answer["text"]["format"]["type"] == "json_schema"
    assert "city" in json.loads(answer["output"][-1]["content"][0]["text"])


@pytest.mark.parametrize(
    ("field", "text", "said"),
    [
        ("tools", "[{", "tools: This is no JSON"),
        ("tools", '[{"type": "function"}]', "tools"),
        ("schema", '{"type": "json_schema"}', "text.format"),
        ("max-output", "0", "max_output_tokens"),
    ],
)
def test_an_error_names_its_field(page: Page, field: str, text: str, said: str) -> None:
    open_playground(page)
    page.fill("#input", "hi")
    page.fill(f"#{field}", text)
    page.click_text("Run")
    page.wait_for(said, "#problem")
    page.wait(lambda: page.run(f"return document.activeElement.id === '{field}'"))
    assert page.run(f"return document.getElementById('{field}').ariaInvalid") == "true"


def test_a_run_is_stopped(page: Page, api: httpx.Client) -> None:
    open_playground(page)
    page.fill("#input", script([{"say": "Once upon"}, {"hang": 600}]))
    page.click("#background")
    page.click_text("Run")
    page.wait_for("Once upon", ".output .item.assistant")
    response_id = page.text(".output .summary a")
    page.click_text("Stop")
    page.wait_for("cancelled", ".output .summary")
    page.wait(lambda: api.get(f"/responses/{response_id}").json()["status"] == "cancelled")


def test_nothing_that_a_model_writes_runs(page: Page) -> None:
    open_playground(page)
    calls = [{"think": EVIL}, {"call": "get_time", "args": {"a": EVIL}}]
    page.fill("#input", script([{"say": EVIL}], [*calls]))
    page.fill("#tools", json.dumps([TOOL]))
    page.click_text("Run")
    page.wait_for("onerror", ".output .item.assistant")
    page.wait_for("done", ".output .summary")
    assert page.all(".output img, .output script") == []


def test_the_keyboard_alone_is_enough(page: Page) -> None:
    open_playground(page)
    page.run("document.getElementById('input').focus()")
    page.press(script({"say": "By keyboard."}))
    for _ in range(40):
        if page.focus == "Run":
            break
        page.press(TAB)
    page.press(ENTER)
    page.wait_for("By keyboard.", ".output .item.assistant")


def call(page: Page) -> None:
    page.fill("#tools", json.dumps([TOOL]))
    ask(page, script({"call": "get_time", "args": {}}))
    page.wait_for("Output of get_time", ".answers")


def approve(page: Page) -> None:
    page.click("#mcp-odd")
    page.click("#approval option[value='always']")
    ask(page, script({"mcp": "say", "args": {}}))
    page.wait_for("odd/say", ".answers")


def compare(page: Page) -> None:
    page.click("#second option[value='scripted-harmony']")
    ask(page, script([{"say": "Once upon"}, {"hang": 600}]))
    page.wait(lambda: len(page.all(".lane .item.assistant")) == 2)


def fill_in_faults(page: Page) -> None:
    page.click_text("Add a function")
    page.fill(".function input", "get time")
    for field in ("#tools", "#schema", ".function textarea.code"):
        page.fill(field, "{")
    transfer(page, "paste", ("dot.png", "image/png", PNG), ("empty", "", b""), ("b", "", b"b"))
    page.wait(lambda: len(page.all(".chip")) == 2)
    ask(page, "hi")
    page.wait_for("This is no JSON", "#problem")


def save(page: Page) -> None:
    ask(page, "hi")
    made(page)
    page.click_text("Save this turn as…")


STATES = {
    "call": call,
    "approval": approve,
    "two models": compare,
    "faults": fill_in_faults,
    "save": save,
}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("state", STATES)
def test_there_is_no_barrier(elsewhere: Any, theme: str, state: str) -> None:
    with elsewhere(tool=["tests.http.odd_tools:OddTools"]) as (page, _):
        page.prefer(theme)
        open_playground(page)
        STATES[state](page)
        assert page.barriers() == []
        page.resize(PHONE)
        assert page.barriers() == []
        assert not page.is_wider_than_the_window()


def test_a_refused_request_waits_for_nothing(page: Page) -> None:
    open_playground(page)
    page.fill("#input", "hi")
    page.fill("#tools", '[{"type": "function"}]')
    page.click_text("Run")
    page.wait_for("The server refused the request.", ".output")
    assert "Waiting" not in page.text(".output")
    assert page.text("#problem")


def test_a_run_that_is_stopped_has_the_state_that_the_server_gave_it(
    page: Page, api: httpx.Client
) -> None:
    open_playground(page)
    page.fill("#input", script([{"say": "Once upon"}, {"hang": 600}]))
    page.click_text("Run")
    page.wait_for("Once upon", ".output .item.assistant")
    response_id = page.text(".output .summary a")
    page.click_text("Stop")
    page.wait(lambda: page.text(".output .summary").endswith("cancelled"))
    assert api.get(f"/responses/{response_id}").json()["status"] == "cancelled"


def test_control_and_enter_run_the_request(page: Page) -> None:
    open_playground(page)
    page.run("document.getElementById('instructions').focus()")
    page.fill("#input", script({"say": "By two keys."}))
    page.press(CONTROL + ENTER)
    page.wait_for("By two keys.", ".output .item.assistant")


@pytest.mark.parametrize("size", [PHONE, (1280, 720)])
def test_run_is_seen_without_scrolling(page: Page, size: tuple[int, int]) -> None:
    page.resize(size)
    open_playground(page)
    bottom = "return document.querySelector('button.primary').getBoundingClientRect().bottom"
    assert page.run(bottom) < size[1]


def test_the_answer_comes_into_view_on_a_phone(page: Page) -> None:
    page.resize(PHONE)
    open_playground(page)
    page.fill("#input", script({"say": "Here."}))
    page.click_text("Run")
    page.wait_for("Here.", ".output .item.assistant")
    top = "return document.querySelector('.output').getBoundingClientRect().top"
    page.wait(lambda: page.run(top) < PHONE[1])


def test_a_thread_goes_on_below_the_input_that_stays_in_view(page: Page, api: httpx.Client) -> None:
    open_playground(page, settings=False)
    ask(page, script({"say": "One. " * 500}, {"say": "Two. " * 500 + "End."}))
    first = made(page)
    assert page.value("#input") == ""
    ask(page, "And then?")
    page.wait(lambda: len(page.all(".exchange")) == 2)
    second = api.get(f"/responses/{made(page)}").json()
    assert second["previous_response_id"] == first
    seen = page.run(
        "const box = document.querySelector('.output').getBoundingClientRect();"
        "const end = [...document.querySelectorAll('.exchange')].at(-1).getBoundingClientRect();"
        "const input = document.querySelector('#input').getBoundingClientRect();"
        "return [end.bottom <= box.bottom + 1, input.bottom < innerHeight, box.bottom <= input.top]"
    )
    assert seen == [True, True, True]


def test_a_reader_who_has_scrolled_back_is_left_there(page: Page) -> None:
    open_playground(page, settings=False)
    words = [{"say": "Once upon a time. " * 500}, {"hang": 1}, {"say": "The end."}]
    ask(page, script(words))
    page.wait_for("Once upon", ".output .item.assistant")
    page.run("document.querySelector('.output').scrollTop = 0")
    made(page)
    assert page.run("return document.querySelector('.output').scrollTop") == 0


def test_an_empty_message_is_not_sent(page: Page, api: httpx.Client) -> None:
    before = api.get("/responses").json()["data"][:1]
    open_playground(page)
    page.click_text("Run")
    page.wait_for("input: Write a message, or attach a file.", "#problem")
    page.fill("#temperature", "1e")
    ask(page, "hi")
    page.wait_for("temperature: Temperature must be a number.", "#problem")
    assert api.get("/responses").json()["data"][:1] == before


def test_a_list_of_items_is_sent_as_it_is_and_other_brackets_are_words(
    page: Page, api: httpx.Client
) -> None:
    open_playground(page)
    ask(page, '[{"role": "developer", "content": "Be kind."}, {"role": "user", "content": "hi"}]')
    items = api.get(f"/responses/{made(page)}/input_items?order=asc").json()["data"]
    assert [item["role"] for item in items] == ["developer", "user"]
    page.click_text("New thread")
    ask(page, "[sic] hi")
    [item] = api.get(f"/responses/{made(page)}/input_items").json()["data"]
    assert item["content"][0]["text"] == "[sic] hi"
    ask(page, '[{"role": "user"')
    page.wait_for("input: This is no JSON", "#problem")


def test_an_answer_that_breaks_off_is_explained_in_words(page: Page) -> None:
    open_playground(page)
    ask(page, script([{"say": "Half of"}, {"fail": "server_error"}]))
    page.wait_for("failed", ".output .summary")
    assert page.text(".exchange .error")
    page.run("window.fetch = async () => { throw new TypeError('Failed to fetch'); }")
    ask(page, "hi")
    page.wait_for("The server cannot be reached.", "#problem")
    page.wait_for("There is no answer.", ".round:last-child .summary")
    assert page.value("#input") == "hi"


def test_text_from_right_to_left_is_shown_so(page: Page) -> None:
    open_playground(page)
    page.fill("#input", "\u05e9\u05dc\u05d5\u05dd")
    direction = "return getComputedStyle(document.querySelector(arguments[0])).direction"
    assert page.run(direction, "#input") == "rtl"
    page.click_text("Run")
    made(page)
    side = "return getComputedStyle(document.querySelector('.item.user .prose')).textAlign"
    assert page.run(side) == "start"
    page.fill("#instructions", "\u05e9\u05dc\u05d5\u05dd")
    assert page.run(direction, "#instructions") == "rtl"
