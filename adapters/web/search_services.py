"""Search services: how each is asked, and what it answers. No I/O: see `searched.py`.

SearxngService   a SearXNG of the operator's, https://docs.searxng.org/dev/search_api.html
BraveService     https://api-dashboard.search.brave.com/app/documentation/web-search
TavilyService    https://docs.tavily.com/documentation/api-reference/endpoint/search
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from typing import Protocol
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from antiphon.application.ports import DomainFilter, Json, WebResult

MAX_QUERY_LENGTH = 400
"""What Brave and Tavily take; no person asks for more."""

MAX_RESULTS = 20
"""Pages that are asked for where some of them may not be shown."""


class SearchRequest(Struct, frozen=True, kw_only=True):
    """A request for a search service."""

    url: str
    method: str = "GET"
    headers: Mapping[str, str] = {}
    content: bytes = b""


class SearchService(Protocol):
    """A search service at its address, with its key."""

    name: str

    url: str
    """Where it is asked; no other address is."""

    when_refused: str
    """What an operator should look at when the service answers 401 or 403."""

    def build_request(
        self, query: str, limit: int, domains: DomainFilter, location: Json | None
    ) -> SearchRequest:
        """Return the request for this query, in one line. What it finds is filtered later."""

    def found(self, answer: bytes) -> list[WebResult]:
        """Return what the service has found. Raises: msgspec.DecodeError."""


class _Result(Struct):
    """What all of them call alike."""

    url: str
    title: str | None = None
    content: str | None = None
    description: str | None = None
    extra_snippets: list[str] = []

    def as_found(self) -> WebResult:
        text = " … ".join(filter(None, (self.content, self.description, *self.extra_snippets)))
        return WebResult(url=self.url, title=self.title or "", text=text)


class _Results(Struct):
    results: list[_Result] = []


class SearxngService:
    """Its operator has to allow JSON: `search.formats` of its settings.yml."""

    name = "SearXNG"
    when_refused = "`json` must be among search.formats in its settings.yml"

    def __init__(self, url: str) -> None:
        self.url = f"{url.rstrip('/')}/search"

    def build_request(
        self,
        query: str,
        limit: int,  # noqa: ARG002
        domains: DomainFilter,
        location: Json | None,  # noqa: ARG002
    ) -> SearchRequest:
        fields = {"q": narrowed(query, domains), "format": "json"}
        return SearchRequest(
            url=f"{self.url}?{urlencode(fields)}", headers={"accept": "application/json"}
        )

    def found(self, answer: bytes) -> list[WebResult]:
        return [each.as_found() for each in msgspec.json.decode(answer, type=_Results).results]


class _BraveAnswer(Struct):
    web: _Results | None = None


class BraveService:
    """`url` is where its API is; the key goes into a header."""

    name = "Brave"
    when_refused = "web.key must be a key for Brave's Web Search API"

    def __init__(self, key: str, url: str | None = None) -> None:
        self.url = url or "https://api.search.brave.com/res/v1/web/search"
        self._key = key

    def build_request(
        self, query: str, limit: int, domains: DomainFilter, location: Json | None
    ) -> SearchRequest:
        fields = {
            "q": narrowed(query, domains),
            "count": MAX_RESULTS if domains.allowed or domains.blocked else min(limit, MAX_RESULTS),
            "text_decorations": "false",
            "result_filter": "web",
        }
        headers = {"accept": "application/json", "x-subscription-token": self._key}
        return SearchRequest(
            url=f"{self.url}?{urlencode(fields)}", headers={**headers, **_place(location or {})}
        )

    def found(self, answer: bytes) -> list[WebResult]:
        web = msgspec.json.decode(answer, type=_BraveAnswer).web
        return [_without_tags(each.as_found()) for each in web.results] if web else []


class TavilyService:
    """`url` is where its API is; the key goes into a header."""

    name = "Tavily"
    when_refused = "web.key must be a key for Tavily"

    def __init__(self, key: str, url: str | None = None) -> None:
        self.url = url or "https://api.tavily.com/search"
        self._key = key

    def build_request(
        self,
        query: str,
        limit: int,
        domains: DomainFilter,
        location: Json | None,  # noqa: ARG002
    ) -> SearchRequest:
        content = {
            "query": query,
            "max_results": min(limit, MAX_RESULTS),
            "include_domains": domains.allowed,
            "exclude_domains": domains.blocked,
        }
        return SearchRequest(
            url=self.url,
            method="POST",
            headers={"content-type": "application/json", "authorization": f"Bearer {self._key}"},
            content=msgspec.json.encode(content),
        )

    def found(self, answer: bytes) -> list[WebResult]:
        return [each.as_found() for each in msgspec.json.decode(answer, type=_Results).results]


def narrowed(query: str, domains: DomainFilter) -> str:
    """Return the query for these domains, in words that search engines know, if that is not long.

    >>> narrowed("bells", DomainFilter(allowed=("a.org", "b.org"), blocked=("c.org",)))
    'bells (site:a.org OR site:b.org) -site:c.org'
    """
    allowed = " OR ".join(f"site:{each}" for each in domains.allowed)
    parts = (
        query,
        f"({allowed})" if len(domains.allowed) > 1 else allowed,
        *(f"-site:{each}" for each in domains.blocked),
    )
    told = " ".join(filter(None, parts))
    return told if len(told) <= MAX_QUERY_LENGTH else query


_PLACES: Sequence[tuple[str, str]] = (
    ("city", "x-loc-city"),
    ("region", "x-loc-state-name"),
    ("country", "x-loc-country"),
    ("timezone", "x-loc-timezone"),
)


def _place(location: Json) -> dict[str, str]:
    """Return the headers that tell Brave where the user is, of what a header can hold."""
    told = ((header, location.get(name)) for name, header in _PLACES)
    return {
        header: value
        for header, value in told
        if isinstance(value, str) and re.fullmatch(r"[ -~]{1,100}", value)
    }


def _without_tags(found: WebResult) -> WebResult:
    title, text = (
        html.unescape(re.sub(r"</?\w{1,10}>", "", each)) for each in (found.title, found.text)
    )
    return WebResult(url=found.url, title=title, text=text)
