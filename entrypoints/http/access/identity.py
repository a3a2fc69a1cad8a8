"""Who sends a request: one class for each kind of credential, asked in this order.

    ProxyIdentity     the header of a trusted proxy
    BearerIdentity    `Authorization: Bearer` with an API key, or with a token of an issuer
    HeaderIdentity    the same in `x-api-key`, from clients of the Messages API
    SessionIdentity   the cookie of a browser's session (`console/sessions.py`)

The first that finds a credential of its kind decides. A credential that is invalid is refused: no
other one in the request can make up for it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from litestar.types import Scope

from antiphon.application.resources.keys import FindCaller, read_tenant
from antiphon.application.resources.tokens import FindTokenCaller
from antiphon.domain.access.callers import Caller
from antiphon.domain.errors import Unauthenticated
from antiphon.entrypoints.http.access.trusted_proxy import is_from_proxy
from antiphon.entrypoints.http.api.requests import header_values, speaks_messages
from antiphon.entrypoints.settings import TrustedProxy

MAX_CREDENTIAL = 8192
"""Characters of a key or token: more than the tokens of common issuers have."""

NO_CREDENTIAL = "You did not provide an API key. Send it in the header 'Authorization: Bearer KEY'."

_BEARER = re.compile(rb"bearer +([\x21-\x7e]{1,%d}) *" % MAX_CREDENTIAL, re.IGNORECASE)
_KEY = re.compile(rb"[\x21-\x7e]{1,%d}" % MAX_CREDENTIAL)
# A JWT: its first part is an object in Base64. No key of ours has a dot.
_TOKEN = re.compile(r"ey[\w-]*\.[\w-]+\.[\w-]*", re.ASCII)


class Identity(Protocol):
    """One kind of credential."""

    async def __call__(self, scope: Scope) -> Caller | None:
        """Return who sends the request, or None if it has no credential of this kind.

        Raises: Unauthenticated for an invalid one; KeysUnavailable; IssuerUnavailable.
        """


class ProxyIdentity(Identity):
    """The tenant that a trusted proxy names in a header."""

    def __init__(self, settings: TrustedProxy) -> None:
        self._settings = settings
        self._header = settings.tenant_header.lower().encode()

    async def __call__(self, scope: Scope) -> Caller | None:
        values = header_values(scope, self._header)
        if not values:
            return None
        name = self._settings.tenant_header
        if not is_from_proxy(scope, self._settings):
            # Not ignored: it is an attack, or a proxy whose address the settings do not have.
            raise Unauthenticated(f"The header {name!r} is accepted only from a trusted proxy.")
        if len(values) > 1:  # the client's own, which the proxy did not remove
            raise Unauthenticated(f"The header {name!r} was sent more than once.")
        prefix = self._settings.tenant_prefix
        tenant = read_tenant(values[0].decode("latin-1"), prefix=prefix)
        if tenant is None:
            raise Unauthenticated(
                f"The header {name!r} must name a tenant: up to {64 - len(prefix)} letters, "
                "digits, '.', '_', '@' and '-'."
            )
        key_id = "proxy:" + hashlib.sha256(values[0]).hexdigest()[:32]
        return Caller(tenant=tenant, key_id=key_id, key_name=values[0].decode("latin-1"))


class BearerIdentity(Identity):
    """An API key, or a token if an issuer is set. Its form alone decides which of the two."""

    def __init__(self, find_caller: FindCaller, find_token_caller: FindTokenCaller | None) -> None:
        self._find_caller = find_caller
        self._find_token_caller = find_token_caller

    async def __call__(self, scope: Scope) -> Caller | None:
        values = header_values(scope, b"authorization")
        if not values:
            return None
        match = _BEARER.fullmatch(values[0])
        if match is None or len(values) > 1:
            raise Unauthenticated(
                "The header 'Authorization' is malformed. It must be 'Authorization: Bearer KEY'."
            )
        return await self.find(match[1].decode("ascii"))

    async def find(self, credential: str) -> Caller:
        """Return whose key or token it is. Raises: as an Identity does."""
        if self._find_token_caller is not None and _TOKEN.fullmatch(credential):
            return await self._find_token_caller(credential)
        caller = await self._find_caller(credential)
        if caller is None:
            raise Unauthenticated("Incorrect API key provided.")
        return caller


class HeaderIdentity(Identity):
    """The key or token that a client of the Messages API sends in `x-api-key`.

    Other requests cannot: what a proxy in front of the server checks, hides or logs of
    `Authorization` need not hold for a second header.
    """

    def __init__(self, find: Callable[[str], Awaitable[Caller]]) -> None:
        self._find = find

    async def __call__(self, scope: Scope) -> Caller | None:
        values = header_values(scope, b"x-api-key")
        if not values or not speaks_messages(scope):
            return None
        match = _KEY.fullmatch(values[0])
        if match is None or len(values) > 1:
            raise Unauthenticated("The header 'x-api-key' is malformed. It must be the key.")
        return await self._find(match[0].decode("ascii"))


async def identify(identities: Sequence[Identity], scope: Scope) -> Caller:
    """Return who sends the request. Raises: as an Identity does."""
    for identity in identities:
        if (caller := await identity(scope)) is not None:
            return caller
    raise Unauthenticated(NO_CREDENTIAL)
