"""Tokens of an identity provider."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol

from msgspec import Struct


class VerifiedToken(Struct, frozen=True, kw_only=True):
    """The claims of a token; `expires_at` is when it stops being valid, in seconds since the epoch.

    `claims` has at least the strings `iss` and `sub`.
    """

    claims: Mapping[str, Any]
    expires_at: float


class TokenVerifier(Protocol):
    """Verifies the tokens of one issuer: signature, issuer, audience, and times."""

    @property
    @abstractmethod
    def keys_version(self) -> int:
        """A number that changes with the issuer's keys.

        A token that was verified at another version must be verified again.
        """

    @abstractmethod
    async def verify(self, token: str) -> VerifiedToken:
        """Verify a token, which may be any text.

        Raises: InvalidToken, with a message for the client that repeats nothing of the token;
        IssuerUnavailable.
        """
