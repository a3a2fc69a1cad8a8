"""Web search: a browser for each response, which searches, opens pages and finds words in them.

What a model was shown is kept in the item of its call (`results`), so that a later prompt says it
again, word for word, and so that a later response knows which page each number means.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from antiphon.application.ports import DomainFilter, Web
from antiphon.application.tools.calls import SingleItemCaller, ToolCaller
from antiphon.application.tools.citations import CitationSource
from antiphon.application.tools.hosted import ToolProvider
from antiphon.domain import browser_pages
from antiphon.domain import deltas as d
from antiphon.domain import items as i
from antiphon.domain.browser_pages import BrowserPage, Link
from antiphon.domain.content import Annotation, UrlCitation
from antiphon.domain.errors import RequestError, WebError
from antiphon.domain.json import Json
from antiphon.domain.offers import ToolDefinition
from antiphon.domain.tools import WEB_KINDS, AnyWebSearch, RequestTool, parse_arguments

T = TypeVar("T")

MAX_DOMAINS = 100
MAX_RESULTS = 20
FOUND = 10
"""Pages that a search shows: at most, and where the model does not say."""

SIZES = {"low": 2000, "medium": 4000, "high": 12_000}
"""Characters of a page that are shown at once, by `search_context_size`. A token is some four of
them, and gpt-oss's own browser shows 1024 tokens."""

LONGEST = 2000
"""Characters of a query, a URL or a pattern."""

MAX_OPEN = 8
"""Pages whose text is kept; that of an older one is read again."""

LONG = 50_000
"""Characters of a page from which on cutting and searching it is given a thread: a millisecond."""

AT_ONCE = 4
"""What one browser loads side by side: fewer than calls may run (`budgets`), since responses share
the fetcher's places, and a search service counts."""

_CITED = re.compile(r"\s*(\d{1,6})†L(\d{1,7})(?:\s*-\s*L?\d{1,7})?\s*")

ACTIONS: Mapping[str, Json] = {
    "web_search": {"type": "search", "query": "", "queries": []},
    "open_page": {"type": "open_page", "url": None},
    "find_in_page": {"type": "find_in_page", "url": "", "pattern": ""},
}
"""What a call's item says while nothing is known of it."""


class WebSearchProvider(ToolProvider):
    """Gives each response its browser."""

    def __init__(self, web: Web) -> None:
        self._web = web

    def handles(self, tool: RequestTool) -> bool:
        # Who wants nothing to be asked for outside is not given what does.
        is_kept_inside = isinstance(tool, AnyWebSearch) and tool.external_web_access is False
        return isinstance(tool, AnyWebSearch) and not (is_kept_inside and self._web.is_external)

    async def callers(
        self,
        asked: Sequence[ToolDefinition],
        conversation: Sequence[i.Item],
        *,
        tenant: str,  # noqa: ARG002
    ) -> Mapping[str, ToolCaller]:
        checked = [_checked(each) for each in asked]
        return dict.fromkeys(
            WEB_KINDS, WebSearchCaller(self._web, *checked[-1], _opened(conversation))
        )


def _checked(definition: ToolDefinition) -> tuple[int, DomainFilter, Json | None]:
    """Return how much to show, and of what. Raises: RequestError."""
    tool, path = definition.tool, definition.path
    assert isinstance(tool, AnyWebSearch)
    filters = tool.filters or {}
    allowed, blocked = (
        _domains(filters.get(f"{name}_domains"), f"{path}.filters.{name}_domains")
        for name in ("allowed", "blocked")
    )
    location = tool.user_location
    for name, value in (location or {}).items():
        is_known = value is None or (isinstance(value, str) and len(value) <= LONGEST)
        if not is_known or (name == "type" and value not in (None, "approximate")):
            raise RequestError(
                "A location is `approximate`, and what is said of it are short texts.",
                param=f"{path}.user_location.{name[:100]}",
                code="invalid_value",
            )
    size = SIZES[tool.search_context_size or "medium"]
    return size, DomainFilter(allowed=allowed, blocked=blocked), location


def _domains(value: Any, path: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > MAX_DOMAINS:
        raise RequestError(f"Name up to {MAX_DOMAINS} domains.", param=path, code="invalid_value")
    for position, each in enumerate(value):
        if not isinstance(each, str) or not re.fullmatch(r"[^\s/:@]{1,253}", each):
            raise RequestError(
                "A domain is a name like 'example.org', without 'https://' and path.",
                param=f"{path}[{position}]",
                code="invalid_value",
            )
    return tuple(value)


class _Opened(Struct, frozen=True, kw_only=True):
    """What of a page is found in an item's results."""

    cursor: Annotated[int, Meta(ge=0, le=999_999)]
    url: str
    title: str
    links: tuple[Link, ...] | None = None


def _opened(conversation: Sequence[i.Item]) -> dict[int, BrowserPage]:
    """Return the pages that were shown before, by their number."""
    found: dict[int, BrowserPage] = {}
    for item in conversation:
        if isinstance(item, i.WebSearchCall) and item.results:
            try:
                page = msgspec.convert(item.results[0], _Opened)
            except msgspec.ValidationError:
                continue  # a call that showed nothing; or an item that is none of ours
            found[page.cursor] = BrowserPage(
                url=page.url,
                title=page.title,
                lines=None,
                links=page.links or (),
                is_list=page.links is not None,
            )
    return found


class WebSearchCaller(SingleItemCaller, CitationSource):
    """Shows `size` characters at a time. Calls run side by side; what they show is numbered in
    their order, so that a call can build on the one before it."""

    step = "searching"

    def __init__(
        self,
        web: Web,
        size: int,
        domains: DomainFilter,
        location: Json | None,
        opened: Mapping[int, BrowserPage],
    ) -> None:
        self._web = web
        self._size = size
        self._domains = domains
        self._location = location
        self._pages = dict(opened)
        self._loading = asyncio.Semaphore(AT_ONCE)
        self._latest = asyncio.Event()
        self._latest.set()

    def open_item(self, start: d.CallStart) -> d.Delta:
        return d.ToolStart("web_search_call", {"action": ACTIONS[start.kind]})

    def refused(self, start: d.CallStart, arguments: str, why: str) -> Sequence[d.Delta]:
        return [_Call(start.kind, arguments).failed(why)]

    def cite(self, words: str, start: int, end: int, /) -> Annotation | None:
        match = _CITED.fullmatch(words)
        page = self._pages.get(int(match[1])) if match else None
        cited = page.source_of(int(match[2])) if match and page else None
        # Pages of earlier responses are what a client says they were.
        if cited is None or not cited[0].startswith(("https://", "http://")):
            return None
        return UrlCitation(start_index=start, end_index=end, url=cited[0], title=cited[1])

    async def end(self, start: d.CallStart, arguments: str) -> d.ToolEnd:
        before, done = self._latest, asyncio.Event()
        self._latest = done
        call = _Call(start.kind, arguments)
        try:
            try:
                page, first = await _WAYS[start.kind](self, call, before)
                await before.wait()
                return self._show(call, page, first)
            except WebError as error:
                await before.wait()
                return call.failed(str(error))
        finally:
            done.set()

    def _show(self, call: _Call, page: BrowserPage, first: int) -> d.ToolEnd:
        cursor = max(self._pages, default=-1) + 1
        count = call.number("num_lines") or None
        text = browser_pages.render_page(page, cursor, first=first, count=count, most=self._size)
        self._pages[cursor] = page
        for old in sorted(self._pages)[:-MAX_OPEN]:
            if self._pages[old].lines is not None:
                self._pages[old] = replace(self._pages[old], lines=None)
        links = {"links": msgspec.to_builtins(page.links)} if page.is_list else {}
        return call.ended(
            "completed",
            {"cursor": cursor, "url": page.url, "title": page.title, "text": text, **links},
        )

    # --- what a model can do --------------------------------------------------------------------

    async def _search(self, call: _Call, before: asyncio.Event) -> tuple[BrowserPage, int]:  # noqa: ARG002
        query = call.text("query")
        wanted = call.number("topn")
        most = FOUND if wanted is None else min(max(wanted, 1), MAX_RESULTS)
        async with self._loading:
            found = await self._web.search(
                query, most=most, domains=self._domains, location=self._location
            )
        call.action["sources"] = [{"type": "url", "url": each.url} for each in found]
        return browser_pages.search_results_page(
            query, [(each.url, each.title, each.text) for each in found]
        ), 0

    async def _open(self, call: _Call, before: asyncio.Event) -> tuple[BrowserPage, int]:
        if (url := call.url()) is not None:
            if len(url) > LONGEST:
                raise WebError(f"A URL may have {LONGEST} characters.")
            return await self._read(url), call.number("loc") or 0
        await before.wait()
        cursor, page = self._page(call)
        number, first = call.number("id"), 0
        if number is None:
            call.action["url"] = page.url or None
            page = await self._with_text(cursor, page)
        elif number < len(page.links):
            link = page.links[number]
            call.action["url"], first = link.url, link.leads_to
            page = self._known(link.url) or await self._read(link.url)
        else:
            raise WebError(f"There is no link {number} on page [{cursor}].")
        wanted = call.number("loc")
        return page, first if wanted is None else wanted

    async def _find(self, call: _Call, before: asyncio.Event) -> tuple[BrowserPage, int]:
        pattern = call.text("pattern")
        await before.wait()
        cursor, page = self._page(call)
        call.action["url"] = page.url
        if page.is_list:
            raise WebError(f"Page [{cursor}] is a list of results: name the `cursor` of a page.")
        page = await self._with_text(cursor, page)
        size = len(page.lines or ()) * browser_pages.LINE_WIDTH
        return await _aside(size, partial(browser_pages.find_results_page, page, pattern)), 0

    def _page(self, call: _Call) -> tuple[int, BrowserPage]:
        if not self._pages:
            raise WebError("No page is open yet: search, or open a URL.")
        latest = max(self._pages)
        wanted = call.number("cursor")
        cursor = latest if wanted is None else wanted
        if cursor not in self._pages:
            raise WebError(f"There is no page [{cursor}]; the latest is [{latest}].")
        return cursor, self._pages[cursor]

    async def _with_text(self, cursor: int, page: BrowserPage) -> BrowserPage:
        if page.lines is not None:
            return page
        if page.is_list:
            raise WebError(f"Page [{cursor}] is no longer open: search again.")
        return await self._read(page.url)

    def _known(self, url: str) -> BrowserPage | None:
        read = (page for page in self._pages.values() if not page.is_list and page.url == url)
        return next((page for page in read if page.lines is not None), None)

    async def _read(self, url: str) -> BrowserPage:
        self._check(url)
        async with self._loading:
            page = await self._web.read(url)
        self._check(page.url)  # where redirects led to
        return BrowserPage(
            url=page.url,
            title=page.title,
            lines=await _aside(len(page.text), partial(browser_pages.wrap_lines, page.text)),
            links=tuple(Link(url=each) for each in page.links),
        )

    def _check(self, url: str) -> None:
        if not self._domains.allows(url):
            raise WebError("This request does not allow pages of that site.")


async def _aside(size: int, work: Callable[[], T]) -> T:
    return await asyncio.to_thread(work) if size > LONG else work()


_Way = Callable[["WebSearchCaller", "_Call", asyncio.Event], Awaitable[tuple[BrowserPage, int]]]

_WAYS: Mapping[str, _Way] = {
    "web_search": WebSearchCaller._search,
    "open_page": WebSearchCaller._open,
    "find_in_page": WebSearchCaller._find,
}
"""What finds the page of a call, and its first line to show. One that needs an earlier page waits
for the calls before it."""


class _Call:
    """What a model asks for, whatever it wrote, and the item that tells of it."""

    def __init__(self, kind: str, arguments: str) -> None:
        self._arguments = arguments
        self._given = parse_arguments(arguments)
        self.action = {**ACTIONS[kind], **self._told(kind)}

    def _told(self, kind: str) -> Json:
        given = self._given or {}
        query, pattern = given.get("query"), given.get("pattern")
        if kind == "web_search" and isinstance(query, str):
            return {"query": query[:LONGEST], "queries": [query[:LONGEST]]}
        if kind == "find_in_page" and isinstance(pattern, str):
            return {"pattern": pattern[:LONGEST]}
        if kind == "open_page":
            url = self.url()
            return {"url": url and url[:LONGEST]}
        return {}

    def text(self, name: str) -> str:
        """Return what must be given. Raises: WebError."""
        value = self._get(name)
        if not isinstance(value, str) or not value.strip() or len(value) > LONGEST:
            raise WebError(f"`{name}` must be a text of at most {LONGEST} characters.")
        return value.strip()

    def number(self, name: str) -> int | None:
        """Return what may be given; models say -1 for nothing. Raises: WebError."""
        value = self._get(name)
        if isinstance(value, str) and re.fullmatch(r"-?\d{1,9}", value):
            value = int(value)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if value in (None, "") or (isinstance(value, int) and -(10**9) < value < 0):
            return None
        if not isinstance(value, int) or value >= 10**9:
            raise WebError(f"`{name}` must be a number.")
        return value

    def url(self) -> str | None:
        """Return the URL to open, if one is given."""
        value = (self._given or {}).get("id")
        if not isinstance(value, str) or re.fullmatch(r"\s*|-?\d{1,9}", value):
            return None
        return value if "://" in value else f"https://{value}"

    def ended(self, status: str, result: Json) -> d.ToolEnd:
        results = ({"arguments": self._arguments, **result},)
        return d.ToolEnd(status, {"action": self.action, "results": results})

    def failed(self, why: str) -> d.ToolEnd:
        return self.ended("failed", {"text": why})

    def _get(self, name: str) -> Any:
        if self._given is None:
            raise WebError("The arguments are not a JSON object.")
        return self._given.get(name)
