"""Build the web search that the settings choose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from antiphon.adapters.url_policy import UrlPolicy
from antiphon.adapters.web.corpus import CorpusWeb
from antiphon.adapters.web.page_reader import PageReader
from antiphon.adapters.web.search_service_web import SearchServiceWeb
from antiphon.adapters.web.search_services import (
    BraveService,
    SearchService,
    SearxngService,
    TavilyService,
)
from antiphon.application.ports import Fetcher, ReadPdf, Web
from antiphon.domain.errors import FetchRefused, SettingsError
from antiphon.entrypoints.settings import Settings, WebSearchSettings
from antiphon.entrypoints.wiring.fetching import egress, http_fetcher
from antiphon.entrypoints.wiring.own_classes import Section, check_port
from antiphon.entrypoints.wiring.own_ports import load_own
from antiphon.entrypoints.wiring.webhooks import operator_policy

MAX_ANSWER_BYTES = 4 * 1024 * 1024
"""The limit for one answer of a search service."""


def web(settings: Settings, policy: UrlPolicy, read_pdf: ReadPdf) -> Web | None:
    """Return the web search, or None if it is off; `policy` limits the pages that may be read.

    Raises: SettingsError.
    """
    reader = PageReader(read_pdf)
    match settings.web_search:
        case "off":
            return None
        case "corpus":
            return _corpus(settings.web, reader)
        case name if name in _SERVICES:
            return _search_service(_SERVICES[name](settings.web), settings, policy, reader)
        case _:
            return _own(settings, policy, reader)


def _own(settings: Settings, policy: UrlPolicy, reader: PageReader) -> Web:
    """Return the operator's own Web, or a web on the operator's own SearchService."""
    own: Any = load_own(
        settings,
        "web_search",
        section=Section("web", settings.web),
        page_reader=reader,
        page_fetcher=_page_fetcher(settings, policy),
    )
    what = f"The web search {settings.web_search!r}"
    if hasattr(own, "build_request"):
        check_port(own, SearchService, what=what)
        return _search_service(own, settings, policy, reader)
    check_port(own, Web, what=what)
    return cast(Web, own)


def _corpus(options: WebSearchSettings, reader: PageReader) -> Web:
    if options.folder is None:
        raise SettingsError("The corpus web search needs web.folder: the folder of its pages.")
    return CorpusWeb(
        options.folder,
        reader,
        base_url=options.folder_url,
        limit=options.results,
        max_bytes=options.max_page_kb * 1024,
        timeout_s=options.timeout_s,
    )


def _search_service(
    service: SearchService, settings: Settings, policy: UrlPolicy, reader: PageReader
) -> Web:
    options = settings.web
    try:
        service_policy = operator_policy([service.url])
    except FetchRefused as error:
        raise SettingsError(f"The search service at web.url cannot be used: {error}") from None
    return SearchServiceWeb(
        service,
        reader,
        # No redirects: the key is only for this address.
        service_fetcher=http_fetcher(
            service_policy,
            max_bytes=MAX_ANSWER_BYTES,
            timeout_s=options.timeout_s,
            max_redirects=0,
            reads=("GET", "POST"),
            egress=egress(settings),
        ),
        page_fetcher=_page_fetcher(settings, policy),
        limit=options.results,
        timeout_s=options.timeout_s,
    )


def _page_fetcher(settings: Settings, policy: UrlPolicy) -> Fetcher:
    return http_fetcher(
        policy,
        max_bytes=settings.web.max_page_kb * 1024,
        timeout_s=settings.web.timeout_s,
        max_redirects=settings.fetch.redirects,
        egress=egress(settings).without_certificate,
    )


def _searxng(options: WebSearchSettings) -> SearchService:
    if options.url is None:
        raise SettingsError("The searxng web search needs web.url: the address of your SearXNG.")
    return SearxngService(options.url)


def _brave(options: WebSearchSettings) -> SearchService:
    return BraveService(_key(options, "brave"), options.url)


def _tavily(options: WebSearchSettings) -> SearchService:
    return TavilyService(_key(options, "tavily"), options.url)


def _key(options: WebSearchSettings, service: str) -> str:
    if options.key is None:
        raise SettingsError(
            f"The {service} web search needs web.key, your key for it: set ANTIPHON_WEB__KEY."
        )
    return options.key


_SERVICES: Mapping[str, Callable[[WebSearchSettings], SearchService]] = {
    "searxng": _searxng,
    "brave": _brave,
    "tavily": _tavily,
}
