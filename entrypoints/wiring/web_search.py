"""What searches and reads the web for models, as the settings have it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from antiphon.adapters.fetching import HttpFetcher, UrlPolicy
from antiphon.adapters.web.corpus import CorpusWeb
from antiphon.adapters.web.page_reader import PageReader
from antiphon.adapters.web.search_service_web import SearchServiceWeb
from antiphon.adapters.web.search_services import (
    BraveService,
    SearchService,
    SearxngService,
    TavilyService,
)
from antiphon.application.ports import ReadPdf, Web
from antiphon.domain.errors import FetchRefused, SettingsError
from antiphon.entrypoints.settings import Settings, WebSearch
from antiphon.entrypoints.wiring.webhooks import operator_policy

ANSWER_BYTES = 4 * 1024 * 1024
"""The most that is read of what a search service answers."""


def web(settings: Settings, guard: UrlPolicy, read_pdf: ReadPdf) -> Web | None:
    """Return the web, None where it is not asked for; `guard` says which pages may be read.

    Raises: SettingsError.
    """
    reader = PageReader(read_pdf)
    match settings.web_search:
        case "off":
            return None
        case "corpus":
            return _corpus(settings.web, reader)
        case kind:
            return _searched(_SERVICES[kind](settings.web), settings, guard, reader)


def _corpus(given: WebSearch, reader: PageReader) -> Web:
    if given.folder is None:
        raise SettingsError("The web search corpus needs web.folder: the folder of its pages.")
    return CorpusWeb(
        given.folder,
        reader,
        base_url=given.folder_url,
        most=given.results,
        max_bytes=given.max_page_kb * 1024,
        timeout_s=given.timeout_s,
    )


def _searched(
    service: SearchService, settings: Settings, guard: UrlPolicy, reader: PageReader
) -> Web:
    given = settings.web
    try:
        to_service = operator_policy([service.url])
    except FetchRefused as error:
        raise SettingsError(f"The search service at web.url cannot be asked: {error}") from None
    return SearchServiceWeb(
        service,
        reader,
        # No redirects: the key is for this address alone.
        service_fetcher=HttpFetcher(
            to_service,
            max_bytes=ANSWER_BYTES,
            timeout_s=given.timeout_s,
            max_redirects=0,
            reads=("GET", "POST"),
        ),
        page_fetcher=HttpFetcher(
            guard,
            max_bytes=given.max_page_kb * 1024,
            timeout_s=given.timeout_s,
            max_redirects=settings.fetch.redirects,
        ),
        most=given.results,
        timeout_s=given.timeout_s,
    )


def _searxng(given: WebSearch) -> SearchService:
    if given.url is None:
        raise SettingsError("The web search searxng needs web.url: the address of your SearXNG.")
    return SearxngService(given.url)


def _brave(given: WebSearch) -> SearchService:
    return BraveService(_key(given, "brave"), given.url)


def _tavily(given: WebSearch) -> SearchService:
    return TavilyService(_key(given, "tavily"), given.url)


def _key(given: WebSearch, service: str) -> str:
    if given.key is None:
        raise SettingsError(
            f"The web search {service} needs web.key, your key for it: set ANTIPHON_WEB__KEY."
        )
    return given.key


_SERVICES: Mapping[str, Callable[[WebSearch], SearchService]] = {
    "searxng": _searxng,
    "brave": _brave,
    "tavily": _tavily,
}
