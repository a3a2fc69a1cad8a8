"""Charts of what happened over time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tests.browser.browser import PHONE, Page

from antiphon.adapters.stores.memory.store import MemoryStore
from antiphon.application.ports import StoredResponse
from antiphon.domain.responses.metrics import ResponseMetrics, ToolCallMetrics, TurnMetrics
from antiphon.domain.responses.response import Failure, Response
from antiphon.domain.responses.usage import InputTokensDetails, OutputTokensDetails, Usage

pytestmark = pytest.mark.browser

MODELS = ("small", "large", "<b>evil</b>")
AGES = tuple(range(30, 3 * 3600, 25))
"""In seconds: 144 responses in an hour, 432 in all."""
TAB, ENTER = "\ue004", "\ue007"


@pytest.fixture(scope="module")
def past(serve_from: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server without keys whose responses are of the last three hours."""
    store = MemoryStore()
    asyncio.run(seed(store))
    with serve_from(tmp_path_factory.mktemp("past"), instead=store) as server:
        yield server


def usage(read: int, written: int) -> Usage:
    return Usage(
        input_tokens=read,
        input_tokens_details=InputTokensDetails(cached_tokens=read // 2),
        output_tokens=written,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=0),
        total_tokens=read + written,
    )


async def seed(store: MemoryStore, models: Sequence[str] = MODELS) -> None:
    now = time.time()
    for number, age in reversed(list(enumerate(AGES))):
        at = now - age
        call = ToolCallMetrics(type="mcp", server="calc", name="add", started_at=at, result="ok")
        turn = TurnMetrics(
            started_at=at,
            first_token_at=at + 0.2 + number * 7919 % 97 / 100,
            tokens_per_second=30.0 + number * 104729 % 23,
            tool_calls=(call,) * (number % 3),
        )
        failure = Failure(code="server_error", message="no") if number % 5 == 0 else None
        response = Response(
            id=f"resp_{number:03}",
            created_at=int(at),
            status="failed" if failure else "completed",
            error=failure,
            usage=usage(100 + number % 70, 40 + number % 30),
            model=models[number % len(models)],
            metrics=ResponseMetrics(received_at=at, admitted_at=at + 0.01, turns=(turn,)),
        )
        await store.create_response("default", StoredResponse(response=response))


@pytest.fixture
def charts(visitor: Page, past: Any) -> Iterator[Page]:
    page = Page(visitor.driver, past.url)
    yield page
    assert page.problems() == []


def ids(page: Page) -> list[str]:
    found: list[str] = page.run(
        "return [...document.querySelectorAll('tbody tr[data-id]')].map((row) => row.dataset.id)"
    )
    return found


def chart(name: str) -> str:
    return f".chart[aria-label='{name}']"


def test_figures_are_by_model_and_as_charts(charts: Page) -> None:
    charts.visit("activity?span=day")
    charts.wait(lambda: len(charts.all(".chart svg")) == 7)
    rows = charts.text("[aria-label='In all']")
    for words in (*MODELS, "144", "(20 %)", "10 ms"):
        assert words in rows
    assert charts.all(chart("Not completed, by reason") + " .bar")
    assert "whichever server ran them" in charts.text(".coverage")
    assert charts.all("main b") == []


def test_a_bar_opens_the_list_of_what_it_counts(charts: Page) -> None:
    charts.visit("activity?span=day&only=small")
    charts.wait(lambda: charts.all(f"{chart('Not completed, by reason')} .bar"))
    title = charts.run(
        "return document.querySelector(arguments[0]).textContent",
        f"{chart('Not completed, by reason')} .bar title",
    )
    counted = int(title.split(": ")[1].split(" ")[0])
    charts.run(
        "document.querySelector(arguments[0]).dispatchEvent(new MouseEvent('click'))",
        f"{chart('Not completed, by reason')} .bar",
    )
    charts.wait(lambda: len(ids(charts)) == counted)
    assert charts.value("#f-model") == "small"
    assert charts.value("#f-error") == "server_error"
    assert "failed" in charts.text("tbody tr")


def test_a_keyboard_reaches_the_same_numbers(charts: Page) -> None:
    charts.visit("activity")
    charts.wait(lambda: charts.all(f"{chart('Requests')} summary"))
    charts.run("document.querySelector(arguments[0]).focus()", f"{chart('Requests')} summary")
    charts.press(ENTER)
    charts.wait(lambda: charts.all(f"{chart('Requests')} tbody a"))
    head = charts.text(f"{chart('Requests')} thead")
    assert all(model in head for model in MODELS)
    charts.press(TAB)
    charts.press(TAB)
    charts.press(ENTER)
    charts.wait(lambda: ids(charts))
    assert 1 <= len(ids(charts)) <= 3
    assert "created_after=" in charts.fragment


def test_a_span_a_grouping_and_one_of_them_are_in_the_address(charts: Page) -> None:
    charts.visit("activity")
    charts.wait(lambda: charts.all(".chart"))
    hour = charts.text("[aria-label='In all'] tbody")
    charts.click_text("Week", "a")
    charts.wait(lambda: "span=week" in charts.fragment and charts.all(".chart"))
    assert charts.text("[aria-label='In all'] tbody") != hour
    charts.click_text("large", "a")
    charts.wait_for("Only large", "main")
    charts.wait(lambda: charts.text("[aria-label='In all'] tbody").count("\n") == 0)
    charts.click_text("API", "a")
    charts.wait(lambda: "Responses" in charts.text("[aria-label='In all'] tbody"))
    assert charts.fragment == "#/activity?span=week&by=door"


def test_a_time_without_a_response_says_so(charts: Page) -> None:
    charts.visit("activity?by=key&only=none")
    charts.wait_for("There is no response of the last hour here.", "main")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_there_is_no_barrier(charts: Page, theme: str) -> None:
    charts.prefer(theme)
    charts.visit("activity?span=day")
    charts.wait(lambda: charts.all(".chart svg"))
    charts.run("for (const each of document.querySelectorAll('details')) each.open = true")
    charts.wait(lambda: charts.all(".chart table"))
    assert charts.barriers() == []
    charts.resize(PHONE)
    assert not charts.is_wider_than_the_window()
