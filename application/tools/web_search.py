"""Web search: a browser for each response, which searches, opens pages and finds text in them.

The item of a call keeps what the model saw (`results`). A later prompt repeats it word for word,
and a later response knows which page each number means.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from antiphon.application.ports import DomainFilter, Web
from antiphon.application.tools.calls import SingleItemCaller, ToolCaller
from antiphon.application.tools.citations import CitationSource
from antiphon.application.tools.hosted import ToolProvider
from antiphon.domain import deltas as d
from antiphon.domain import items as i
from antiphon.domain.content import Annotation, UrlCitation
from antiphon.domain.errors import RequestError, WebError
from antiphon.domain.json import Json
from antiphon.domain.offers.offer import ToolDefinition
from antiphon.domain.retrieval import browser_pages
from antiphon.domain.retrieval.browser_pages import BrowserPage, Link
from antiphon.domain.tools import WEB_KINDS, AnyWebSearch, RequestTool, parse_arguments

T = TypeVar("T")

MAX_DOMAINS = 100
MAX_RESULTS = 20
DEFAULT_RESULTS = 10
"""Pages that a search shows if the model names no number."""

SHOWN_CHARACTERS = {"low": 2000, "medium": 4000, "high": 12_000}
"""Characters of a page that one call shows, by `search_context_size`. A token has about four, and
gpt-oss's own browser shows 1024 tokens."""

MAX_TEXT_LENGTH = 2000
"""Characters of a query, a URL or a pattern."""

MAX_OPEN_PAGES = 8
"""Pages whose text stays in memory; an older page is loaded again."""

MIN_THREAD_CHARACTERS = 50_000
"""Pages over this size, which take about a millisecond, are wrapped and searched in a thread."""

MAX_CONCURRENT_LOADS = 4
"""Searches and pages that one browser loads side by side: fewer than the calls that may run
(`budgets`), since responses share the fetcher's slots and search services limit requests."""

_CITATION = re.compile(r"\s*(\d{1,6})†L(\d{1,7})(?:\s*-\s*L?\d{1,7})?\s*")

INITIAL_ACTIONS: Mapping[str, Json] = {
    "web_search": {"type": "search", "query": "", "queries": []},
    "open_page": {"type": "open_page", "url": None},
    "find_in_page": {"type": "find_in_page", "url": "", "pattern": ""},
}
"""The action of a call's item before the call's arguments are known."""


class WebSearchProvider(ToolProvider):
    """Provides each response with its browser."""

    tool_types = ("web_search",)

    def __init__(self, web: Web) -> None:
        self._web = web

    def handles(self, tool: RequestTool) -> bool:
        # A request that allows no external access gets no tool that needs it.
        forbids_external = isinstance(tool, AnyWebSearch) and tool.external_web_access is False
        return isinstance(tool, AnyWebSearch) and not (forbids_external and self._web.is_external)

    async def callers(
        self,
        tools: Sequence[ToolDefinition],
        conversation: Sequence[i.Item],
        *,
        tenant: str,
    ) -> Mapping[str, ToolCaller]:
        options = [_parse_options(each) for each in tools]
        caller = WebSearchCaller(
            self._web, *options[-1], _pages_shown_in(conversation), tenant=tenant
        )
        return dict.fromkeys(WEB_KINDS, caller)


def _parse_options(definition: ToolDefinition) -> tuple[int, DomainFilter, Json | None]:
    """Return the characters to show at a time, the allowed domains and the location.

    Raises: RequestError.
    """
    tool, path = definition.tool, definition.path
    assert isinstance(tool, AnyWebSearch)
    filters = tool.filters or {}
    allowed, blocked = (
        _parse_domains(filters.get(f"{name}_domains"), f"{path}.filters.{name}_domains")
        for name in ("allowed", "blocked")
    )
    location = tool.user_location
    for name, value in (location or {}).items():
        is_valid = value is None or (isinstance(value, str) and len(value) <= MAX_TEXT_LENGTH)
        if not is_valid or (name == "type" and value not in (None, "approximate")):
            raise RequestError(
                "A location has the type 'approximate', and its other fields are strings of at "
                f"most {MAX_TEXT_LENGTH} characters.",
                param=f"{path}.user_location.{name[:100]}",
                code="invalid_value",
            )
    size = SHOWN_CHARACTERS[tool.search_context_size or "medium"]
    return size, DomainFilter(allowed=allowed, blocked=blocked), location


def _parse_domains(value: Any, path: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > MAX_DOMAINS:
        raise RequestError(f"Name up to {MAX_DOMAINS} domains.", param=path, code="invalid_value")
    for position, domain in enumerate(value):
        if not isinstance(domain, str) or not re.fullmatch(r"[^\s/:@]{1,253}", domain):
            raise RequestError(
                "A domain is a name like 'example.org', without 'https://' and without a path.",
                param=f"{path}[{position}]",
                code="invalid_value",
            )
    return tuple(value)


class _ShownPage(Struct, frozen=True, kw_only=True):
    """The fields of an item's result that describe the page."""

    cursor: Annotated[int, Meta(ge=0, le=999_999)]
    url: str
    title: str
    links: tuple[Link, ...] | None = None


def _pages_shown_in(conversation: Sequence[i.Item]) -> dict[int, BrowserPage]:
    """Return the pages that earlier calls have shown, by their number."""
    return _pages_in(
        item.results or () for item in conversation if isinstance(item, i.WebSearchCall)
    )


def _pages_in(results_of_calls: Iterable[Sequence[Json]]) -> dict[int, BrowserPage]:
    pages: dict[int, BrowserPage] = {}
    for results in results_of_calls:
        if results:
            try:
                shown_page = msgspec.convert(results[0], _ShownPage)
            except msgspec.ValidationError:
                continue  # the call failed, or this server did not write the item
            pages[shown_page.cursor] = BrowserPage(
                url=shown_page.url,
                title=shown_page.title,
                lines=None,
                links=shown_page.links or (),
                is_list=shown_page.links is not None,
            )
    return pages


class WebSearchCaller(SingleItemCaller, CitationSource):
    """The browser of one response: shows `size` characters of a page at a time.

    Calls run side by side. Their pages are numbered in the order of the calls, so that a call can
    refer to the page of the one before it.
    """

    step = "searching"

    def __init__(
        self,
        web: Web,
        size: int,
        domains: DomainFilter,
        location: Json | None,
        pages: Mapping[int, BrowserPage],
        *,
        tenant: str,
    ) -> None:
        self._web = web
        self._tenant = tenant
        self._size = size
        self._domains = domains
        self._location = location
        self._pages = dict(pages)
        self._load_slots = asyncio.Semaphore(MAX_CONCURRENT_LOADS)
        self._latest_call_done = asyncio.Event()
        self._latest_call_done.set()

    def open_item(self, start: d.CallStart) -> d.Delta:
        return d.ToolStart("web_search_call", {"action": INITIAL_ACTIONS[start.kind]})

    def restore(self, start: d.CallStart, arguments: str, output: Sequence[d.Delta]) -> None:  # noqa: ARG002
        ends = [delta for delta in output if isinstance(delta, d.ToolEnd)]
        self._pages |= _pages_in(end.fields.get("results", ()) for end in ends)

    async def may_repeat(self, start: d.CallStart, arguments: str) -> bool:  # noqa: ARG002
        return True

    def refuse(self, start: d.CallStart, arguments: str, reason: str) -> Sequence[d.Delta]:
        return [_Call(start.kind, arguments).fail(reason)]

    def cite(self, words: str, start: int, end: int, /) -> Annotation | None:
        match = _CITATION.fullmatch(words)
        page = self._pages.get(int(match[1])) if match else None
        cited = page.source_of(int(match[2])) if match and page else None
        # Pages of earlier responses come from the client, so their URLs may be anything.
        if cited is None or not cited[0].startswith(("https://", "http://")):
            return None
        return UrlCitation(start_index=start, end_index=end, url=cited[0], title=cited[1])

    async def run(self, start: d.CallStart, arguments: str) -> d.ToolEnd:
        previous_done, done = self._latest_call_done, asyncio.Event()
        self._latest_call_done = done
        call = _Call(start.kind, arguments)
        try:
            try:
                page, first_line = await _ACTION_METHODS[start.kind](self, call, previous_done)
                await previous_done.wait()
                return self._show(call, page, first_line)
            except WebError as error:
                await previous_done.wait()
                return call.fail(str(error))
        finally:
            done.set()

    def _show(self, call: _Call, page: BrowserPage, first_line: int) -> d.ToolEnd:
        cursor = max(self._pages, default=-1) + 1
        count = call.number("num_lines") or None
        text = browser_pages.render_page(
            page, cursor, first=first_line, count=count, max_chars=self._size
        )
        self._pages[cursor] = page
        for old in sorted(self._pages)[:-MAX_OPEN_PAGES]:
            if self._pages[old].lines is not None:
                self._pages[old] = replace(self._pages[old], lines=None)
        links = {"links": msgspec.to_builtins(page.links)} if page.is_list else {}
        return call.end(
            "completed",
            {"cursor": cursor, "url": page.url, "title": page.title, "text": text, **links},
        )

    # --- the actions of the model ---------------------------------------------------------------

    async def _search(self, call: _Call, previous_done: asyncio.Event) -> tuple[BrowserPage, int]:  # noqa: ARG002
        query = call.text("query")
        requested_results = call.number("topn")
        limit = DEFAULT_RESULTS
        if requested_results is not None:
            limit = min(max(requested_results, 1), MAX_RESULTS)
        async with self._load_slots:
            results = await self._web.search(
                query,
                tenant=self._tenant,
                limit=limit,
                domains=self._domains,
                location=self._location,
            )
        call.action["sources"] = [{"type": "url", "url": each.url} for each in results]
        return browser_pages.search_results_page(
            query, [(each.url, each.title, each.text) for each in results]
        ), 0

    async def _open(self, call: _Call, previous_done: asyncio.Event) -> tuple[BrowserPage, int]:
        if (url := call.url()) is not None:
            if len(url) > MAX_TEXT_LENGTH:
                raise WebError(f"A URL may have at most {MAX_TEXT_LENGTH} characters.")
            return await self._load(url), call.number("loc") or 0
        await previous_done.wait()
        cursor, page = self._page_of(call)
        link_number, link_line = call.number("id"), 0
        if link_number is None:
            call.action["url"] = page.url or None
            page = await self._with_text(cursor, page)
        elif link_number < len(page.links):
            link = page.links[link_number]
            call.action["url"], link_line = link.url, link.leads_to
            page = self._find_loaded(link.url) or await self._load(link.url)
        else:
            raise WebError(f"There is no link {link_number} on page [{cursor}].")
        requested_line = call.number("loc")
        return page, link_line if requested_line is None else requested_line

    async def _find(self, call: _Call, previous_done: asyncio.Event) -> tuple[BrowserPage, int]:
        pattern = call.text("pattern")
        await previous_done.wait()
        cursor, page = self._page_of(call)
        call.action["url"] = page.url
        if page.is_list:
            raise WebError(f"Page [{cursor}] is a list of results: name the `cursor` of a page.")
        page = await self._with_text(cursor, page)
        size = len(page.lines or ()) * browser_pages.LINE_WIDTH
        find = partial(browser_pages.find_results_page, page, pattern)
        return await _run_by_size(size, find), 0

    def _page_of(self, call: _Call) -> tuple[int, BrowserPage]:
        if not self._pages:
            raise WebError("No page is open yet: search, or open a URL.")
        latest = max(self._pages)
        requested_cursor = call.number("cursor")
        cursor = latest if requested_cursor is None else requested_cursor
        if cursor not in self._pages:
            raise WebError(f"There is no page [{cursor}]; the latest is [{latest}].")
        return cursor, self._pages[cursor]

    async def _with_text(self, cursor: int, page: BrowserPage) -> BrowserPage:
        if page.lines is not None:
            return page
        if page.is_list:
            raise WebError(f"Page [{cursor}] is no longer open: search again.")
        return await self._load(page.url)

    def _find_loaded(self, url: str) -> BrowserPage | None:
        pages = (page for page in self._pages.values() if not page.is_list and page.url == url)
        return next((page for page in pages if page.lines is not None), None)

    async def _load(self, url: str) -> BrowserPage:
        self._check_domain(url)
        async with self._load_slots:
            page = await self._web.read(url, tenant=self._tenant)
        self._check_domain(page.url)  # the end of any redirects
        return BrowserPage(
            url=page.url,
            title=page.title,
            lines=await _run_by_size(len(page.text), partial(browser_pages.wrap_lines, page.text)),
            links=tuple(Link(url=each) for each in page.links),
        )

    def _check_domain(self, url: str) -> None:
        if not self._domains.allows(url):
            raise WebError("This request does not allow pages of that site.")


async def _run_by_size(size: int, work: Callable[[], T]) -> T:
    """Run the work on a text of `size` characters: in a thread if that takes long."""
    return await asyncio.to_thread(work) if size > MIN_THREAD_CHARACTERS else work()


_ActionMethod = Callable[
    ["WebSearchCaller", "_Call", asyncio.Event], Awaitable[tuple[BrowserPage, int]]
]

_ACTION_METHODS: Mapping[str, _ActionMethod] = {
    "web_search": WebSearchCaller._search,
    "open_page": WebSearchCaller._open,
    "find_in_page": WebSearchCaller._find,
}
"""Each returns the page of a call and the first line to show. One that refers to an earlier page
waits until the previous call is done."""


class _Call:
    """The arguments of a call, which may be anything, and the fields of its item."""

    def __init__(self, kind: str, arguments: str) -> None:
        self._raw_arguments = arguments
        self._arguments = parse_arguments(arguments)
        self.action = {**INITIAL_ACTIONS[kind], **self._action_fields(kind)}

    def _action_fields(self, kind: str) -> Json:
        arguments = self._arguments or {}
        query, pattern = arguments.get("query"), arguments.get("pattern")
        if kind == "web_search" and isinstance(query, str):
            return {"query": query[:MAX_TEXT_LENGTH], "queries": [query[:MAX_TEXT_LENGTH]]}
        if kind == "find_in_page" and isinstance(pattern, str):
            return {"pattern": pattern[:MAX_TEXT_LENGTH]}
        if kind == "open_page":
            url = self.url()
            return {"url": url and url[:MAX_TEXT_LENGTH]}
        return {}

    def text(self, name: str) -> str:
        """Return a required string. Raises: WebError."""
        value = self._get(name)
        if not isinstance(value, str) or not value.strip() or len(value) > MAX_TEXT_LENGTH:
            raise WebError(
                f"`{name}` must be a non-blank string of at most {MAX_TEXT_LENGTH} characters."
            )
        return value.strip()

    def number(self, name: str) -> int | None:
        """Return an optional number; models write -1 for none. Raises: WebError."""
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
        """Return the URL to open, if the call names one."""
        value = (self._arguments or {}).get("id")
        if not isinstance(value, str) or re.fullmatch(r"\s*|-?\d{1,9}", value):
            return None
        return value if "://" in value else f"https://{value}"

    def end(self, status: str, result: Json) -> d.ToolEnd:
        results = ({"arguments": self._raw_arguments, **result},)
        return d.ToolEnd(status, {"action": self.action, "results": results})

    def fail(self, reason: str) -> d.ToolEnd:
        return self.end("failed", {"text": reason})

    def _get(self, name: str) -> Any:
        if self._arguments is None:
            raise WebError("The arguments are not a JSON object.")
        return self._arguments.get(name)
