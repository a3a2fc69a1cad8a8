"""The requests and answers of search services. The I/O is in search_service_web.py.

SearxngService   the operator's own SearXNG, https://docs.searxng.org/dev/search_api.html
BraveService     https://api-dashboard.search.brave.com/app/documentation/web-search
TavilyService    https://docs.tavily.com/documentation/api-reference/endpoint/search
"""

from __future__ import annotations

import html
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from antiphon.application.ports import DomainFilter, Json, WebResult

MAX_QUERY_LENGTH = 400
"""The limit of Brave and Tavily."""

MAX_RESULTS = 20
"""The number of results to request if the domain filter may remove some."""


class SearchServiceRequest(Struct, frozen=True, kw_only=True):
    """An HTTP request to a search service."""

    url: str
    method: str = "GET"
    headers: Mapping[str, str] = {}
    content: bytes = b""


class SearchService(Protocol):
    """A search service with its URL and key."""

    name: str

    url: str
    """The only URL that requests go to."""

    refusal_hint: str
    """The advice for the operator if the service answers 401 or 403."""

    @abstractmethod
    def build_request(
        self, query: str, limit: int, domains: DomainFilter, location: Json | None
    ) -> SearchServiceRequest:
        """Return the request for a query of one line. The results are filtered later."""

    @abstractmethod
    def parse_results(self, answer: bytes) -> list[WebResult]:
        """Return the results in an answer. Raises: msgspec.DecodeError."""


class _Results(Struct):
    results: list[Any] | None = None
    unresponsive_engines: list[Any] = []

    def to_web_results(self) -> list[WebResult]:
        """Return the results that can be read; a service mixes others in, such as answers and maps.

        Raises: msgspec.DecodeError if there are results, and none can be read, or if there are none
        because the engines that the service asks did not answer.
        """
        rows = self.results or []
        found = [result for result in map(_to_web_result, rows) if result is not None]
        if rows and not found:
            raise msgspec.DecodeError("no result has a URL")
        if not rows and self.unresponsive_engines:
            raise msgspec.DecodeError(f"these engines did not answer: {self.unresponsive_engines}")
        return found


def _to_web_result(row: Any) -> WebResult | None:
    """Return a result by the fields that have the same names in all services."""
    if not isinstance(row, dict) or not isinstance(row.get("url"), str):
        return None
    more = row.get("extra_snippets")
    texts = [row.get("content"), row.get("description"), *(more if isinstance(more, list) else ())]
    text = " … ".join(text for text in texts if text and isinstance(text, str))
    title = row.get("title")
    return WebResult(url=row["url"], title=title if isinstance(title, str) else "", text=text)


class SearxngService:
    """A SearXNG, which must allow JSON in `search.formats` of its settings.yml."""

    name = "SearXNG"
    refusal_hint = "`json` must be among search.formats in its settings.yml"

    def __init__(self, url: str) -> None:
        self.url = f"{url.rstrip('/')}/search"

    def build_request(
        self,
        query: str,
        limit: int,  # noqa: ARG002
        domains: DomainFilter,
        location: Json | None,  # noqa: ARG002
    ) -> SearchServiceRequest:
        fields = {"q": add_sites(query, domains), "format": "json"}
        return SearchServiceRequest(
            url=f"{self.url}?{urlencode(fields)}", headers={"accept": "application/json"}
        )

    def parse_results(self, answer: bytes) -> list[WebResult]:
        return msgspec.json.decode(answer, type=_Results).to_web_results()


class _BraveAnswer(Struct):
    web: _Results | None = None


class BraveService:
    """Brave's Web Search API. `url` replaces its default URL."""

    name = "Brave"
    refusal_hint = "web.key must be a key for Brave's Web Search API"

    def __init__(self, key: str, url: str | None = None) -> None:
        self.url = url or "https://api.search.brave.com/res/v1/web/search"
        self._key = key

    def build_request(
        self, query: str, limit: int, domains: DomainFilter, location: Json | None
    ) -> SearchServiceRequest:
        fields = {
            "q": add_sites(query, domains),
            "count": MAX_RESULTS if domains.allowed or domains.blocked else min(limit, MAX_RESULTS),
            "text_decorations": "false",
            "result_filter": "web",
        }
        headers = {"accept": "application/json", "x-subscription-token": self._key}
        return SearchServiceRequest(
            url=f"{self.url}?{urlencode(fields)}",
            headers={**headers, **_location_headers(location or {})},
        )

    def parse_results(self, answer: bytes) -> list[WebResult]:
        web = msgspec.json.decode(answer, type=_BraveAnswer).web
        return [_remove_tags(each) for each in web.to_web_results()] if web else []


class TavilyService:
    """Tavily's search API. `url` replaces its default URL."""

    name = "Tavily"
    refusal_hint = "web.key must be a key for Tavily"

    def __init__(self, key: str, url: str | None = None) -> None:
        self.url = url or "https://api.tavily.com/search"
        self._key = key

    def build_request(
        self,
        query: str,
        limit: int,
        domains: DomainFilter,
        location: Json | None,  # noqa: ARG002
    ) -> SearchServiceRequest:
        content = {
            "query": query,
            "max_results": min(limit, MAX_RESULTS),
            "include_domains": domains.allowed,
            "exclude_domains": domains.blocked,
        }
        return SearchServiceRequest(
            url=self.url,
            method="POST",
            headers={"content-type": "application/json", "authorization": f"Bearer {self._key}"},
            content=msgspec.json.encode(content),
        )

    def parse_results(self, answer: bytes) -> list[WebResult]:
        return msgspec.json.decode(answer, type=_Results).to_web_results()


def add_sites(query: str, domains: DomainFilter) -> str:
    """Return the query with `site:` operators for the domains, unless that is too long.

    >>> add_sites("bells", DomainFilter(allowed=("a.org", "b.org"), blocked=("c.org",)))
    'bells (site:a.org OR site:b.org) -site:c.org'
    """
    allowed = " OR ".join(f"site:{domain}" for domain in domains.allowed)
    parts = (
        query,
        f"({allowed})" if len(domains.allowed) > 1 else allowed,
        *(f"-site:{domain}" for domain in domains.blocked),
    )
    query_with_sites = " ".join(filter(None, parts))
    return query_with_sites if len(query_with_sites) <= MAX_QUERY_LENGTH else query


_LOCATION_HEADERS: Sequence[tuple[str, str]] = (
    ("city", "x-loc-city"),
    ("region", "x-loc-state-name"),
    ("country", "x-loc-country"),
    ("timezone", "x-loc-timezone"),
)


def _location_headers(location: Json) -> dict[str, str]:
    """Return Brave's headers for the user's location, without values that a header cannot hold."""
    values = ((header, location.get(name)) for name, header in _LOCATION_HEADERS)
    return {
        header: value
        for header, value in values
        if isinstance(value, str) and re.fullmatch(r"[ -~]{1,100}", value)
    }


def _remove_tags(result: WebResult) -> WebResult:
    title, text = (
        html.unescape(re.sub(r"</?\w{1,10}>", "", field)) for field in (result.title, result.text)
    )
    return WebResult(url=result.url, title=title, text=text)
