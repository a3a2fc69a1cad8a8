"""Pages as a model sees them: lines, parts, links and matches."""

from __future__ import annotations

import time

import pytest

from antiphon.domain.errors import WebError
from antiphon.domain.retrieval import browser_pages
from antiphon.domain.retrieval.browser_pages import (
    BrowserPage,
    Link,
    find_results_page,
    render_page,
    search_results_page,
    wrap_lines,
)

PAGE = BrowserPage(
    url="https://a.example/x",
    title="A page",
    lines=("# Top", "one 【0†two words†b.example】 three", "", "Four"),
    links=(Link(url="https://b.example/"),),
)


def test_a_page_is_shown_with_its_number_its_position_and_numbered_lines() -> None:
    assert render_page(PAGE, 3, max_chars=1000) == (
        "[3] A page (https://a.example/x)\n"
        "**viewing lines [0 - 3] of 3**\n\n"
        "L0: # Top\n"
        "L1: one 【0†two words†b.example】 three\n"
        "L2: \n"
        "L3: Four"
    )


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        ({"first": 2}, "[2 - 3]"),
        ({"first": 1, "count": 2}, "[1 - 2]"),
        ({"count": 99}, "[0 - 3]"),
        ({"max_chars": 1}, "[0 - 0]"),
        ({"max_chars": 20}, "[0 - 1]"),
        ({"first": 3, "count": 1, "max_chars": 1}, "[3 - 3]"),
    ],
)
def test_a_part_says_which_lines_it_has(options: dict[str, int], lines: str) -> None:
    text = render_page(PAGE, 0, **{"max_chars": 1000, **options})
    first, last = lines[1:-1].split(" - ")
    assert f"**viewing lines {lines} of 3**\n\nL{first}: " in text
    assert f"\nL{last}: " in text
    assert f"\nL{int(last) + 1}: " not in text


def test_a_line_beyond_the_last_is_an_error() -> None:
    with pytest.raises(WebError, match="last line of the page is 3"):
        render_page(PAGE, 0, first=4, max_chars=1000)


def test_a_page_without_text_has_one_empty_line() -> None:
    page = BrowserPage(url="u", title="t", lines=wrap_lines(""))
    assert render_page(page, 0, max_chars=10) == "[0] t (u)\n**viewing lines [0 - 0] of 0**\n\nL0: "


@pytest.mark.parametrize(
    "text", ["", "a\n\nb\n", "word " * 200, "x" * 500, "\n", " " * 300, "é " * 99]
)
def test_wrapped_lines_hold_the_whole_text(text: str) -> None:
    lines = wrap_lines(text)
    assert all(len(line) <= browser_pages.LINE_WIDTH for line in lines)
    assert "".join(lines) == text.replace("\n", "")


@pytest.mark.parametrize("text", ["x" * 10**6, "a b" * 300_000, "\n" * 10**6, " " * 10**6])
def test_a_long_text_is_wrapped_fast(text: str) -> None:
    started = time.process_time()
    wrap_lines(text)
    assert time.process_time() - started < 2


def test_search_results_are_a_page_of_links() -> None:
    page = search_results_page(
        "rain", [("https://a.example/x", "A", "wet"), ("https://b.example", "B", "")]
    )
    assert page.lines == (
        "# Search Results",
        "",
        "  * 【0†A†a.example】 wet",
        "  * 【1†B†b.example】 ",
    )
    assert page.source_of(0) is None
    assert page.source_of(2) == ("https://a.example/x", "A")
    assert page.source_of(99) == ("https://b.example", "B")
    assert search_results_page("q", []).lines == ("No results.", "")


def test_matching_ignores_case_and_link_markup() -> None:
    page = find_results_page(PAGE, "ONE two")
    assert page.title == "Find results for text: `ONE two` in `A page`"
    assert page.url == "https://a.example/x/find?pattern=ONE%20two"
    assert page.lines == ("# 【0†match at L1】", "one two words three", "", "Four", "")
    assert page.links == (Link(url=PAGE.url, title="A page", line=0, leads_to=1),)
    assert page.source_of(3) == (PAGE.url, "A page")
    no_results = find_results_page(PAGE, "five")
    assert no_results.lines == ("No results for the text: `five`",)
    assert no_results.source_of(0) is None


def test_a_match_may_continue_on_the_next_line() -> None:
    page = BrowserPage(
        url="u", title="t", lines=wrap_lines("word " * 40 + "needle in " + "word " * 15)
    )
    results = find_results_page(page, "needle in word")
    assert len(results.links) == 1
    line = results.links[0].leads_to
    assert page.lines
    assert "needle" in page.lines[line]


def test_matches_do_not_overlap_and_their_number_is_limited() -> None:
    page = BrowserPage(url="u", title="t", lines=("x x",) * 1000)
    assert [link.leads_to for link in find_results_page(page, "x").links] == list(range(0, 200, 4))


def test_a_link_over_several_lines_does_not_change_line_numbers() -> None:
    page = BrowserPage(url="u", title="t", lines=("a 【0†b ", "c†h", "ost】 d", "needle"))
    assert find_results_page(page, "needle").links[0].leads_to == 3


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("a " * 500_000, "a " * 900 + "b"),
        ("a" + " " * 10**6, "a b"),
        ("ab" * 500_000, "ab" * 999 + "c"),
    ],
)
def test_a_hostile_page_is_searched_fast(text: str, pattern: str) -> None:
    page = BrowserPage(url="u", title="t", lines=wrap_lines(text))
    started = time.process_time()
    assert find_results_page(page, pattern).links == ()
    assert time.process_time() - started < 2


@pytest.mark.parametrize("pattern", [".*", "(", "[a", "\\", "x" * 2000, "\ud800", "\x00"])
def test_a_pattern_is_plain_text(pattern: str) -> None:
    assert find_results_page(PAGE, pattern).links == ()
