"""The web as a search service finds it, and as the guarded fetcher reads it."""

from __future__ import annotations

import http
import logging
from collections.abc import Sequence
from urllib.parse import urldefrag

import msgspec

from antiphon.adapters.web.page_reader import PageReader
from antiphon.adapters.web.search_services import MAX_QUERY_LENGTH, SearchRequest, SearchService
from antiphon.adapters.web.text import one_line, shown
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

REFUSED = (401, 403)
BUSY = (429, 503)
ACCEPTED = "text/html,text/markdown,text/plain,application/pdf;q=0.9,*/*;q=0.1"


class SearchServiceWeb(Web):
    """`service_fetcher` reaches the search service alone; `page_fetcher` reaches pages.

    `timeout_s` is for each use.
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
        # The service is not asked now: a search costs, and a server must start without it.
        self._reader.start()

    async def aclose(self) -> None:
        await self._reader.aclose()

    async def search(
        self, query: str, *, limit: int, domains: DomainFilter, location: Json | None = None
    ) -> Sequence[WebResult]:
        limit = min(limit, self._limit)
        query = one_line(query, MAX_QUERY_LENGTH)
        if not query:
            return []
        async with time_limit(self._timeout_s):
            answer = await self._answer(
                self._service.build_request(query, limit, domains, location)
            )
        try:
            found = self._service.found(answer)
        except (msgspec.DecodeError, ValueError) as error:
            raise self._failed(f"its answer cannot be read: {error}") from None
        return shown(found, limit=limit, domains=domains)

    async def read(self, url: str) -> WebPage:
        async with time_limit(self._timeout_s):
            page = await self._page(url)
            return await self._reader.read(
                page.content, page.headers.get("content-type", ""), urldefrag(page.url).url
            )

    async def _answer(self, asked: SearchRequest) -> bytes:
        try:
            answer = await self._service_fetcher.fetch(
                asked.url, method=asked.method, headers=asked.headers, content=asked.content
            )
        except FetchError as error:
            raise self._failed(str(error)) from None
        if answer.status in REFUSED:
            raise self._failed(
                f"it answers {answer.status}; {self._service.when_refused}",
                "The search service refuses to search; asking again will not help.",
            )
        if answer.status in BUSY:
            raise self._failed(
                f"it answers {answer.status}",
                "The search service takes no more searches for now.",
            )
        if answer.status != http.HTTPStatus.OK:
            raise self._failed(f"it answers {answer.status}")
        return answer.content

    def _failed(self, reason: str, told: str = "The search service failed.") -> WebError:
        """Return the error for the model; the reason is for the operator."""
        logger.warning("%s could not search: %s", self._service.name, reason)
        return WebError(told)

    async def _page(self, url: str) -> FetchResult:
        try:
            page = await self._page_fetcher.fetch(url, headers={"accept": ACCEPTED})
        except FetchError as error:
            raise WebError(str(error)) from None
        if not http.HTTPStatus.OK <= page.status < http.HTTPStatus.MULTIPLE_CHOICES:
            raise WebError(f"The page could not be read: status {_told(page.status)}.")
        return page


def _told(status: int) -> str:
    """Return a status as people know it.

    >>> _told(404), _told(799)
    ('404 (Not Found)', '799')
    """
    try:
        return f"{status} ({http.HTTPStatus(status).phrase})"
    except ValueError:
        return str(status)
