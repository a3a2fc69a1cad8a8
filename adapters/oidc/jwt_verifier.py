"""Tokens as signed JWTs (RFC 7519), verified as RFC 8725 recommends."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any

import jwt
import msgspec
from msgspec import UNSET, Struct, UnsetType

from antiphon.adapters.oidc.issuer_keys import IssuerKeys
from antiphon.application.ports import TokenVerifier, VerifiedToken
from antiphon.application.resources.tokens import EXPIRED
from antiphon.domain.errors import InvalidToken

TYPES = ("", "jwt", "at+jwt")
"""Types of tokens for access. Issuers sign others with the same keys, such as `logout+jwt`."""

MAX_EXPIRES_AT = 2**53

MESSAGES: Mapping[type[jwt.PyJWTError], str] = {
    jwt.ExpiredSignatureError: EXPIRED,
    jwt.ImmatureSignatureError: "The token is not valid yet.",
    jwt.InvalidAudienceError: "The token is for another audience.",
    jwt.InvalidIssuerError: "The token is from another issuer.",
    jwt.InvalidSignatureError: "The token's signature is wrong.",
}


class _Header(Struct, frozen=True):
    """The part that is not verified: it selects the key, which decides what it may be used for.

    `jku`, `jwk`, `x5u` and `x5c`, with which a token would bring its own key, are not read.
    """

    alg: str
    kid: str | None = None
    typ: str = ""
    crit: msgspec.Raw | UnsetType = UNSET


class JwtVerifier(TokenVerifier):
    """Verifies tokens that the issuer made for one of these audiences."""

    def __init__(
        self,
        keys: IssuerKeys,
        *,
        issuer: str,
        audience: Sequence[str],
        algorithms: Sequence[str],
        leeway_s: float,
    ) -> None:
        self._keys = keys
        self._issuer = issuer
        self._audience = audience
        self._algorithms = algorithms
        self._leeway_s = leeway_s

    @property
    def keys_version(self) -> int:
        return self._keys.version

    async def verify(self, token: str) -> VerifiedToken:
        header = _read_header(token)
        if header.alg not in self._algorithms:
            raise InvalidToken("The token is signed with an algorithm that is not allowed.")
        if header.crit is not UNSET:
            raise InvalidToken("The token uses an extension that this server does not know.")
        if header.typ.lower().removeprefix("application/") not in TYPES:
            raise InvalidToken("The token is of a type that gives no access.")
        key = await self._keys.find(header.kid, header.alg)
        claims = self._verify(token, key)
        expires_at = min(int(claims["exp"]), MAX_EXPIRES_AT) + self._leeway_s
        return VerifiedToken(claims=claims, expires_at=expires_at)

    def _verify(self, token: str, key: jwt.PyJWK) -> dict[str, Any]:
        try:
            return jwt.decode(
                token,
                key,
                algorithms=self._algorithms,
                audience=self._audience,
                issuer=self._issuer,
                leeway=self._leeway_s,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except jwt.MissingRequiredClaimError as error:
            raise InvalidToken(f"The token has no claim {error.claim!r}.") from None
        except jwt.PyJWTError as error:
            message = MESSAGES.get(type(error), "The token is malformed.")
            raise InvalidToken(message) from None
        except (ValueError, RecursionError):
            raise InvalidToken("The token is malformed.") from None


def _read_header(token: str) -> _Header:
    encoded = token.partition(".")[0]
    try:
        decoded = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
        return msgspec.json.decode(decoded, type=_Header)
    except (binascii.Error, msgspec.MsgspecError, ValueError, RecursionError):
        raise InvalidToken("The token's header cannot be read.") from None
