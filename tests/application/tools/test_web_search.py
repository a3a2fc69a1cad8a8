"""The browser of a response, whatever the model writes and the web answers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from msgspec import convert
from tests.application.fake_web import FakeWeb

from antiphon.application.ports import DomainFilter, Json, Web, WebPage
from antiphon.application.tools.web_search import (
    MAX_CONCURRENT_LOADS,
    MAX_OPEN_PAGES,
    WebSearchCaller,
    WebSearchProvider,
)
from antiphon.domain import deltas as d
from antiphon.domain import items as i
from antiphon.domain.content import UrlCitation
from antiphon.domain.errors import RequestError
from antiphon.domain.offers.offer import ToolDefinition
from antiphon.domain.tools import TOOL_TYPES

KINDS = {"search": "web_search", "open": "open_page", "find": "find_in_page"}


@pytest.fixture
def web() -> FakeWeb:
    return FakeWeb()


async def open_browser(web: Web, *items: i.Item, **fields: Any) -> WebSearchCaller:
    tool = convert({"type": "web_search", **fields}, TOOL_TYPES["web_search"])
    definitions = [ToolDefinition(tool=tool, path="tools[0]")]  # type: ignore[arg-type]
    callers = await WebSearchProvider(web).callers(definitions, items, tenant="t")
    assert set(callers) == set(KINDS.values())
    [caller] = {id(caller): caller for caller in callers.values()}.values()
    assert isinstance(caller, WebSearchCaller)
    return caller


async def ask(
    browser: WebSearchCaller, action: str, raw_arguments: Any = None, **arguments: Any
) -> d.ToolEnd:
    written = raw_arguments if isinstance(raw_arguments, str) else json.dumps(arguments)
    start = d.CallStart(KINDS[action], kind=KINDS[action])
    [[end]] = [batch async for batch in browser.call(start, written)]
    assert isinstance(end, d.ToolEnd)
    assert end.fields["results"][0]["arguments"] == written
    return end


def text_of(end: d.ToolEnd) -> str:
    return str(end.fields["results"][0]["text"])


def action_of(end: d.ToolEnd) -> Json:
    fields: Json = end.fields["action"]
    return fields


def to_item(end: d.ToolEnd) -> i.WebSearchCall:
    return i.WebSearchCall(status=end.status, **end.fields)


async def test_a_model_searches_opens_finds_and_cites(web: FakeWeb) -> None:
    browser = await open_browser(web)
    found = await ask(browser, "search", query="bees", topn=5)
    assert web.requests == [("bees", 5, DomainFilter(), None)]
    assert text_of(found).startswith(
        "[0] bees\n**viewing lines [0 - 3] of 3**\n\nL0: # Search Results"
    )
    assert action_of(found) == {
        "type": "search",
        "query": "bees",
        "queries": ["bees"],
        "sources": [
            {"type": "url", "url": "https://a.example/"},
            {"type": "url", "url": "https://b.example/"},
        ],
    }
    opened = await ask(browser, "open", id=0)
    assert text_of(opened).startswith("[1] A (https://a.example/)\n")
    assert action_of(opened) == {"type": "open_page", "url": "https://a.example/"}
    followed = await ask(browser, "open", id=0, loc=10, num_lines=2)
    assert text_of(followed) == (
        "[2] B (https://b.example/)\n**viewing lines [10 - 11] of 5000**\n\nL10: bee\nL11: bee"
    )
    places = await ask(browser, "find", pattern="see", cursor=1)
    assert action_of(places) == {
        "type": "find_in_page",
        "url": "https://a.example/",
        "pattern": "see",
    }
    assert "L0: # 【0†match at L1】\nL1: see the other" in text_of(places)
    assert text_of(await ask(browser, "open", id=0)).splitlines()[-1] == "L2: last"
    assert browser.cite("1†L0-L1", 5, 15) == UrlCitation(
        start_index=5, end_index=15, url="https://a.example/", title="A"
    )
    assert browser.cite("0†L3", 0, 6) == UrlCitation(
        start_index=0, end_index=6, url="https://b.example/", title="B"
    )
    assert [url for url in web.requests if isinstance(url, str)] == [
        "https://a.example/",
        "https://b.example/",
    ]


@pytest.mark.parametrize(
    "words", ["9†L1", "0†L0", "1†source", "1", "", "†L1", "1†L", "99999999†L1", "x†L1", "1†L1†L2"]
)
async def test_only_lines_of_a_page_can_be_cited(web: FakeWeb, words: str) -> None:
    browser = await open_browser(web)
    await ask(browser, "search", query="bees")
    await ask(browser, "open", id=0)
    assert browser.cite(words, 0, 1) is None
    assert browser.cite("1†L1-2", 0, 1) is not None


FAILING_CALLS: dict[str, tuple[str, Any, str]] = {
    "no object": ("search", "[1]", "not a JSON object"),
    "no JSON": ("open", "{", "not a JSON object"),
    "half a character": ("find", '{"pattern": "\\ud800"', "not a JSON object"),
    "deep": ("search", 5000 * "[", "not a JSON object"),
    "no query": ("search", {}, "`query` must be a non-blank string"),
    "blank query": ("search", {"query": " "}, "`query` must be a non-blank string"),
    "long query": ("search", {"query": "x" * 2001}, "`query` must be a non-blank string"),
    "number of pages": ("search", {"query": "x", "topn": "many"}, "`topn` must be a number"),
    "huge number": ("open", {"id": 10**18}, "`id` must be a number"),
    "no link": ("open", {"id": 7}, "There is no link 7 on page [0]."),
    "no page": ("open", {"id": 0, "cursor": 5}, "There is no page [5]; the latest is [0]."),
    "no line": ("open", {"loc": 100}, "There is no line 100"),
    "fraction": ("open", {"cursor": 0.5}, "`cursor` must be a number"),
    "list": ("open", {"id": [1]}, "`id` must be a number"),
    "nothing to find": ("find", {"pattern": 5}, "`pattern` must be a non-blank string"),
    "in a list": ("find", {"pattern": "x"}, "Page [0] is a list of results"),
    "unknown URL": (
        "open",
        {"id": "https://c.example/"},
        "There is no page at https://c.example/.",
    ),
    "long URL": (
        "open",
        {"id": f"https://a.example/{2000 * 'x'}"},
        "A URL may have at most 2000 characters.",
    ),
    "web down": ("search", {"query": "broken"}, "The search does not answer."),
}


@pytest.mark.parametrize(
    ("action", "arguments", "message"), FAILING_CALLS.values(), ids=FAILING_CALLS
)
async def test_the_model_reads_what_went_wrong(
    web: FakeWeb, action: str, arguments: Any, message: str
) -> None:
    browser = await open_browser(web)
    await ask(browser, "search", query="bees")
    written = arguments if isinstance(arguments, str) else json.dumps(arguments)
    end = await ask(browser, action, written)
    assert end.status == "failed"
    assert message in text_of(end)
    assert "[1]" in text_of(await ask(browser, "open", id=0))  # a failure has no number


async def test_nothing_can_be_opened_before_there_is_a_page(web: FakeWeb) -> None:
    browser = await open_browser(web)
    assert "No page is open yet" in text_of(await ask(browser, "open"))
    assert "No page is open yet" in text_of(await ask(browser, "find", pattern="x"))


@pytest.mark.parametrize(
    "arguments",
    [
        {"id": "0"},
        {"id": 0.0, "cursor": -1, "loc": -1, "num_lines": -1, "view_source": False},
        {"id": "a.example/"},
        {"id": "https://a.example/", "cursor": "", "source": "web"},
        {"id": 0, "cursor": None, "loc": 0, "num_lines": 0},
    ],
)
async def test_models_may_write_arguments_in_many_ways(web: FakeWeb, arguments: Json) -> None:
    browser = await open_browser(web)
    await ask(browser, "search", query="bees")
    end = await ask(browser, "open", **arguments)
    assert text_of(end).startswith("[1] A (https://a.example/)\n**viewing lines [0 - 2] of 2**")


async def run(browser: WebSearchCaller, *calls: tuple[str, Json]) -> list[d.ToolEnd]:
    """Start all calls together, like the calls of one turn."""
    tasks = [asyncio.create_task(ask(browser, action, **fields)) for action, fields in calls]
    return await asyncio.gather(*tasks)


async def test_calls_of_one_turn_are_numbered_in_their_order(web: FakeWeb) -> None:
    browser = await open_browser(web)
    web.blocked = {"slow"}
    calls = [("search", {"query": query}) for query in ("slow", "broken", "quick")]
    running = asyncio.create_task(run(browser, *calls, ("open", {"id": 0})))
    await web.wait_until(lambda: len(web.requests) == 3)  # all searches, before the first is done
    web.unblock.set()
    first_lines = [text_of(end).split("\n")[0] for end in await running]
    assert first_lines == [
        "[0] slow",
        "The search does not answer.",
        "[1] quick",
        "[2] A (https://a.example/)",
    ]


async def test_a_long_page_is_shown_like_a_short_one(web: FakeWeb) -> None:
    url = "https://long.example/"
    web.pages[url] = WebPage(url=url, title="L", text="one line\n" * 9000 + "the end")
    browser = await open_browser(web)
    assert "of 9000**" in text_of(await ask(browser, "open", id=url))
    assert "match at L9000" in text_of(await ask(browser, "find", pattern="THE END"))


async def test_only_a_few_pages_are_loaded_at_the_same_time(web: FakeWeb) -> None:
    browser = await open_browser(web)
    web.blocked = {"https://a.example/"}
    running = asyncio.create_task(run(browser, *[("open", {"id": "https://a.example/"})] * 20))
    await web.wait_until(lambda: web.running == MAX_CONCURRENT_LOADS)
    web.unblock.set()
    await running
    assert (web.max_running, len(web.requests)) == (MAX_CONCURRENT_LOADS, 20)


async def test_a_cancelled_call_does_not_hold_up_the_next(web: FakeWeb) -> None:
    browser = await open_browser(web)
    web.blocked = {"slow"}
    slow = asyncio.create_task(ask(browser, "search", query="slow"))
    await web.wait_until(lambda: bool(web.requests))
    slow.cancel()
    assert text_of(await ask(browser, "search", query="quick")).startswith("[0] quick")


async def test_a_call_that_is_not_run_still_shows_its_query(web: FakeWeb) -> None:
    browser = await open_browser(web)
    start = d.CallStart("web_search", kind="web_search")
    [end] = browser.refuse(start, '{"query": "bees"}', "No more.")
    assert isinstance(end, d.ToolEnd)
    assert (end.status, text_of(end), action_of(end)["query"]) == ("failed", "No more.", "bees")
    assert web.requests == []


@pytest.mark.parametrize(("size", "lines"), [("low", 210), ("medium", 410), ("high", 1191)])
async def test_the_context_size_limits_what_a_page_shows(
    web: FakeWeb, size: str, lines: int
) -> None:
    browser = await open_browser(web, search_context_size=size)
    for arguments in ({}, {"num_lines": 4000}):
        end = await ask(browser, "open", id="https://b.example/", **arguments)
        assert f"**viewing lines [0 - {lines}] of 5000**" in text_of(end)


async def test_filters_apply_to_searches_and_to_pages(web: FakeWeb) -> None:
    filters = {"allowed_domains": ["b.example", "moved.example"], "blocked_domains": ["b.example"]}
    location = {"type": "approximate", "city": "Bonn", "timezone": None}
    browser = await open_browser(web, filters=filters, user_location=location)
    await ask(browser, "search", query="q", topn=99)
    domains = DomainFilter(allowed=("b.example", "moved.example"), blocked=("b.example",))
    assert web.requests == [("q", 20, domains, location)]
    for url in ("https://a.example/", "https://b.example/", "https://moved.example/"):
        end = await ask(browser, "open", id=url)
        assert text_of(end) == "This request does not allow pages of that site."
    assert web.requests[1:] == ["https://moved.example/"]


INVALID_OPTIONS: dict[str, tuple[Json, str]] = {
    "too many": ({"filters": {"allowed_domains": ["a.org"] * 101}}, "filters.allowed_domains"),
    "no list": ({"filters": {"blocked_domains": "a.org"}}, "filters.blocked_domains"),
    "no text": ({"filters": {"allowed_domains": ["a.org", 5]}}, "filters.allowed_domains[1]"),
    "a URL": ({"filters": {"blocked_domains": ["https://a.org"]}}, "filters.blocked_domains[0]"),
    "empty": ({"filters": {"allowed_domains": [""]}}, "filters.allowed_domains[0]"),
    "location": ({"user_location": {"city": {"a": 1}}}, "user_location.city"),
    "kind": ({"user_location": {"type": "exact"}}, "user_location.type"),
}


@pytest.mark.parametrize(("fields", "param"), INVALID_OPTIONS.values(), ids=INVALID_OPTIONS)
async def test_invalid_options_are_refused(web: FakeWeb, fields: Json, param: str) -> None:
    with pytest.raises(RequestError) as refused:
        await open_browser(web, **fields)
    assert refused.value.param == f"tools[0].{param}"


async def test_a_later_response_knows_the_pages(web: FakeWeb) -> None:
    first = await open_browser(web)
    ends = [
        await ask(first, "search", query="bees"),
        await ask(first, "open", id=0),
        await ask(first, "open", id=9),
        await ask(first, "find", pattern="see"),
    ]
    web.requests.clear()
    later = await open_browser(web, *map(to_item, ends))
    assert later.cite("0†L3", 0, 1) == first.cite("0†L3", 0, 1)
    assert later.cite("1†L0", 0, 1) == first.cite("1†L0", 0, 1)
    assert text_of(await ask(later, "open", id=0, cursor=2)).startswith(
        "[3] A (https://a.example/)"
    )
    assert text_of(await ask(later, "open", id=1, cursor=0)).startswith(
        "[4] B (https://b.example/)"
    )
    assert text_of(await ask(later, "find", pattern="last", cursor=1)).startswith(
        "[5] Find results"
    )
    assert (
        text_of(await ask(later, "open", cursor=0)) == "Page [0] is no longer open: search again."
    )


@pytest.mark.parametrize(
    "result",
    [
        {},
        {"cursor": "0", "url": "u", "title": "t"},
        {"cursor": -1, "url": "u", "title": "t"},
        {"cursor": 10**9, "url": "u", "title": "t"},
        {"cursor": 0, "url": None, "title": "t"},
        {"cursor": 0, "url": "u", "title": "t", "links": [5]},
        {"url": "https://a.example/"},
    ],
)
async def test_results_that_this_server_did_not_write_open_nothing(
    web: FakeWeb, result: Json
) -> None:
    foreign = i.WebSearchCall(action={"type": "search"}, results=(result,))
    browser = await open_browser(web, foreign, i.WebSearchCall(), i.WebSearchCall(results=()))
    assert "No page is open yet" in text_of(await ask(browser, "open"))


async def test_only_web_pages_are_cited(web: FakeWeb) -> None:
    result = {"cursor": 0, "url": "javascript:alert(1)", "title": "t"}
    browser = await open_browser(web, i.WebSearchCall(action={}, results=(result,)))
    assert browser.cite("0†L0", 0, 1) is None


async def test_only_the_latest_pages_keep_their_text(web: FakeWeb) -> None:
    browser = await open_browser(web)
    for _ in range(MAX_OPEN_PAGES + 1):
        await ask(browser, "open", id="https://a.example/")
    web.requests.clear()
    await ask(browser, "open", cursor=MAX_OPEN_PAGES)
    assert web.requests == []
    await ask(browser, "open", cursor=0)
    assert web.requests == ["https://a.example/"]


async def test_a_request_without_external_access_gets_no_external_web(web: FakeWeb) -> None:
    def is_handled(**fields: Any) -> bool:
        tool = convert({"type": "web_search", **fields}, TOOL_TYPES["web_search"])
        return WebSearchProvider(web).handles(tool)  # type: ignore[arg-type]

    assert [
        is_handled(),
        is_handled(external_web_access=True),
        is_handled(external_web_access=False),
    ] == [1, 1, 0]
    web.is_external = False
    assert is_handled(external_web_access=False)
