"""Web search with a search service; the guarded fetcher reads the pages."""

from __future__ import annotations

import http
import logging
from collections.abc import Sequence
from urllib.parse import urldefrag

import msgspec

from antiphon.adapters.web.page_reader import PageReader
from antiphon.adapters.web.search_services import (
    MAX_QUERY_LENGTH,
    SearchService,
    SearchServiceRequest,
)
from antiphon.adapters.web.text import filter_results, one_line
from antiphon.adapters.web.time_limit import time_limit
from antiphon.application.ports import (
    DomainFilter,
    Fetcher,
    FetchResult,
    Json,
    Web,
    WebPage,
    WebResult,
)
from antiphon.domain.errors import FetchError, WebError

logger = logging.getLogger("antiphon.web")

REFUSED_STATUSES = (401, 402, 403, 422, 432, 433)
"""Brave answers 422 to a key that is none; Tavily 432 and 433 when the plan is used up."""
BUSY_STATUSES = (429, 503)
ACCEPT = "text/html,text/markdown,text/plain,application/pdf;q=0.9,*/*;q=0.1"


class SearchServiceWeb(Web):
    """Searches with `service` through `service_fetcher`, and reads pages through `page_fetcher`.

    A search or a read takes at most `timeout_s`.
    """

    def __init__(
        self,
        service: SearchService,
        reader: PageReader,
        *,
        service_fetcher: Fetcher,
        page_fetcher: Fetcher,
        limit: int,
        timeout_s: float,
    ) -> None:
        self._service = service
        self._reader = reader
        self._service_fetcher = service_fetcher
        self._page_fetcher = page_fetcher
        self._limit = limit
        self._timeout_s = timeout_s

    async def start(self) -> None:
        # Does not try the service: a search costs money, and the server must start without it.
        self._reader.start()

    async def aclose(self) -> None:
        await self._reader.aclose()

    async def search(
        self,
        query: str,
        *,
        tenant: str = "",
        limit: int,
        domains: DomainFilter,
        location: Json | None = None,
    ) -> Sequence[WebResult]:
        limit = min(limit, self._limit)
        query = one_line(query, MAX_QUERY_LENGTH)
        if not query:
            return []
        request = self._service.build_request(query, limit, domains, location)
        async with time_limit(self._timeout_s):
            answer = await self._send(request, tenant)
        try:
            results = self._service.parse_results(answer)
        except (msgspec.DecodeError, ValueError) as error:
            raise self._to_error(f"its answer cannot be read: {error}") from None
        return filter_results(results, limit=limit, domains=domains)

    async def read(self, url: str, *, tenant: str = "") -> WebPage:
        async with time_limit(self._timeout_s):
            page = await self._fetch_page(url, tenant)
            content_type = page.headers.get("content-type", "")
            return await self._reader.read(
                page.content, content_type, urldefrag(page.url).url, tenant=tenant
            )

    async def _send(self, request: SearchServiceRequest, tenant: str) -> bytes:
        try:
            answer = await self._service_fetcher.fetch(
                request.url,
                tenant=tenant,
                method=request.method,
                headers=request.headers,
                content=request.content,
            )
        except FetchError as error:
            raise self._to_error(str(error)) from None
        if answer.status in REFUSED_STATUSES:
            raise self._to_error(
                f"it answers {answer.status}; {self._service.refusal_hint}",
                "The search service refuses to search; asking again will not help.",
            )
        if answer.status in BUSY_STATUSES:
            raise self._to_error(
                f"it answers {answer.status}",
                "The search service accepts no more searches for now.",
            )
        if answer.status != http.HTTPStatus.OK:
            raise self._to_error(f"it answers {answer.status}")
        return answer.content

    def _to_error(self, reason: str, message: str = "The search service failed.") -> WebError:
        """Log the reason for the operator, and return the error for the model."""
        logger.warning("%s could not search: %s", self._service.name, reason)
        return WebError(message)

    async def _fetch_page(self, url: str, tenant: str) -> FetchResult:
        try:
            page = await self._page_fetcher.fetch(url, tenant=tenant, headers={"accept": ACCEPT})
        except FetchError as error:
            raise WebError(str(error)) from None
        if not http.HTTPStatus.OK <= page.status < http.HTTPStatus.MULTIPLE_CHOICES:
            raise WebError(f"The page could not be read: status {_describe_status(page.status)}.")
        return page


def _describe_status(status: int) -> str:
    """Return a status with its standard phrase.

    >>> _describe_status(404), _describe_status(799)
    ('404 (Not Found)', '799')
    """
    try:
        return f"{status} ({http.HTTPStatus(status).phrase})"
    except ValueError:
        return str(status)
