"""The browser of a response: what it shows, whatever a model asks and the web gives."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from msgspec import convert
from tests.application.fake_web import FakeWeb

from antiphon.application.ports import DomainFilter, Json, Web, WebPage
from antiphon.application.tools.web_search import (
    AT_ONCE,
    MAX_OPEN,
    WebSearchCaller,
    WebSearchProvider,
)
from antiphon.domain import deltas as d
from antiphon.domain import items as i
from antiphon.domain.content import UrlCitation
from antiphon.domain.errors import RequestError
from antiphon.domain.offers import ToolDefinition
from antiphon.domain.tools import TOOL_TYPES

KINDS = {"search": "web_search", "open": "open_page", "find": "find_in_page"}


@pytest.fixture
def web() -> FakeWeb:
    return FakeWeb()


async def browser(web: Web, *items: i.Item, **fields: Any) -> WebSearchCaller:
    tool = convert({"type": "web_search", **fields}, TOOL_TYPES["web_search"])
    asked = [ToolDefinition(tool=tool, path="tools[0]")]  # type: ignore[arg-type]
    callers = await WebSearchProvider(web).callers(asked, items, tenant="t")
    assert set(callers) == set(KINDS.values())
    [one] = {id(caller): caller for caller in callers.values()}.values()
    assert isinstance(one, WebSearchCaller)
    return one


async def ask(
    browser: WebSearchCaller, what: str, given: Any = None, **arguments: Any
) -> d.ToolEnd:
    written = given if isinstance(given, str) else json.dumps(arguments)
    start = d.CallStart(KINDS[what], kind=KINDS[what])
    [[end]] = [batch async for batch in browser.call(start, written)]
    assert isinstance(end, d.ToolEnd)
    assert end.fields["results"][0]["arguments"] == written
    return end


def text(end: d.ToolEnd) -> str:
    return str(end.fields["results"][0]["text"])


def action(end: d.ToolEnd) -> Json:
    told: Json = end.fields["action"]
    return told


def item(end: d.ToolEnd) -> i.WebSearchCall:
    return i.WebSearchCall(status=end.status, **end.fields)


async def test_a_model_searches_opens_finds_and_cites(web: FakeWeb) -> None:
    browsing = await browser(web)
    found = await ask(browsing, "search", query="bees", topn=5)
    assert web.asked == [("bees", 5, DomainFilter(), None)]
    assert text(found).startswith(
        "[0] bees\n**viewing lines [0 - 3] of 3**\n\nL0: # Search Results"
    )
    assert action(found) == {
        "type": "search",
        "query": "bees",
        "queries": ["bees"],
        "sources": [
            {"type": "url", "url": "https://a.example/"},
            {"type": "url", "url": "https://b.example/"},
        ],
    }
    opened = await ask(browsing, "open", id=0)
    assert text(opened).startswith("[1] A (https://a.example/)\n")
    assert action(opened) == {"type": "open_page", "url": "https://a.example/"}
    followed = await ask(browsing, "open", id=0, loc=10, num_lines=2)
    assert text(followed) == (
        "[2] B (https://b.example/)\n**viewing lines [10 - 11] of 5000**\n\nL10: bee\nL11: bee"
    )
    places = await ask(browsing, "find", pattern="see", cursor=1)
    assert action(places) == {
        "type": "find_in_page",
        "url": "https://a.example/",
        "pattern": "see",
    }
    assert "L0: # 【0†match at L1】\nL1: see the other" in text(places)
    assert text(await ask(browsing, "open", id=0)).splitlines()[-1] == "L2: last"
    assert browsing.cite("1†L0-L1", 5, 15) == UrlCitation(
        start_index=5, end_index=15, url="https://a.example/", title="A"
    )
    assert browsing.cite("0†L3", 0, 6) == UrlCitation(
        start_index=0, end_index=6, url="https://b.example/", title="B"
    )
    assert [url for url in web.asked if isinstance(url, str)] == [
        "https://a.example/",
        "https://b.example/",
    ]


@pytest.mark.parametrize(
    "words", ["9†L1", "0†L0", "1†source", "1", "", "†L1", "1†L", "99999999†L1", "x†L1", "1†L1†L2"]
)
async def test_what_is_no_line_of_a_page_is_no_citation(web: FakeWeb, words: str) -> None:
    browsing = await browser(web)
    await ask(browsing, "search", query="bees")
    await ask(browsing, "open", id=0)
    assert browsing.cite(words, 0, 1) is None
    assert browsing.cite("1†L1-2", 0, 1) is not None


WRONG: dict[str, tuple[str, Any, str]] = {
    "no object": ("search", "[1]", "not a JSON object"),
    "no JSON": ("open", "{", "not a JSON object"),
    "half a character": ("find", '{"pattern": "\\ud800"', "not a JSON object"),
    "deep": ("search", 5000 * "[", "not a JSON object"),
    "no query": ("search", {}, "`query` must be a text"),
    "blank query": ("search", {"query": " "}, "`query` must be a text"),
    "long query": ("search", {"query": "x" * 2001}, "`query` must be a text"),
    "number of pages": ("search", {"query": "x", "topn": "many"}, "`topn` must be a number"),
    "huge number": ("open", {"id": 10**18}, "`id` must be a number"),
    "no link": ("open", {"id": 7}, "There is no link 7 on page [0]."),
    "no page": ("open", {"id": 0, "cursor": 5}, "There is no page [5]; the latest is [0]."),
    "no line": ("open", {"loc": 100}, "There is no line 100"),
    "fraction": ("open", {"cursor": 0.5}, "`cursor` must be a number"),
    "list": ("open", {"id": [1]}, "`id` must be a number"),
    "nothing to find": ("find", {"pattern": 5}, "`pattern` must be a text"),
    "in a list": ("find", {"pattern": "x"}, "Page [0] is a list of results"),
    "unknown URL": (
        "open",
        {"id": "https://c.example/"},
        "There is no page at https://c.example/.",
    ),
    "long URL": ("open", {"id": f"https://a.example/{2000 * 'x'}"}, "A URL may have"),
    "web down": ("search", {"query": "broken"}, "The search does not answer."),
}


@pytest.mark.parametrize(("what", "given", "why"), WRONG.values(), ids=WRONG)
async def test_what_goes_wrong_is_told_to_the_model(
    web: FakeWeb, what: str, given: Any, why: str
) -> None:
    browsing = await browser(web)
    await ask(browsing, "search", query="bees")
    written = given if isinstance(given, str) else json.dumps(given)
    end = await ask(browsing, what, written)
    assert end.status == "failed"
    assert why in text(end)
    assert "[1]" in text(await ask(browsing, "open", id=0))  # a failure has no number


async def test_nothing_can_be_opened_before_there_is_a_page(web: FakeWeb) -> None:
    browsing = await browser(web)
    assert "No page is open yet" in text(await ask(browsing, "open"))
    assert "No page is open yet" in text(await ask(browsing, "find", pattern="x"))


@pytest.mark.parametrize(
    "given",
    [
        {"id": "0"},
        {"id": 0.0, "cursor": -1, "loc": -1, "num_lines": -1, "view_source": False},
        {"id": "a.example/"},
        {"id": "https://a.example/", "cursor": "", "source": "web"},
        {"id": 0, "cursor": None, "loc": 0, "num_lines": 0},
    ],
)
async def test_models_may_write_it_in_many_ways(web: FakeWeb, given: Json) -> None:
    browsing = await browser(web)
    await ask(browsing, "search", query="bees")
    end = await ask(browsing, "open", **given)
    assert text(end).startswith("[1] A (https://a.example/)\n**viewing lines [0 - 2] of 2**")


async def run(browsing: WebSearchCaller, *calls: tuple[str, Json]) -> list[d.ToolEnd]:
    """Begin all calls at once, as those of one turn are."""
    work = [asyncio.create_task(ask(browsing, what, **given)) for what, given in calls]
    return await asyncio.gather(*work)


async def test_calls_of_one_turn_are_numbered_in_their_order(web: FakeWeb) -> None:
    browsing = await browser(web)
    web.held = {"slow"}
    calls = [("search", {"query": query}) for query in ("slow", "broken", "quick")]
    running = asyncio.create_task(run(browsing, *calls, ("open", {"id": 0})))
    await web.until(lambda: len(web.asked) == 3)  # all searches, before the first is done
    web.go.set()
    shown = [text(end).split("\n")[0] for end in await running]
    assert shown == [
        "[0] slow",
        "The search does not answer.",
        "[1] quick",
        "[2] A (https://a.example/)",
    ]


async def test_a_long_page_is_shown_like_a_short_one(web: FakeWeb) -> None:
    url = "https://long.example/"
    web.pages[url] = WebPage(url=url, title="L", text="one line\n" * 9000 + "the end")
    browsing = await browser(web)
    assert "of 9000**" in text(await ask(browsing, "open", id=url))
    assert "match at L9000" in text(await ask(browsing, "find", pattern="THE END"))


async def test_few_things_are_loaded_at_once(web: FakeWeb) -> None:
    browsing = await browser(web)
    web.held = {"https://a.example/"}
    running = asyncio.create_task(run(browsing, *[("open", {"id": "https://a.example/"})] * 20))
    await web.until(lambda: web.busy == AT_ONCE)
    web.go.set()
    await running
    assert (web.busiest, len(web.asked)) == (AT_ONCE, 20)


async def test_a_call_that_is_given_up_does_not_hold_the_next(web: FakeWeb) -> None:
    browsing = await browser(web)
    web.held = {"slow"}
    slow = asyncio.create_task(ask(browsing, "search", query="slow"))
    await web.until(lambda: bool(web.asked))
    slow.cancel()
    assert text(await ask(browsing, "search", query="quick")).startswith("[0] quick")


async def test_a_call_that_is_not_run_says_so_with_what_it_asked_for(web: FakeWeb) -> None:
    browsing = await browser(web)
    start = d.CallStart("web_search", kind="web_search")
    [end] = browsing.refused(start, '{"query": "bees"}', "No more.")
    assert isinstance(end, d.ToolEnd)
    assert (end.status, text(end), action(end)["query"]) == ("failed", "No more.", "bees")
    assert web.asked == []


@pytest.mark.parametrize(("size", "lines"), [("low", 210), ("medium", 410), ("high", 1191)])
async def test_the_context_size_says_how_much_of_a_page_is_shown(
    web: FakeWeb, size: str, lines: int
) -> None:
    browsing = await browser(web, search_context_size=size)
    for arguments in ({}, {"num_lines": 4000}):
        end = await ask(browsing, "open", id="https://b.example/", **arguments)
        assert f"**viewing lines [0 - {lines}] of 5000**" in text(end)


async def test_filters_hold_for_searches_and_for_pages(web: FakeWeb) -> None:
    filters = {"allowed_domains": ["b.example", "moved.example"], "blocked_domains": ["b.example"]}
    location = {"type": "approximate", "city": "Bonn", "timezone": None}
    browsing = await browser(web, filters=filters, user_location=location)
    await ask(browsing, "search", query="q", topn=99)
    domains = DomainFilter(allowed=("b.example", "moved.example"), blocked=("b.example",))
    assert web.asked == [("q", 20, domains, location)]
    for url in ("https://a.example/", "https://b.example/", "https://moved.example/"):
        end = await ask(browsing, "open", id=url)
        assert text(end) == "This request does not allow pages of that site."
    assert web.asked[1:] == ["https://moved.example/"]


REFUSED: dict[str, tuple[Json, str]] = {
    "too many": ({"filters": {"allowed_domains": ["a.org"] * 101}}, "filters.allowed_domains"),
    "no list": ({"filters": {"blocked_domains": "a.org"}}, "filters.blocked_domains"),
    "no text": ({"filters": {"allowed_domains": ["a.org", 5]}}, "filters.allowed_domains[1]"),
    "a URL": ({"filters": {"blocked_domains": ["https://a.org"]}}, "filters.blocked_domains[0]"),
    "empty": ({"filters": {"allowed_domains": [""]}}, "filters.allowed_domains[0]"),
    "location": ({"user_location": {"city": {"a": 1}}}, "user_location.city"),
    "kind": ({"user_location": {"type": "exact"}}, "user_location.type"),
}


@pytest.mark.parametrize(("fields", "param"), REFUSED.values(), ids=REFUSED)
async def test_what_no_search_can_have_is_refused(web: FakeWeb, fields: Json, param: str) -> None:
    with pytest.raises(RequestError) as refused:
        await browser(web, **fields)
    assert refused.value.param == f"tools[0].{param}"


async def test_a_later_response_knows_the_pages(web: FakeWeb) -> None:
    first = await browser(web)
    shown = [
        await ask(first, "search", query="bees"),
        await ask(first, "open", id=0),
        await ask(first, "open", id=9),
        await ask(first, "find", pattern="see"),
    ]
    web.asked.clear()
    later = await browser(web, *map(item, shown))
    assert later.cite("0†L3", 0, 1) == first.cite("0†L3", 0, 1)
    assert later.cite("1†L0", 0, 1) == first.cite("1†L0", 0, 1)
    assert text(await ask(later, "open", id=0, cursor=2)).startswith("[3] A (https://a.example/)")
    assert text(await ask(later, "open", id=1, cursor=0)).startswith("[4] B (https://b.example/)")
    assert text(await ask(later, "find", pattern="last", cursor=1)).startswith("[5] Find results")
    assert text(await ask(later, "open", cursor=0)) == "Page [0] is no longer open: search again."


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
async def test_results_that_are_none_of_ours_open_nothing(web: FakeWeb, result: Json) -> None:
    foreign = i.WebSearchCall(action={"type": "search"}, results=(result,))
    browsing = await browser(web, foreign, i.WebSearchCall(), i.WebSearchCall(results=()))
    assert "No page is open yet" in text(await ask(browsing, "open"))


async def test_only_pages_of_the_web_are_cited(web: FakeWeb) -> None:
    result = {"cursor": 0, "url": "javascript:alert(1)", "title": "t"}
    browsing = await browser(web, i.WebSearchCall(action={}, results=(result,)))
    assert browsing.cite("0†L0", 0, 1) is None


async def test_only_the_latest_pages_are_kept_whole(web: FakeWeb) -> None:
    browsing = await browser(web)
    for _ in range(MAX_OPEN + 1):
        await ask(browsing, "open", id="https://a.example/")
    web.asked.clear()
    await ask(browsing, "open", cursor=MAX_OPEN)
    assert web.asked == []
    await ask(browsing, "open", cursor=0)
    assert web.asked == ["https://a.example/"]


async def test_who_wants_nothing_asked_for_outside_gets_no_external_web(web: FakeWeb) -> None:
    def runs(**fields: Any) -> bool:
        tool = convert({"type": "web_search", **fields}, TOOL_TYPES["web_search"])
        return WebSearchProvider(web).handles(tool)  # type: ignore[arg-type]

    assert [runs(), runs(external_web_access=True), runs(external_web_access=False)] == [1, 1, 0]
    web.is_external = False
    assert runs(external_web_access=False)
