"""How this server leaves its network: by a proxy of the operator's, with a certificate of its own.

Neither can be used to reach inside. The proxy is asked only for addresses that were resolved and
checked here, never for a name, which it would resolve again, and only for public ones. The
certificate is shown only to servers that the operator configured.

Nothing here loads an HTTP client, which most servers do not need.
"""

from __future__ import annotations

import ssl
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from msgspec import Struct
from msgspec.structs import replace

from antiphon.domain.errors import SettingsError


class ClientCertificate(Struct, frozen=True, kw_only=True):
    """The certificate, with those that sign it, and the key with which this server shows itself."""

    cert: Path
    key: Path

    def load_into(self, context: ssl.SSLContext) -> None:
        """Raises: SettingsError if the pair cannot be used."""
        try:
            # An encrypted key would ask for its password at the terminal.
            context.load_cert_chain(self.cert, self.key, password="")
        except OSError as error:
            reason = error.strerror or getattr(error, "reason", "") or "it cannot be read"
            raise SettingsError(
                f"The client certificate {str(self.cert)!r} with the key {str(self.key)!r} cannot "
                f"be used: {reason}."
            ) from None


class Proxy(Struct, frozen=True, kw_only=True):
    """An HTTP proxy that opens tunnels (CONNECT). Its URL may hold a name and a password.

    The hosts in `direct` are reached without it: each is `name`, or `.name` with its subdomains.
    """

    url: str
    direct: Sequence[str] = ()

    def __repr__(self) -> str:
        return f"Proxy({self.host!r})"

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 80

    @property
    def authorization(self) -> str | None:
        """The value of the header Proxy-Authorization.

        >>> Proxy(url="http://me:s%20t@proxy:3128").authorization
        'Basic bWU6cyB0'
        """
        parts = urlsplit(self.url)
        if parts.username is None:
            return None
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        return f"Basic {b64encode(login.encode()).decode()}"

    def is_for(self, host: str) -> bool:
        """Whether a host is reached through the proxy.

        >>> proxy = Proxy(url="http://proxy", direct=["here.example", ".inside.example"])
        >>> [proxy.is_for(f"{name}.example") for name in ("here", "a.inside", "inside", "other")]
        [False, False, False, True]
        """
        name = host.rstrip(".").lower()
        return not any(
            name == each.strip(".").lower()
            or (each.startswith(".") and name.endswith(each.lower()))
            for each in self.direct
        )


class Egress(Struct, frozen=True, kw_only=True):
    """By which proxy, if any, and with which certificate, if any, connections are made."""

    proxy: Proxy | None = None
    certificate: ClientCertificate | None = None

    @property
    def without_certificate(self) -> Egress:
        """That for servers which requests name: they need not know who this server is."""
        return replace(self, certificate=None)


DIRECT = Egress()
