"""Headers of a trusted proxy: they are believed only if a proxy of the operator sent them.

Who is a proxy is decided by the address of the socket's other end, never by a header, and by a
secret if the settings name one.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Sequence
from functools import lru_cache

from litestar.types import Scope

from antiphon.adapters.url_policy import Address, Network
from antiphon.entrypoints.http.api.requests import header_values
from antiphon.entrypoints.settings import TrustedProxy

SECRET_HEADER = b"x-antiphon-proxy-secret"


def is_from_proxy(scope: Scope, settings: TrustedProxy) -> bool:
    """Whether a trusted proxy sent this request."""
    if not settings.addresses:  # the usual case, without looking at anything
        return False
    peer = _read_address(_peer(scope))
    if peer is None or not _is_in(peer, _networks(settings.addresses)):
        return False
    if settings.secret is None:
        return True
    secrets = header_values(scope, SECRET_HEADER)
    return len(secrets) == 1 and hmac.compare_digest(secrets[0], settings.secret.encode())


def _peer(scope: Scope) -> str:
    client = scope["client"]
    return client[0] if client else ""


def _read_address(text: str) -> Address | None:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    # A socket that listens on IPv6 has IPv4 clients too, and writes them like ::ffff:10.1.2.3.
    return getattr(address, "ipv4_mapped", None) or address


def _is_in(address: Address, networks: Sequence[Network]) -> bool:
    return any(address in network for network in networks)


@lru_cache(maxsize=8)
def _networks(addresses: tuple[str, ...]) -> Sequence[Network]:
    return tuple(map(ipaddress.ip_network, addresses))
