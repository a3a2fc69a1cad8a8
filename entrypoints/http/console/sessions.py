"""Sessions of browsers: a cookie that holds a sealed credential and the end of the session.

No store knows of them, so any server with the seal key can read a cookie. A credential that is
revoked or has expired ends its sessions, as each request is decided by the credential.
"""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec
from litestar.enums import ScopeType
from litestar.types import Scope
from msgspec import Struct

from antiphon.application.ports import Clock, Seal, Unseal
from antiphon.domain.access.callers import Caller
from antiphon.domain.errors import RequestError, Unauthenticated
from antiphon.entrypoints.http.access.identity import BearerIdentity, Identity
from antiphon.entrypoints.http.api.requests import header_values

COOKIE = "antiphon_session"
SESSION_S = 8 * 3600
MAX_COOKIE_CHARS = 3800
"""Browsers drop a cookie of more than 4096 bytes with its name and attributes."""
SEALED_FOR = "console session"
"""In place of a tenant, whose name has no space: what is sealed for a tenant is no session."""
ENDED = "The session is invalid or has ended. Sign in again."
CROSS_SITE = "The cookie of a session is accepted only from the pages of the console."


class Session(Struct, frozen=True):
    """The content of a cookie. `ends_at` is in seconds since the epoch."""

    credential: str
    ends_at: float


class Sessions:
    """Makes and reads the values of cookies."""

    def __init__(self, seal: Seal, unseal: Unseal, *, now: Clock) -> None:
        self._seal = seal
        self._unseal = unseal
        self._now = now

    def create(self, credential: str) -> str:
        """Return the cookie's value. Raises: RequestError if no browser would keep it."""
        session = Session(credential, self._now() + SESSION_S)
        value = self._seal(SEALED_FOR, msgspec.json.encode(session).decode())
        if len(value) > MAX_COOKIE_CHARS:
            raise RequestError("The token is too long for a session.", code="invalid_value")
        return value

    def credential_of(self, value: str) -> str | None:
        """Return the credential, or None if the value was changed or its session has ended."""
        text = self._unseal(SEALED_FOR, value) if len(value) <= MAX_COOKIE_CHARS else None
        if text is None:
            return None
        session = msgspec.json.decode(text, type=Session)
        return session.credential if self._now() < session.ends_at else None


class SessionIdentity(Identity):
    """The cookie of a session, which is worth as much as the credential in it."""

    def __init__(self, sessions: Sessions, bearer: BearerIdentity) -> None:
        self._sessions = sessions
        self._bearer = bearer

    async def __call__(self, scope: Scope) -> Caller | None:
        values = _cookies(scope)
        if not values:
            return None
        if not _may_use_cookie(scope):
            raise Unauthenticated(CROSS_SITE)
        # Another site of the same host may have set a second one, to act as somebody else.
        credential = self._sessions.credential_of(values[0]) if len(values) == 1 else None
        if credential is None:
            raise Unauthenticated(ENDED)
        return await self._bearer.find(credential)


def is_same_origin(scope: Scope) -> bool:
    """Return whether a page of this server sent the request, as far as its headers tell."""
    if sites := header_values(scope, b"sec-fetch-site"):
        return sites == [b"same-origin"]
    return _has_own_origin(scope)


def _may_use_cookie(scope: Scope) -> bool:
    if scope["type"] == ScopeType.WEBSOCKET:
        return _has_own_origin(scope)
    # Not what a browser shows, or runs as a script: a model may have written it.
    if header_values(scope, b"sec-fetch-dest") not in ([], [b"empty"]):
        return False
    if scope["method"] in ("GET", "HEAD") and not header_values(scope, b"sec-fetch-site"):
        return True
    return is_same_origin(scope)


def _has_own_origin(scope: Scope) -> bool:
    origins, hosts = header_values(scope, b"origin"), header_values(scope, b"host")
    if len(origins) != 1 or len(hosts) != 1:
        return False
    return urlsplit(origins[0].decode("latin-1")).netloc == hosts[0].decode("latin-1")


def _cookies(scope: Scope) -> list[str]:
    pairs = (
        pair.strip().partition(b"=")
        for line in header_values(scope, b"cookie")
        for pair in line.split(b";")
    )
    return [value.decode("latin-1") for name, _, value in pairs if name == COOKIE.encode()]
