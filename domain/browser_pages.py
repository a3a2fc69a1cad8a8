"""Pages as a model sees them: numbered, some lines at a time, with links by number.

    [3] Weather in Bonn (https://example.org/bonn)
    **viewing lines [0 - 1] of 57**

    L0: # Today
    L1: Dry, says the 【2†weather service】.

What a search has found, and the places of a page where a text stands, are pages of links, which the
model can open like those of any page.
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
MOST_PLACES = 50
LINES_OF_A_PLACE = 4

_LINE = re.compile(rf".{{1,{LINE_WIDTH}}}\Z|.{{0,{LINE_WIDTH - 1}}}\s|.{{{LINE_WIDTH}}}")
_LINK = re.compile(r"【\d+†([^†】]+)(?:†[^†】]+)?】")


class Link(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`line` is where it stands on a page of links, `leads_to` the line there."""

    url: str
    title: str = ""
    line: int = 0
    leads_to: int = 0


class BrowserPage(Struct, frozen=True, kw_only=True):
    """A page that a model has opened. `lines` are None for one whose text is not kept.

    `is_list`: a page of links that was made here, of no URL of the web.
    """

    url: str
    title: str
    lines: tuple[str, ...] | None
    links: tuple[Link, ...] = ()
    is_list: bool = False

    def source_of(self, line: int) -> tuple[str, str] | None:
        """Return URL and title of what stands in that line; None if that is nothing of the web."""
        if not self.is_list:
            return self.url, self.title
        before = [link for link in self.links if link.line <= line]
        return (before[-1].url, before[-1].title) if before else None


def wrap_lines(text: str) -> tuple[str, ...]:
    """Return the text in lines of a width, cut after a blank where there is one.

    >>> wrap_lines("a\\n\\n" + 41 * "b ")[2:]
    ('b b b b b b b b b b b b b b b b b b b b b b b b b b b b b b b b b b b b b b b b ', 'b ')
    """
    return tuple(line for written in text.split("\n") for line in (_LINE.findall(written) or [""]))


def render_page(
    view: BrowserPage, cursor: int, *, first: int = 0, count: int | None = None, most: int
) -> str:
    """Return what the model is shown: from line `first` on `count` lines, or as many as there are,
    but one line at least, and no line more once there are `most` characters.

    Raises: WebError if there is no such line.
    """
    lines = view.lines or ("",)
    if first >= len(lines):
        raise WebError(f"There is no line {first}: the last line of the page is {len(lines) - 1}.")
    last = len(lines) if count is None else min(first + count, len(lines))
    told: list[str] = []
    for number in range(first, last):
        told.append(f"L{number}: {lines[number]}")
        most -= len(told[-1]) + 1
        if most <= 0:
            break
    heading = f"{view.title} ({view.url})" if view.url else view.title
    place = f"**viewing lines [{first} - {first + len(told) - 1}] of {len(lines) - 1}**"
    return f"[{cursor}] {heading}\n{place}\n\n" + "\n".join(told)


def search_results_page(query: str, found: Sequence[tuple[str, str, str]]) -> BrowserPage:
    """Return the page of what a search has found, each as URL, title and text."""
    lines = ["# Search Results" if found else "No results.", ""]
    links: list[Link] = []
    for number, (url, title, text) in enumerate(found):
        links.append(Link(url=url, title=title, line=len(lines)))
        lines += wrap_lines(f"  * 【{number}†{title}†{_host(url)}】 {text}")
    return BrowserPage(url="", title=query, lines=tuple(lines), links=tuple(links), is_list=True)


def find_results_page(page: BrowserPage, pattern: str) -> BrowserPage:
    """Return the page of the places where the pattern stands, whatever its letters' case, also over
    the end of a line."""
    links: list[Link] = []
    told: list[str] = []
    lines = _LINK.sub(_words_of, "\n".join(page.lines or ())).split("\n")
    for line in _places(lines, pattern):
        links.append(Link(url=page.url, title=page.title, line=len(told), leads_to=line))
        told += [f"# 【{len(links) - 1}†match at L{line}】"]
        told += [*lines[line : line + LINES_OF_A_PLACE], ""]
    return BrowserPage(
        url=f"{page.url}/find?pattern={quote(pattern, errors='replace')}",
        title=f"Find results for text: `{pattern}` in `{page.title}`",
        lines=tuple(told) or (f"No results for the text: `{pattern}`",),
        links=tuple(links),
        is_list=True,
    )


def _places(lines: Sequence[str], pattern: str) -> Iterator[int]:
    """Yield the lines where it stands, as far apart as what is shown of each.

    Blanks are alike, and so is the end of a line: that of ours means nothing. No regular
    expression: both texts are strangers', and some patterns take them for ever.
    """
    plain = [" ".join(line.lower().split()) for line in lines]
    starts = list(accumulate((len(line) + 1 for line in plain), initial=0))
    text, wanted = " ".join(plain), " ".join(pattern.lower().split())
    at = text.find(wanted)
    for _ in range(MOST_PLACES):
        if at < 0:
            return
        line = bisect_right(starts, at) - 1
        yield line
        at = text.find(wanted, starts[min(line + LINES_OF_A_PLACE, len(lines))])


def _words_of(link: re.Match[str]) -> str:
    # A link may go over the end of a line: lines keep their numbers.
    return link[1] + "\n" * (link[0].count("\n") - link[1].count("\n"))


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
