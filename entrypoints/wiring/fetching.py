"""What may be fetched when a request names a URL."""

from __future__ import annotations

import ipaddress

from antiphon.adapters.fetching import HttpFetcher, NoFetcher, UrlPolicy
from antiphon.application.ports import (
    Fetcher,
)
from antiphon.entrypoints.settings import Settings


def fetcher(settings: Settings) -> Fetcher:
    """Return the way out, or what stands in its place where there is none."""
    fetch = settings.fetch
    if not fetch.urls:
        return NoFetcher()
    return HttpFetcher(
        guard(settings),
        max_bytes=fetch.max_bytes,
        timeout_s=fetch.timeout_s,
        max_redirects=fetch.redirects,
    )


def guard(settings: Settings) -> UrlPolicy:
    fetch = settings.fetch
    return UrlPolicy(hosts=fetch.hosts, private=tuple(map(ipaddress.ip_network, fetch.private)))
