"""Which URLs this server may fetch. `fetching.py` has the client that obeys it.

Nothing here loads an HTTP client, which most servers do not need: they fetch no URLs.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from antiphon.application.ports import Fetcher, FetchResult
from antiphon.domain.errors import FetchRefused

if TYPE_CHECKING:
    import httpx

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

DEFAULT_PORTS: Mapping[str, int] = {"http": 80, "https": 443}
PORTS = range(1, 65_536)

V6_UNICAST = ipaddress.IPv6Network("2000::/3")
"""Global unicast; IPv4-mapped, NAT64, local, link-local and multicast addresses are outside it."""

NOT_PUBLIC: Sequence[Network] = [
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8",  # this host
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT; one cloud's metadata
        "127.0.0.0/8",
        "168.63.129.16/32",  # a cloud's agent, at a public address
        "169.254.0.0/16",  # link-local; most clouds' metadata
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
        "2001::/23",  # Teredo and other protocols
        "2001:db8::/32",
        "2002::/16",  # 6to4: holds an IPv4 address
        "3fff::/20",
    )
]
"""A fixed list, because `ipaddress.is_global` differs between versions of Python."""

_PRINTABLE_ASCII = re.compile(r"[!-~]+")  # neither spaces nor control characters


def read_url(url: str) -> httpx.URL:
    """Parse an http(s) URL without credentials. Raises: FetchRefused."""
    import httpx  # costs 7 MB and 50 ms

    if not _PRINTABLE_ASCII.fullmatch(url) or "\\" in url:
        raise FetchRefused("The URL has characters that are not allowed in a URL.")
    try:
        parsed_url = httpx.URL(url)
        host = parsed_url.host  # decodes "xn--…", which no other part of the parser has read
    except (httpx.InvalidURL, ValueError):
        raise FetchRefused("The URL is not valid.") from None
    if parsed_url.port is not None and parsed_url.port not in PORTS:
        raise FetchRefused("The URL is not valid.")
    if parsed_url.scheme not in DEFAULT_PORTS or not host:
        raise FetchRefused("Only http and https URLs can be fetched.")
    if parsed_url.userinfo:
        raise FetchRefused("The URL must not contain a user name or password.")
    return parsed_url


class UrlPolicy(Struct, frozen=True, kw_only=True):
    """Which URLs and addresses are allowed.

    Each of `hosts` is `name` or `*.name`, with the ports of http and https, or with `:port`, or
    with `:*` for any port. Without `hosts` any host is allowed, on the ports of http and https.
    The networks in `private` are allowed although they are not public.
    """

    hosts: Sequence[str] = ()
    private: Sequence[Network] = ()

    def check_url(self, url: str) -> httpx.URL:
        """Parse a URL with `read_url` and check its host and port. Raises: FetchRefused."""
        parsed_url = read_url(url)
        port = parsed_url.port or DEFAULT_PORTS[parsed_url.scheme]
        if not self._allows(parsed_url.host.rstrip(".").lower(), port):
            raise FetchRefused("This server may not fetch from that host or port.")
        return parsed_url

    def allows_address(self, text: str) -> bool:
        """Whether a connection to a resolved address is allowed."""
        try:
            address = ipaddress.ip_address(text)
        except ValueError:  # an address with a zone is link-local
            return False
        return is_public(address) or any(address in network for network in self.private)

    def _allows(self, host: str, port: int) -> bool:
        if not self.hosts:
            return port in DEFAULT_PORTS.values()
        return any(_matches(host, port, pattern.lower()) for pattern in self.hosts)


def _matches(host: str, port: int, pattern: str) -> bool:
    name, colon, port_pattern = pattern.rpartition(":")
    ports: Sequence[int] = ()
    if not colon or not (port_pattern.isdecimal() or port_pattern == "*"):
        name, ports = pattern, tuple(DEFAULT_PORTS.values())
    else:
        ports = (port if port_pattern == "*" else int(port_pattern),)
    is_same_host = host.endswith(name[1:]) if name.startswith("*.") else host == name.strip("[]")
    return is_same_host and port in ports


def is_public(address: Address) -> bool:
    """Whether an address is reachable from the public Internet.

    >>> [is_public(ipaddress.ip_address(a)) for a in ("9.9.9.9", "::ffff:9.9.9.9", "10.1.1.1")]
    [True, False, False]
    """
    if address.version == 6 and address not in V6_UNICAST:
        return False
    return not any(address in network for network in NOT_PUBLIC)


def is_public_address(text: str) -> bool:
    """Whether a resolved address is reachable from the public Internet.

    >>> [is_public_address(text) for text in ("9.9.9.9", "fe80::1%eth0", "10.1.1.1")]
    [True, False, False]
    """
    try:
        return is_public(ipaddress.ip_address(text))
    except ValueError:  # an address with a zone is link-local
        return False


class NoFetcher(Fetcher):
    """Refuses every URL: the default of a server."""

    async def fetch(self, url: str, **_: Any) -> FetchResult:  # noqa: ARG002
        raise FetchRefused(
            "This server does not fetch URLs (its operator can allow it with --fetch-urls)."
        )
