"""Two models beside each other: the same input, two answers, two threads."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from tests.browser.browser import PHONE, Page
from tests.browser.playground.forms import EVIL, PNG, ask, open_playground, transfer
from tests.http.conftest import script

pytestmark = pytest.mark.browser

BOTH = ("scripted-chat", "scripted-harmony")


@pytest.fixture(autouse=True)
def nothing_went_wrong(page: Page) -> Any:
    yield
    assert page.problems() == []


def compare(page: Page, *, settings: bool = False) -> None:
    open_playground(page, settings)
    page.click("#second option[value='scripted-harmony']")


def lane(model: str) -> str:
    return f".round:last-child [aria-label='Answer of {model}']"


def answered(page: Page, model: str) -> str:
    """Return the id of the last answer of a model, once it has ended."""
    css = f"{lane(model)} .exchange:last-child .summary"
    page.wait_for(" done", css)
    return page.text(f"{css} a")


def box(page: Page, model: str) -> dict[str, float]:
    found: dict[str, float] = page.run(
        "return document.querySelector(arguments[0]).getBoundingClientRect().toJSON()", lane(model)
    )
    return found


def test_both_answer_the_same_input_beside_each_other(page: Page, api: httpx.Client) -> None:
    compare(page)
    ask(page, script({"say": "Good morning."}))
    for model in BOTH:
        response = api.get(f"/responses/{answered(page, model)}").json()
        assert response["model"] == model
        page.wait_for("Good morning.", f"{lane(model)} .item.assistant")
        figures = page.text(f"{lane(model)} .figures")
        assert re.fullmatch(
            rf"{model} · [\d.]+ m?s · first words after [\d.]+ m?s · \d+ tokens in, \d+ out",
            figures,
        )
    assert len(page.all(".item.user")) == 1
    first, second = (box(page, model) for model in BOTH)
    assert first["top"] == second["top"]
    assert first["right"] <= second["left"]
    page.resize(PHONE)
    first, second = (box(page, model) for model in BOTH)
    assert first["bottom"] <= second["top"]
    assert first["left"] == second["left"]


def test_each_goes_on_as_a_thread_of_its_own(page: Page, api: httpx.Client) -> None:
    compare(page)
    ask(page, script({"say": "One."}, {"say": "Two."}))
    before = [answered(page, model) for model in BOTH]
    ask(page, "And then?")
    page.wait(lambda: len(page.all(".round")) == 2)
    for model, previous in zip(BOTH, before, strict=True):
        response = api.get(f"/responses/{answered(page, model)}").json()
        assert response["previous_response_id"] == previous
        page.wait_for("Two.", f"{lane(model)} .item.assistant")


def test_a_second_model_goes_on_from_the_thread_of_the_first(page: Page, api: httpx.Client) -> None:
    open_playground(page, settings=False)
    ask(page, script({"say": "One."}, {"say": "Two."}))
    first = answered(page, "scripted-chat")
    page.click("#second option[value='scripted-harmony']")
    ask(page, "And then?")
    page.wait(lambda: len(page.all(".round")) == 2)
    response = api.get(f"/responses/{answered(page, 'scripted-harmony')}").json()
    assert response["previous_response_id"] == first


def test_one_is_stopped_and_the_other_goes_on(page: Page, api: httpx.Client) -> None:
    compare(page)
    ask(page, script([{"say": "Once upon"}, {"hang": 600}]))
    for model in BOTH:
        page.wait_for("Once upon", f"{lane(model)} .item.assistant")
    page.click(f"{lane(BOTH[0])} button[aria-label='Stop {BOTH[0]}']")
    page.wait_for("cancelled", f"{lane(BOTH[0])} .summary")
    other = page.text(f"{lane(BOTH[1])} .summary a")
    assert api.get(f"/responses/{other}").json()["status"] == "in_progress"
    page.click_text("Stop", ".composer button")
    page.wait_for("cancelled", f"{lane(BOTH[1])} .summary")


def test_a_change_of_a_setting_stops_neither(page: Page, api: httpx.Client) -> None:
    compare(page, settings=True)
    ask(page, script([{"say": "Once upon"}, {"hang": 600}]))
    for model in BOTH:
        page.wait_for("Once upon", f"{lane(model)} .item.assistant")
    page.fill("#temperature", "0.5")
    page.click("#background")
    for model in BOTH:
        made = page.text(f"{lane(model)} .summary a")
        assert api.get(f"/responses/{made}").json()["status"] == "in_progress"
    page.click_text("New thread")
    page.wait_for("Nothing was asked yet.", ".output")
    page.wait(
        lambda: page.run("return document.querySelector('.composer .primary').disabled") is False
    )
    ask(page, script({"say": "Anew."}))
    for model in BOTH:
        page.wait_for("Anew.", f"{lane(model)} .item.assistant")
        assert api.get(f"/responses/{answered(page, model)}").json()["previous_response_id"] is None


def test_a_call_is_answered_in_its_own_thread(page: Page, api: httpx.Client) -> None:
    compare(page, settings=True)
    page.click_text("Add a function")
    page.fill(".function input", "get_time")
    ask(page, script({"call": "get_time", "args": {}}, {"say": "Thank you."}))
    calls = [answered(page, model) for model in BOTH]
    page.fill(f"{lane(BOTH[1])} .answers textarea", "noon")
    page.click(f"{lane(BOTH[1])} .answers button[type=submit]")
    page.wait_for("Thank you.", f"{lane(BOTH[1])} .item.assistant")
    last = api.get(f"/responses/{answered(page, BOTH[1])}").json()
    assert (last["model"], last["previous_response_id"]) == (BOTH[1], calls[1])
    assert page.all(f"{lane(BOTH[0])} .answers")


def test_one_refuses_and_the_other_answers(several: tuple[Page, httpx.Client]) -> None:
    page, _ = several
    open_playground(page, settings=False)
    page.click("#second option[value='blind']")
    transfer(page, "paste", ("dot.png", "image/png", PNG))
    ask(page, "What is this?")
    answered(page, "seeing")
    page.wait_for("The server refused the request.", lane("blind"))
    page.wait_for("blind: input[0].content[1]", "#problem")
    assert "image" in page.text(f"{lane('blind')} .error")


def test_the_name_of_a_model_is_text(several: tuple[Page, httpx.Client]) -> None:
    page, _ = several
    open_playground(page, settings=False)
    for select in ("#model", "#second"):
        page.run(
            "const select = document.querySelector(arguments[0]); select.value = arguments[1];"
            "select.dispatchEvent(new Event('change', {bubbles: true}))", select, EVIL,
        )  # fmt: skip
    ask(page, script({"say": "hi"}))
    page.wait(lambda: len(page.all(".figures:not(:empty)")) == 2)
    assert EVIL in page.text(".lane h2")
    page.click_text("Save this turn as…")
    page.wait_for("onerror", "#copied")
    assert page.all("main img, main script, dialog img") == []
