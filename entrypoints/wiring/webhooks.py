"""The endpoints of webhooks, as the settings and their file have them, checked before the start.

No error sentence repeats a secret, nor a URL, which may hold one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import ipaddress
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, get_args

import httpx
import msgspec
from msgspec import Struct

from antiphon.adapters.fetching import (
    DEFAULT_PORTS,
    HttpFetcher,
    Network,
    NoFetcher,
    UrlPolicy,
    read_url,
)
from antiphon.application.ports import Fetcher
from antiphon.application.resources.webhooks import WebhookEndpoint
from antiphon.domain.errors import FetchRefused, SettingsError
from antiphon.entrypoints.settings import Settings

Event = Literal[
    "response.completed", "response.failed", "response.cancelled", "response.incomplete"
]
PREFIX = "whsec_"
SECRET_BYTES = range(24, 65)  # what Standard Webhooks demands

OPERATORS_NETWORKS: Sequence[Network] = [
    ipaddress.ip_network(text)
    for text in (
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "::1/128",
        "fc00::/7",
    )
]
"""Where an operator's own servers may be; a cloud's metadata (link-local) are not among them."""


class _Endpoint(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table `[[endpoint]]` of the file."""

    url: str
    secret: str | tuple[str, ...]
    events: tuple[Event, ...] = get_args(Event)
    tenant: str | None = None
    name: str | None = None


class _File(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    endpoint: tuple[_Endpoint, ...] = ()


def read_endpoints(settings: Settings) -> Sequence[WebhookEndpoint]:
    """Return all endpoints, each under a name of its own. Raises: SettingsError."""
    found = tuple(_endpoints_of(settings))
    names = [each.name for each in found]
    for name in names:
        if names.count(name) > 1:
            raise SettingsError(
                f"Two endpoints of webhooks are called {name!r}: give each a name of its own."
            )
    return found


def operator_policy(urls: Sequence[str]) -> UrlPolicy:
    """Return what lets exactly these hosts and ports be reached, in the operator's networks too.

    There must be URLs: a guard without hosts would let any be reached.
    """
    assert urls
    read = [read_url(url) for url in urls]
    hosts = [f"{_host(url)}:{url.port or DEFAULT_PORTS[url.scheme]}" for url in read]
    return UrlPolicy(hosts=hosts, private=OPERATORS_NETWORKS)


def _endpoints_of(settings: Settings) -> Iterator[WebhookEndpoint]:
    if (settings.webhook_url is None) != (settings.webhook_secret is None):
        raise SettingsError("webhook_url and webhook_secret need each other: set both.")
    if settings.webhook_url is not None and settings.webhook_secret is not None:
        simple = _Endpoint(url=settings.webhook_url, secret=settings.webhook_secret)
        yield _checked(simple, "webhook_url", "webhook_secret")
    if settings.webhooks is not None:
        file = settings.webhooks
        for number, each in enumerate(_read(file).endpoint, 1):
            place = f"of endpoint {number} in {file}"
            yield _checked(each, f"url {place}", f"secret {place}")


def _read(file: Path) -> _File:
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"The file {str(file)!r} of webhooks cannot be read: {error}."
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"The file {str(file)!r} of webhooks is not TOML: {error}.") from None
    try:
        return msgspec.convert(table, _File)
    except msgspec.ValidationError as error:
        raise SettingsError(f"The file {str(file)!r} of webhooks is not right: {error}.") from None


def _checked(given: _Endpoint, url_name: str, secret_name: str) -> WebhookEndpoint:
    texts = (given.secret,) if isinstance(given.secret, str) else given.secret
    if not texts or not given.events:
        raise SettingsError(f"{secret_name} is empty." if not texts else "events are empty.")
    url = _url(given.url, url_name)
    return WebhookEndpoint(
        name=given.name or _name_of(url),
        url=given.url,
        secrets=[_secret(text, secret_name) for text in texts],
        events=given.events,
        tenant=given.tenant,
    )


def _url(text: str, name: str) -> httpx.URL:
    try:
        return read_url(text)
    except FetchRefused as error:
        raise SettingsError(f"{name} cannot be called: {error}") from None


def _secret(text: str, name: str) -> bytes:
    try:
        secret = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        secret = b""
    if not text.startswith(PREFIX) or len(secret) not in SECRET_BYTES:
        raise SettingsError(
            f"{name} must be {PREFIX} and 24 to 64 bytes in Base64: "
            f'make one with `echo "{PREFIX}$(openssl rand -base64 32)"`.'
        )
    return secret


def _name_of(url: httpx.URL) -> str:
    # The path may be what makes a URL secret: its digest tells one endpoint of a host from another.
    return f"{_host(url)}-{hashlib.sha256(str(url).encode()).hexdigest()[:12]}"


def _host(url: httpx.URL) -> str:
    return url.host.rstrip(".").lower()


WEBHOOK_TIMEOUT_S = 10.0
WEBHOOK_ANSWER_BYTES = 1024 * 1024


def webhook_fetcher(endpoints: Sequence[WebhookEndpoint]) -> Fetcher:
    """Return the way to the operator's endpoints, and to nothing else."""
    if not endpoints:
        return NoFetcher()
    return HttpFetcher(
        operator_policy([each.url for each in endpoints]),
        max_bytes=WEBHOOK_ANSWER_BYTES,
        timeout_s=WEBHOOK_TIMEOUT_S,
        max_redirects=0,
    )
