"""The list of responses: what it shows, its filters, its pages, and thousands of rows."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from tests.browser.browser import PHONE, WIDE, Page, chromium
from tests.http.conftest import create, script, wait_until
from tests.support.fake_mcp_server import FakeMcpServer

from antiphon.adapters.stores.memory.store import MemoryStore
from antiphon.application.ports import StoredResponse
from antiphon.domain.responses.metrics import ResponseMetrics, TurnMetrics
from antiphon.domain.responses.response import Response

pytestmark = pytest.mark.browser

MANY = 10_000
LONGEST_TASK_MS = 200
DOWN, ENTER, END, HOME = "\ue015", "\ue007", "\ue010", "\ue011"


def row(page: Page, response_id: str) -> str:
    return page.text(f'tr[data-id="{response_id}"]')


def ids(page: Page) -> list[str]:
    found: list[str] = page.run(
        "return [...document.querySelectorAll('tbody tr')].map((row) => row.dataset.id)"
    )
    return found


def test_a_row_says_by_which_api_a_response_came(page: Page, api: httpx.Client) -> None:
    body = {"model": "scripted-chat", "messages": [{"role": "user", "content": "hi"}]}
    told = api.post("/chat/completions", json={**body, "store": True}).json()
    response_id = told["id"].replace("chatcmpl-", "resp_")
    page.visit("responses")
    page.wait(lambda: row(page, response_id))
    assert "Chat Completions" in row(page, response_id)
    page.visit(f"responses/{response_id}")
    page.wait(lambda: "Chat Completions" in page.text("dl"))
    assert page.problems() == []


def test_a_row_says_how_a_response_ended(page: Page, api: httpx.Client) -> None:
    done = create(api, model="scripted-chat", input=script({"say": "Hello."}))
    cut = create(
        api, model="scripted-chat", input=script({"say": "word " * 99}), max_output_tokens=16
    )
    failed = create(
        api, model="scripted-chat", input=script({"fail": "server_error"}), background=True
    )
    path = f"/responses/{failed['id']}"
    wait_until(lambda: api.get(path).json()["status"] == "failed")
    page.visit("responses")
    page.wait(lambda: row(page, done["id"]))
    assert "done" in row(page, done["id"])
    assert "scripted-chat" in row(page, done["id"])
    assert "incomplete" in row(page, cut["id"])
    assert "max_output_tokens" in row(page, cut["id"])
    assert "server_error" in row(page, failed["id"])
    assert page.problems() == []


def test_the_list_is_live(page: Page, api: httpx.Client) -> None:
    page.visit("responses")
    page.wait_for("Responses", "h1")
    turn = [{"think": "hm " * 20}, {"say": "done", "delay": 4}]
    running = create(api, model="scripted-chat", input=script(turn), background=True)
    page.wait(lambda: "thinking" in row(page, running["id"]))
    assert "running" in page.run(
        f"return document.querySelector('tr[data-id=\"{running['id']}\"]').className"
    )
    page.wait(lambda: "done" in row(page, running["id"]))


def test_a_row_that_says_the_same_is_left_alone(page: Page, api: httpx.Client) -> None:
    done = create(api, model="scripted-chat", input="Hello.")
    page.visit("responses")
    page.wait(lambda: row(page, done["id"]))
    page.run("for (const cell of document.querySelectorAll('tbody td')) cell.dataset.kept = '1'")
    added = create(api, model="scripted-chat", input="Hello.")
    page.wait(lambda: row(page, added["id"]))
    kept = f"return document.querySelectorAll('tr[data-id=\"{done['id']}\"] [data-kept]').length"
    assert page.run(kept) > 5


def test_filters_are_in_the_address(page: Page, api: httpx.Client) -> None:
    one = create(api, model="scripted-chat", input="Hello.", metadata={"team": "sea"})
    other = create(api, model="scripted-harmony", input="Hello.", metadata={"team": "web"})
    page.visit("responses")
    page.wait(lambda: row(page, other["id"]))
    page.click_text("Filters", "summary")
    page.fill("#f-model", "scripted-harmony")
    page.click_text("Apply")
    page.wait(lambda: row(page, other["id"]) and not row(page, one["id"]))
    assert page.fragment == "#/responses?model=scripted-harmony"
    page.visit("responses?status=completed&metadata%5Bteam%5D=sea")
    page.wait(lambda: ids(page) == [one["id"]])
    assert page.value("#f-metadata_name") == "team"
    assert page.value("#f-metadata_value") == "sea"
    assert page.value("#f-status") == "completed"
    page.click_text("Clear")
    page.wait(lambda: row(page, other["id"]) and row(page, one["id"]))


@pytest.mark.parametrize(
    ("filter_name", "matches", "differs"),
    [
        ("previous_response_id", "{first}", "resp_none"),
        ("key", "of-blue", "of-red"),
        ("error", "max_output_tokens", "another_error"),
        ("conversation", "{conversation}", "conv_none"),
        ("created_after", "1000000000", "4000000000"),
        ("created_before", "4000000000", "1000000000"),
    ],
)
def test_each_filter_of_the_api_filters(
    page: Page, api: httpx.Client, filter_name: str, matches: str, differs: str
) -> None:
    conversation = api.post("/conversations", json={}).json()["id"]
    first = create(api, model="scripted-chat", input=script({"say": "One."}))
    cut = {"max_output_tokens": 16, "input": script({"say": "word " * 99})}
    last = create(api, model="scripted-chat", previous_response_id=first["id"], **cut)
    held = create(api, model="scripted-chat", conversation=conversation, **cut)
    known = {"first": first["id"], "conversation": conversation}
    expected = held if filter_name == "conversation" else last
    page.visit(f"responses?{filter_name}={matches.format(**known)}")
    page.wait(lambda: row(page, expected["id"]))
    page.visit(f"responses?{filter_name}={differs}")
    page.wait(lambda: "matches the filters" in page.text(".nothing"))


def test_a_tool_filters(page: Page, api: httpx.Client, tools: FakeMcpServer) -> None:
    tool = {"type": "mcp", "server_label": "calc", "server_url": f"{tools.origin}/mcp"}
    used = create(
        api,
        model="scripted-chat",
        input=script({"mcp": "look", "args": {}}, {"say": "Seen."}),
        tools=[{**tool, "require_approval": "never"}],
    )
    other = create(api, model="scripted-chat", input="Hello.")
    page.visit("responses?tool=look")
    page.wait(lambda: row(page, used["id"]))
    assert not row(page, other["id"])
    assert "look" in row(page, used["id"])


def test_a_wrong_filter_is_explained(page: Page) -> None:
    page.visit("responses?status=sad")
    page.wait_for("'status' must be one or more of")


def test_a_keyboard_goes_through_the_rows(page: Page, api: httpx.Client) -> None:
    made = [create(api, model="scripted-chat", input="Hello.")["id"] for _ in range(3)][::-1]
    page.visit("responses")
    page.wait(lambda: ids(page)[:3] == made)
    page.run("document.querySelector('tbody a[tabindex=\"0\"]').focus()")
    at = "return document.activeElement.closest('tr').dataset.id"
    assert page.run(at) == made[0]
    page.press(DOWN)
    page.press(DOWN)
    assert page.run(at) == made[2]
    page.press(HOME)
    assert page.run(at) == made[0]
    page.press(DOWN)
    page.press(ENTER)
    page.wait_for(made[1], ".facts")
    assert page.fragment.endswith(made[1])
    page.wait(lambda: page.focus == "Response")


# --- thousands ---


@pytest.fixture(scope="module")
def crowd(serve_from: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server without keys that has ten thousand responses."""
    store = MemoryStore(keep=MANY + 100)
    asyncio.run(seed(store))
    with serve_from(tmp_path_factory.mktemp("crowd"), instead=store) as server:
        yield server


async def seed(store: MemoryStore) -> None:
    now = int(time.time())
    for number in range(MANY):
        turn = TurnMetrics(
            model=f"model-{number % 7}",
            started_at=now - number,
            first_token_at=now - number + 0.25,
            ended_at=now - number + 2.0,
            reason="stop",
            input_tokens=number,
            output_tokens=number % 999,
            tokens_per_second=number % 400 / 3,
        )
        response = Response(
            id=f"resp_{number:06}",
            created_at=now - number,
            completed_at=now - number + 2,
            status=("completed", "failed", "incomplete", "cancelled")[number % 4],
            model=turn.model,
            metrics=ResponseMetrics(received_at=now - number, turns=(turn,)),
        )
        await store.create_response("default", StoredResponse(response=response))


def test_ten_thousand_responses_do_not_stall_the_list(crowd: Any) -> None:
    with chromium() as driver:
        page = Page(driver, crowd.url)
        page.resize(WIDE)
        page.visit("responses?limit=100")
        page.wait(lambda: len(ids(page)) == 100)
        seen = set(ids(page))
        for _ in range(3):
            before = ids(page)
            page.click_text("Next page", "a")
            page.wait(lambda before=before: len(ids(page)) == 100 and ids(page) != before)
            seen |= set(ids(page))
        assert len(seen) == 400
        page.click_text("Previous page", "a")
        page.wait(lambda: set(ids(page)) < seen)
        started = time.monotonic()
        page.run("window.__longest = 0")
        page.wait(lambda: time.monotonic() - started > 5)  # two rounds of asking again
        page.go("responses?limit=100&order=asc")
        page.wait(lambda: len(ids(page)) == 100 and not set(ids(page)) & seen)
        assert page.run("return document.querySelectorAll('tr').length") < 300
        assert page.longest_task_ms() < LONGEST_TASK_MS
        assert page.problems() == []


def test_charts_of_ten_thousand_responses_say_how_far_they_reach_back(crowd: Any) -> None:
    with chromium() as driver:
        page = Page(driver, crowd.url)
        page.resize(WIDE)
        page.visit("activity?span=week")
        page.wait_for("your 10,000 newest stored responses, which reach back to", ".coverage")
        page.wait(lambda: page.all(".chart svg"))
        assert len(page.all("[aria-label='In all'] tbody tr")) == 7
        assert page.longest_task_ms() < LONGEST_TASK_MS
        assert page.problems() == []


def test_a_phone_shows_the_list_without_scrolling_sideways(page: Page, api: httpx.Client) -> None:
    create(api, model="scripted-chat", input="Hello.")
    page.resize(PHONE)
    page.visit("responses")
    page.wait(lambda: ids(page))
    assert not page.is_wider_than_the_window()
    page.click_text("Filters", "summary")
    assert not page.is_wider_than_the_window()


# --- nothing to show ---


@pytest.fixture
def stranger(visitor: Page, serve: Any) -> Iterator[Any]:
    """A page on a server of its own without keys: the page, the server's API, and how it ends."""
    with ExitStack() as ends:
        server = ends.enter_context(serve())
        client = ends.enter_context(httpx.Client(base_url=server.api, timeout=30))
        yield Page(visitor.driver, server.url), client, ends


def test_a_new_server_shows_how_to_create_a_response(stranger: Any) -> None:
    page, api, _ = stranger
    page.visit("responses")
    page.wait_for("There are no responses yet.", ".nothing")
    page.wait(lambda: page.all(".nothing pre"))
    command = page.text(".nothing pre")
    assert f"curl {page.url}/v1/responses" in command
    assert "matches" not in page.text(".nothing")
    body = json.loads(command.partition("-d '")[2].rpartition("'")[0])
    made = create(api, **body)
    page.wait(lambda: ids(page) == [made["id"]])
    assert not page.text(".nothing")
    page.visit("responses")
    page.go("playground")
    page.wait_for("Playground", "h1")


def test_a_filter_that_finds_nothing_says_what_was_searched(stranger: Any) -> None:
    page, api, _ = stranger
    page.visit("responses?model=other")
    page.wait_for("There are no responses yet, so none matches", ".nothing")
    for _ in range(3):
        create(api, model="scripted-chat", input="Hello.")
    page.wait_for("None of all 3 responses matches the filters.", ".nothing")
    page.visit("responses?after=" + api.get("/responses?order=asc").json()["first_id"])
    page.wait_for("There are no more responses after this page.", ".nothing")


def test_a_search_that_is_not_at_its_end_says_so(crowd: Any) -> None:
    with chromium() as driver:
        page = Page(driver, crowd.url)
        page.visit("responses?model=other")
        said = "None of the 2,000 responses that were searched here matches"
        page.wait_for(said, ".nothing")
        assert "Next page" not in page.text("main")
        for _ in range(4):
            before = page.fragment
            page.click_text("Search on", "a")
            page.wait(lambda before=before: page.fragment != before)
            page.wait_for("2,000 responses", ".nothing")
        page.wait_for("the search has reached the end", ".nothing")


def test_a_server_that_stops_is_not_an_empty_one(stranger: Any) -> None:
    page, api, ends = stranger
    made = create(api, model="scripted-chat", input="Hello.")
    page.visit("responses")
    page.wait(lambda: ids(page) == [made["id"]])
    ends.close()
    page.wait_for("The server cannot be reached. These rows are of", ".error")
    assert ids(page) == [made["id"]]
    assert not page.text(".nothing")


def test_an_empty_list_is_not_shown_when_the_server_stops(stranger: Any) -> None:
    page, _, ends = stranger
    page.visit("responses?model=other")
    page.wait_for("none matches", ".nothing")
    ends.close()
    page.wait_for("The server cannot be reached. The page asks again", ".error")
    assert not page.text(".nothing")


def test_back_returns_to_the_row_that_was_opened(page: Page, api: httpx.Client) -> None:
    made = [create(api, model="scripted-chat", input="Hello.")["id"] for _ in range(30)]
    page.visit("responses?limit=100")
    page.wait(lambda: made[0] in ids(page))
    page.click(f'tr[data-id="{made[0]}"] a')
    page.wait_for(made[0], ".facts")
    page.driver.back()
    at = "return document.activeElement.closest('tr')?.dataset.id"
    page.wait(lambda: page.run(at) == made[0])
    top = "return document.activeElement.getBoundingClientRect().top"
    assert 0 < page.run(top) < WIDE[1]


def test_a_row_has_the_words_of_its_response(page: Page, api: httpx.Client) -> None:
    said = script({"say": "It is 42.\nAs ever."})
    made = create(api, model="scripted-chat", input=f"How much is it?\n{said}")
    page.visit("responses")
    page.wait(lambda: row(page, made["id"]))
    words = row(page, made["id"])
    for part in ("How much is it?", "It is 42.", "scripted-chat", "done", made["id"][:13]):
        assert part in words
    assert "As ever." not in words


def test_responses_that_wait_for_an_approval_are_found(
    page: Page, api: httpx.Client, tools: FakeMcpServer
) -> None:
    tool = {"type": "mcp", "server_label": "calc", "server_url": f"{tools.origin}/mcp"}
    ask = {"model": "scripted-chat", "tools": [{**tool, "require_approval": "always"}]}
    asked = script({"mcp": "look", "args": {}}, {"say": "Done."})
    waiting = create(api, **ask, input=asked)
    other = create(api, model="scripted-chat", input="Hello.")
    page.visit("responses")
    page.wait(lambda: "waiting for approval" in row(page, waiting["id"]))
    page.click_text("Filters", "summary")
    page.click("#f-status option[value=awaits_approval]")
    page.click_text("Apply")
    page.wait(lambda: waiting["id"] in ids(page) and other["id"] not in ids(page))
    assert page.fragment == "#/responses?awaits_approval=true"
    assert page.value("#f-status") == "awaits_approval"
    approval = {
        "type": "mcp_approval_response",
        "approval_request_id": waiting["output"][-1]["id"],
        "approve": True,
    }
    create(api, **ask, input=[approval], previous_response_id=waiting["id"])
    page.wait(lambda: waiting["id"] not in ids(page))
