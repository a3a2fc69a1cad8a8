"""Build the fetcher for URLs in requests."""

from __future__ import annotations

import ipaddress

from antiphon.adapters.fetching import HttpFetcher, NoFetcher, UrlPolicy
from antiphon.application.ports import Fetcher
from antiphon.entrypoints.settings import Settings


def fetcher(settings: Settings) -> Fetcher:
    """Return the fetcher for URLs in requests. It refuses all of them if fetching is off."""
    fetch = settings.fetch
    if not fetch.urls:
        return NoFetcher()
    return HttpFetcher(
        url_policy(settings),
        max_bytes=fetch.max_bytes,
        timeout_s=fetch.timeout_s,
        max_redirects=fetch.redirects,
    )


def url_policy(settings: Settings) -> UrlPolicy:
    fetch = settings.fetch
    return UrlPolicy(hosts=fetch.hosts, private=tuple(map(ipaddress.ip_network, fetch.private)))
