"""The playground: a form for requests, and what the model answers."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from tests.browser.browser import PHONE, Page
from tests.browser.playground.forms import EVIL, TOOL, ask, made, open_playground
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
    page.wait_for("Hello you.", ".output")
    page.wait_for("done", ".output .summary")
    made = api.get(f"/responses/{page.text('.output .summary a')}").json()
    assert made["instructions"] == "Be kind."


def test_a_schema_is_kept(page: Page, api: httpx.Client) -> None:
    open_playground(page)
    page.click_text("Add a schema")
    page.fill("#input", "Where?")
    page.click_text("Run")
    page.wait_for("done", ".output .summary")
    made = api.get(f"/responses/{page.text('.output .summary a')}").json()
    assert made["text"]["format"]["type"] == "json_schema"
    assert "city" in json.loads(made["output"][-1]["content"][0]["text"])


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
    page.wait_for("Once upon", ".output")
    made = page.text(".output .summary a")
    page.click_text("Stop")
    page.wait_for("cancelled", ".output .summary")
    page.wait(lambda: api.get(f"/responses/{made}").json()["status"] == "cancelled")


def test_nothing_that_a_model_writes_runs(page: Page) -> None:
    open_playground(page)
    calls = [{"think": EVIL}, {"call": "get_time", "args": {"a": EVIL}}]
    page.fill("#input", script([{"say": EVIL}], [*calls]))
    page.fill("#tools", json.dumps([TOOL]))
    page.click_text("Run")
    page.wait_for("onerror", ".output")
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
    page.wait_for("By keyboard.", ".output")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_there_is_no_barrier(page: Page, theme: str) -> None:
    page.prefer(theme)
    open_playground(page)
    page.fill("#input", script({"call": "get_time", "args": {}}))
    page.fill("#tools", json.dumps([TOOL]))
    page.click_text("Run")
    page.wait_for("Output of get_time", ".answers")
    assert page.barriers() == []
    page.resize(PHONE)
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
    page.wait_for("Once upon", ".output")
    made = page.text(".output .summary a")
    page.click_text("Stop")
    page.wait(lambda: page.text(".output .summary").endswith("cancelled"))
    assert api.get(f"/responses/{made}").json()["status"] == "cancelled"


def test_control_and_enter_run_the_request(page: Page) -> None:
    open_playground(page)
    page.run("document.getElementById('instructions').focus()")
    page.fill("#input", script({"say": "By two keys."}))
    page.press(CONTROL + ENTER)
    page.wait_for("By two keys.", ".output")


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
    page.wait_for("Here.", ".output")
    top = "return document.querySelector('.output').getBoundingClientRect().top"
    page.wait(lambda: page.run(top) < PHONE[1])
