"""The names that a server answers to, and the web pages that may call it.

Without keys, whoever reaches a server may use it, and a browser on the same machine reaches it for
every page that its user visits. Two things tell such pages from programs: a name of the page's own
that now means this machine (DNS rebinding), which is in `Host`; and what browsers say of where a
request comes from (`Sec-Fetch-Site`, `Origin`: the Fetch standard).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection

from litestar.enums import ScopeType
from litestar.types import Scope

from antiphon.domain.errors import ForeignSite
from antiphon.entrypoints.http.access.cors import normalize_origins
from antiphon.entrypoints.http.api.requests import header_values

LOCALHOST = "localhost"
ANY = "*"
OWN_SITE = (b"same-origin", b"none")
"""`Sec-Fetch-Site` of a page of this server, and of a person who has typed the address."""

MAX_KNOWN_HOSTS = 1000


class Sites:
    """Checks where requests come from.

    `hosts` are the names of this server; with `*`, it answers to all. `origins` are those of
    `--cors-origin`.
    """

    def __init__(self, *, hosts: Collection[str] = (ANY,), origins: Collection[str] = ()) -> None:
        self._names = frozenset(host.lower() for host in hosts)
        self._origins = normalize_origins(origins)
        self.known_hosts: set[bytes] = set()
        """Headers that need not be read again."""

    def check_host(self, host: bytes) -> None:
        """Raises: ForeignSite unless this is a name of the server, or an address."""
        if self._is_own(name := name_of(host)):
            if len(self.known_hosts) < MAX_KNOWN_HOSTS:
                self.known_hosts.add(host)
            return
        raise ForeignSite(
            f"The header 'Host' names {name[:100]!r}, which is not a name of this server. Use "
            "localhost or an address, or start the server with --allowed-host NAME.",
            code="foreign_host",
        )

    def check_page(self, scope: Scope, host: bytes) -> None:
        """Check a request that a browser has sent.

        Raises: ForeignSite if the page is another site's, and the settings do not allow it.
        """
        if scope["type"] == ScopeType.HTTP and not _may_come_from_a_foreign_page(scope):
            return
        origins, sites = header_values(scope, b"origin"), header_values(scope, b"sec-fetch-site")
        if len(origins) == 1 and origins[0].decode("latin-1") in self._origins:
            return
        if len(sites) == 1 and sites[0] in OWN_SITE:
            return
        if not sites and len(origins) == 1 and origins[0].partition(b"://")[2] == host:
            return
        raise ForeignSite(
            "Pages of other sites may not call this server: the header 'Origin' or "
            "'Sec-Fetch-Site' names another one. Start the server with --cors-origin ORIGIN to "
            "allow the pages of a site.",
            code="foreign_origin",
        )

    def _is_own(self, name: str) -> bool:
        if ANY in self._names or name in self._names:
            return True
        if name == LOCALHOST or name.endswith(f".{LOCALHOST}"):
            return True
        return _is_address(name)  # nobody can let another machine's address mean this one


def name_of(host: bytes) -> str:
    """Return the name or address in the header `Host`.

    >>> name_of(b"LocalHost.:8000"), name_of(b"[::1]:80")
    ('localhost', '::1')
    """
    text = host.decode("latin-1").lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _may_come_from_a_foreign_page(scope: Scope) -> bool:
    """Whether a page of another site can send such a request without being asked for permission.

    A key cannot be sent without a preflight. A link may lead here: its page reads nothing.
    """
    if header_values(scope, b"authorization"):
        return False
    method = scope["method"]  # type: ignore[typeddict-item]
    if method in ("GET", "HEAD"):
        return header_values(scope, b"sec-fetch-mode") != [b"navigate"]
    return bool(method != "OPTIONS")
