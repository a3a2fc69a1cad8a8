"""Build the fetcher for URLs in requests."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Collection

from antiphon.adapters.url_policy import NoFetcher, UrlPolicy
from antiphon.application.ports import Fetcher
from antiphon.entrypoints.settings import Settings


def fetcher(settings: Settings) -> Fetcher:
    """Return the fetcher for URLs in requests. It refuses all of them if fetching is off."""
    fetch = settings.fetch
    if not fetch.urls:
        return NoFetcher()
    return http_fetcher(
        url_policy(settings),
        max_bytes=fetch.max_bytes,
        timeout_s=fetch.timeout_s,
        max_redirects=fetch.redirects,
    )


def http_fetcher(
    policy: UrlPolicy,
    *,
    max_bytes: int,
    timeout_s: float,
    max_redirects: int,
    reads: Collection[str] = ("GET",),
    ssl_context: ssl.SSLContext | None = None,
) -> Fetcher:
    """Return a fetcher. Only a server that fetches URLs loads the HTTP client."""
    from antiphon.adapters.fetching import HttpFetcher

    return HttpFetcher(
        policy,
        max_bytes=max_bytes,
        timeout_s=timeout_s,
        max_redirects=max_redirects,
        reads=reads,
        ssl_context=ssl_context,
    )


def url_policy(settings: Settings) -> UrlPolicy:
    fetch = settings.fetch
    return UrlPolicy(hosts=fetch.hosts, private=tuple(map(ipaddress.ip_network, fetch.private)))
