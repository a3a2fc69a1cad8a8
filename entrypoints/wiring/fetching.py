"""Build the fetcher for URLs in requests."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Collection

from antiphon.adapters.outgoing.egress import DIRECT, ClientCertificate, Egress, Proxy
from antiphon.adapters.url_policy import NoFetcher, UrlPolicy
from antiphon.application.ports import Fetcher
from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.settings import Settings


def egress(settings: Settings) -> Egress:
    """Return how connections to the operator's servers are made. Raises: SettingsError."""
    outgoing = settings.outgoing
    if (outgoing.cert is None) != (outgoing.key is None):
        raise SettingsError("outgoing.cert and outgoing.key belong together: set both.")
    if outgoing.no_proxy and outgoing.proxy is None:
        raise SettingsError("outgoing.no_proxy has no effect without outgoing.proxy.")
    certificate = None
    if outgoing.cert is not None and outgoing.key is not None:
        certificate = ClientCertificate(cert=outgoing.cert, key=outgoing.key)
        certificate.load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    proxy = None
    if outgoing.proxy is not None:
        proxy = Proxy(url=outgoing.proxy, direct=outgoing.no_proxy)
    return Egress(proxy=proxy, certificate=certificate)


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
        egress=egress(settings).without_certificate,
    )


def http_fetcher(
    policy: UrlPolicy,
    *,
    max_bytes: int,
    timeout_s: float,
    max_redirects: int,
    reads: Collection[str] = ("GET",),
    ssl_context: ssl.SSLContext | None = None,
    egress: Egress = DIRECT,
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
        egress=egress,
    )


def url_policy(settings: Settings) -> UrlPolicy:
    fetch = settings.fetch
    return UrlPolicy(hosts=fetch.hosts, private=tuple(map(ipaddress.ip_network, fetch.private)))
