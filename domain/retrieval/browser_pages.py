"""Render web pages for a model: numbered pages, shown a few lines at a time, with numbered links.

    [3] Weather in Bonn (https://example.org/bonn)
    **viewing lines [0 - 1] of 57**

    L0: # Today
    L1: Dry, says the 【2†weather service】.

The results of a web search, and the matches of a text in a page, are pages of links too. The model
opens them like the links of any other page.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from urllib.parse import quote, urlsplit

from msgspec import Struct

from antiphon.domain.errors import WebError

LINE_WIDTH = 80
MAX_MATCHES = 50
LINES_PER_MATCH = 4

_LINE = re.compile(rf".{{1,{LINE_WIDTH}}}\Z|.{{0,{LINE_WIDTH - 1}}}\s|.{{{LINE_WIDTH}}}")
_LINK = re.compile(r"【\d+†([^†】]+)(?:†[^†】]+)?】")


class Link(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A link: `line` is its line on a page of links, `leads_to` the line of the page it opens."""

    url: str
    title: str = ""
    line: int = 0
    leads_to: int = 0


class BrowserPage(Struct, frozen=True, kw_only=True):
    """A page that a model has opened; `lines` is None if its text was not kept.

    `is_list` marks a page of links that this server made: it has no URL on the web.
    """

    url: str
    title: str
    lines: tuple[str, ...] | None
    links: tuple[Link, ...] = ()
    is_list: bool = False

    def source_of(self, line: int) -> tuple[str, str] | None:
        """Return the URL and title that a line comes from, None if it comes from no web page."""
        if not self.is_list:
            return self.url, self.title
        links = [link for link in self.links if link.line <= line]
        return (links[-1].url, links[-1].title) if links else None


def wrap_lines(text: str) -> tuple[str, ...]:
    """Return the text in lines of at most LINE_WIDTH characters, broken after a space if possible.

    >>> wrap_lines("a\\n\\n" + 41 * "b ")[2:]
    ('b b b b b b b b b b b b b b b b b b b b b b b b b b b b b b b b b b b b b b b b ', 'b ')
    """
    paragraphs = text.split("\n")
    return tuple(line for each in paragraphs for line in (_LINE.findall(each) or [""]))


def render_page(
    page: BrowserPage, cursor: int, *, first: int = 0, count: int | None = None, max_chars: int
) -> str:
    """Return the text that the model is shown: `count` lines from line `first`, or all that follow.

    It ends with the line that reaches `max_chars` characters, so it has at least one line.

    Raises: WebError if the page has no line `first`.
    """
    lines = page.lines or ("",)
    if first >= len(lines):
        raise WebError(f"There is no line {first}: the last line of the page is {len(lines) - 1}.")
    last = len(lines) if count is None else min(first + count, len(lines))
    numbered_lines: list[str] = []
    remaining_chars = max_chars
    for number in range(first, last):
        numbered_lines.append(f"L{number}: {lines[number]}")
        remaining_chars -= len(numbered_lines[-1]) + 1
        if remaining_chars <= 0:
            break
    heading = f"{page.title} ({page.url})" if page.url else page.title
    last_shown = first + len(numbered_lines) - 1
    position = f"**viewing lines [{first} - {last_shown}] of {len(lines) - 1}**"
    return f"[{cursor}] {heading}\n{position}\n\n" + "\n".join(numbered_lines)


def search_results_page(query: str, results: Sequence[tuple[str, str, str]]) -> BrowserPage:
    """Return the page of links for a web search; each result is its URL, title and text."""
    lines = ["# Search Results" if results else "No results.", ""]
    links: list[Link] = []
    for number, (url, title, text) in enumerate(results):
        links.append(Link(url=url, title=title, line=len(lines)))
        lines += wrap_lines(f"  * 【{number}†{title}†{_host(url)}】 {text}")
    return BrowserPage(url="", title=query, lines=tuple(lines), links=tuple(links), is_list=True)


def find_results_page(page: BrowserPage, pattern: str) -> BrowserPage:
    """Return the page of links to the pattern's matches in a page.

    Matching ignores case, and a match may continue on the next line.
    """
    links: list[Link] = []
    result_lines: list[str] = []
    lines = _LINK.sub(_link_text, "\n".join(page.lines or ())).split("\n")
    for line in _find_matching_lines(lines, pattern):
        links.append(Link(url=page.url, title=page.title, line=len(result_lines), leads_to=line))
        result_lines += [f"# 【{len(links) - 1}†match at L{line}】"]
        result_lines += [*lines[line : line + LINES_PER_MATCH], ""]
    return BrowserPage(
        url=f"{page.url}/find?pattern={quote(pattern, errors='replace')}",
        title=f"Find results for text: `{pattern}` in `{page.title}`",
        lines=tuple(result_lines) or (f"No results for the text: `{pattern}`",),
        links=tuple(links),
        is_list=True,
    )


def _find_matching_lines(lines: Sequence[str], pattern: str) -> Iterator[int]:
    """Yield the line of each match; the excerpts shown for them do not overlap.

    All whitespace is alike, line ends included, since they come from our own wrapping. This uses no
    regular expression: both texts are untrusted, and some patterns would run forever.
    """
    normalized_lines = [" ".join(line.lower().split()) for line in lines]
    starts = list(accumulate((len(line) + 1 for line in normalized_lines), initial=0))
    text, needle = " ".join(normalized_lines), " ".join(pattern.lower().split())
    at = text.find(needle)
    for _ in range(MAX_MATCHES):
        if at < 0:
            return
        line = bisect_right(starts, at) - 1
        yield line
        at = text.find(needle, starts[min(line + LINES_PER_MATCH, len(lines))])


def _link_text(link: re.Match[str]) -> str:
    # A link may span several lines; its line breaks are kept so that line numbers do not change.
    return link[1] + "\n" * (link[0].count("\n") - link[1].count("\n"))


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
