"""Read the webhook endpoints from the settings and their file, before the server starts.

No error message repeats a secret, or a URL, which may contain one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import ipaddress
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import msgspec
from msgspec import Struct

from antiphon.adapters.url_policy import DEFAULT_PORTS, Network, NoFetcher, UrlPolicy, read_url
from antiphon.application.ports import Fetcher
from antiphon.application.resources.webhooks import WebhookEndpoint
from antiphon.domain.errors import FetchRefused, SettingsError
from antiphon.entrypoints.settings import Settings
from antiphon.entrypoints.settings.invalid_values import in_words
from antiphon.entrypoints.wiring.fetching import egress, http_fetcher

if TYPE_CHECKING:
    import httpx

Event = Literal[
    "response.completed", "response.failed", "response.cancelled", "response.incomplete"
]
PREFIX = "whsec_"
SECRET_BYTES = range(24, 65)  # as Standard Webhooks requires

OPERATOR_NETWORKS: Sequence[Network] = [
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
"""Networks where operators run their own servers, without a cloud's metadata (link-local)."""


class _Endpoint(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table `[[endpoint]]` in the file."""

    url: str
    secret: str | tuple[str, ...]
    events: tuple[Event, ...] = get_args(Event)
    tenant: str | None = None
    name: str | None = None


class _File(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    endpoint: tuple[_Endpoint, ...] = ()


def read_endpoints(settings: Settings) -> Sequence[WebhookEndpoint]:
    """Return all endpoints, each with a unique name. Raises: SettingsError."""
    endpoints = tuple(_endpoints_of(settings))
    names = [endpoint.name for endpoint in endpoints]
    for name in names:
        if names.count(name) > 1:
            raise SettingsError(
                f"Two webhook endpoints have the name {name!r}: give each a unique name."
            )
    return endpoints


def operator_policy(urls: Sequence[str]) -> UrlPolicy:
    """Return a policy that allows only these hosts and ports, also in the operator's networks.

    `urls` must not be empty: a policy without hosts allows any host.
    """
    assert urls
    parsed_urls = [read_url(url) for url in urls]
    hosts = [f"{_host(url)}:{url.port or DEFAULT_PORTS[url.scheme]}" for url in parsed_urls]
    return UrlPolicy(hosts=hosts, private=OPERATOR_NETWORKS)


def _endpoints_of(settings: Settings) -> Iterator[WebhookEndpoint]:
    if (settings.webhook_url is None) != (settings.webhook_secret is None):
        raise SettingsError("webhook_url and webhook_secret need each other: set both.")
    if settings.webhook_url is not None and settings.webhook_secret is not None:
        endpoint = _Endpoint(url=settings.webhook_url, secret=settings.webhook_secret)
        yield _validate(endpoint, "webhook_url", "webhook_secret")
    if settings.webhooks is not None:
        file = settings.webhooks
        for number, endpoint in enumerate(_read_file(file).endpoint, 1):
            location = f"of endpoint {number} in {file}"
            yield _validate(endpoint, f"url {location}", f"secret {location}")


def _read_file(file: Path) -> _File:
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"The webhooks file {str(file)!r} cannot be read: {error}.") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"The webhooks file {str(file)!r} is not TOML: {error}.") from None
    try:
        return msgspec.convert(table, _File)
    except msgspec.ValidationError as error:
        reason = in_words(error, _File)
        raise SettingsError(f"The webhooks file {str(file)!r} is invalid: {reason}.") from None


def _validate(endpoint: _Endpoint, url_name: str, secret_name: str) -> WebhookEndpoint:
    secrets = (endpoint.secret,) if isinstance(endpoint.secret, str) else endpoint.secret
    if not secrets or not endpoint.events:
        raise SettingsError(f"{secret_name} is empty." if not secrets else "events is empty.")
    url = _parse_url(endpoint.url, url_name)
    return WebhookEndpoint(
        name=endpoint.name or _name_of(url),
        url=endpoint.url,
        secrets=[_decode_secret(secret, secret_name) for secret in secrets],
        events=endpoint.events,
        tenant=endpoint.tenant,
    )


def _parse_url(text: str, name: str) -> httpx.URL:
    try:
        return read_url(text)
    except FetchRefused as error:
        raise SettingsError(f"{name} cannot be called: {error}") from None


def _decode_secret(text: str, name: str) -> bytes:
    try:
        secret = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        secret = b""
    if not text.startswith(PREFIX) or len(secret) not in SECRET_BYTES:
        raise SettingsError(
            f"{name} must be {PREFIX} followed by 24 to 64 bytes in Base64: "
            f'create one with `echo "{PREFIX}$(openssl rand -base64 32)"`.'
        )
    return secret


def _name_of(url: httpx.URL) -> str:
    # The path may be secret, so its digest distinguishes the endpoints of one host.
    return f"{_host(url)}-{hashlib.sha256(str(url).encode()).hexdigest()[:12]}"


def _host(url: httpx.URL) -> str:
    return url.host.rstrip(".").lower()


WEBHOOK_TIMEOUT_S = 10.0
WEBHOOK_ANSWER_BYTES = 1024 * 1024


def webhook_fetcher(endpoints: Sequence[WebhookEndpoint], settings: Settings) -> Fetcher:
    """Return a fetcher that can reach only the operator's endpoints."""
    if not endpoints:
        return NoFetcher()
    return http_fetcher(
        operator_policy([each.url for each in endpoints]),
        max_bytes=WEBHOOK_ANSWER_BYTES,
        timeout_s=WEBHOOK_TIMEOUT_S,
        max_redirects=0,
        egress=egress(settings),
    )
