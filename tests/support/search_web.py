"""A web of a sink: it is the search service and holds the pages, and nothing else is reached."""

from __future__ import annotations

import ipaddress
from typing import Any

import httpx
from tests.support.loopback_server import LoopbackServer

from antiphon.adapters.fetching import HttpFetcher
from antiphon.adapters.pdf import PdfReader
from antiphon.adapters.url_policy import UrlPolicy
from antiphon.adapters.web.page_reader import PageReader
from antiphon.adapters.web.search_service_web import SearchServiceWeb
from antiphon.adapters.web.search_services import SearchService

LOOPBACK = ipaddress.ip_network("127.0.0.0/8")
TRUST = httpx.create_ssl_context(trust_env=False)  # once: it takes a while


def searched(
    sink: LoopbackServer,
    service: SearchService,
    *,
    timeout_s: float = 10.0,
    max_bytes: int = 100_000,
    pages: UrlPolicy | None = None,
    **page_fetcher: Any,
) -> SearchServiceWeb:
    here = UrlPolicy(hosts=[f"127.0.0.1:{sink.port}"], private=[LOOPBACK])
    limits: Any = {"max_bytes": max_bytes, "timeout_s": timeout_s, "ssl_context": TRUST}
    return SearchServiceWeb(
        service,
        PageReader(PdfReader()),
        service_fetcher=HttpFetcher(here, max_redirects=0, reads=("GET", "POST"), **limits),
        page_fetcher=HttpFetcher(pages or here, max_redirects=2, **limits, **page_fetcher),
        limit=10,
        timeout_s=timeout_s,
    )
