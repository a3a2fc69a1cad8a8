"""Callers with a token of an identity provider instead of an API key: its claims name the tenant.

The application decides who a token stands for; a TokenVerifier decides whether the token is valid.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from antiphon.application.ports import Clock, TokenVerifier
from antiphon.application.resources.keys import MAX_NAME_LENGTH, hash_of, read_tenant
from antiphon.domain.access.callers import Caller
from antiphon.domain.errors import InvalidToken

MAX_CACHED_TOKENS = 10_000
"""Callers of verified tokens to keep: less than a kilobyte each, whatever the token holds."""

EXPIRED = "The token has expired."

Claims = Mapping[str, Any]


class ClaimRules(Struct, frozen=True, kw_only=True):
    """How claims become a caller, and what a token must have besides.

    `scopes` are required; so are `claims`, each of them `NAME=VALUE`.
    """

    tenant_claim: str = "sub"
    tenant_prefix: str = ""
    name_claim: str = "sub"
    scopes: Sequence[str] = ()
    claims: Sequence[str] = ()


class FindTokenCaller:
    """Finds the caller whose token it is. A valid token is verified once for a version of keys."""

    def __init__(
        self,
        tokens: TokenVerifier,
        rules: ClaimRules,
        *,
        now: Clock = time.time,
        max_cached: int = MAX_CACHED_TOKENS,
    ) -> None:
        self._tokens = tokens
        self._rules = rules
        self._now = now
        self._limit = max_cached
        self._answers: OrderedDict[bytes, _Answer] = OrderedDict()

    async def __call__(self, token: str) -> Caller:
        """Return the caller. Raises: InvalidToken, IssuerUnavailable."""
        hashed = hash_of(token)
        answer = self._answers.get(hashed)
        if answer is not None:
            if answer.expires_at <= self._now():
                raise InvalidToken(EXPIRED)
            if answer.keys_version == self._tokens.keys_version:
                self._answers.move_to_end(hashed)
                return answer.caller
        verified = await self._tokens.verify(token)
        caller = caller_of_claims(verified.claims, self._rules)
        # Only valid tokens are cached, so that a flood of forged ones cannot evict them.
        self._answers[hashed] = _Answer(caller, verified.expires_at, self._tokens.keys_version)
        self._answers.move_to_end(hashed)
        if len(self._answers) > self._limit:
            self._answers.popitem(last=False)
        return caller


class _Answer(NamedTuple):
    caller: Caller
    expires_at: float
    keys_version: int


def caller_of_claims(claims: Claims, rules: ClaimRules) -> Caller:
    """Return the caller that the claims of a verified token stand for. Raises: InvalidToken."""
    _check_scopes(claims, rules.scopes)
    _check_claims(claims, rules.claims)
    value = find_claim(claims, rules.tenant_claim)
    if value is None:
        raise InvalidToken(f"The token has no claim {rules.tenant_claim!r} to name its tenant.")
    tenant = read_tenant(value, prefix=rules.tenant_prefix)
    if tenant is None:
        raise InvalidToken(
            f"The token's claim {rules.tenant_claim!r} cannot name a tenant: a tenant has up to 64 "
            "letters, digits, '.', '_', '@' and '-'."
        )
    name = find_claim(claims, rules.name_claim)
    return Caller(tenant=tenant, key_id=_key_id(claims), key_name=_printable(name))


def find_claim(claims: Claims, path: str) -> Any:
    """Return a claim's value, or None. A dot steps into an object; a name may have dots itself.

    >>> find_claim({"org": {"id": "a"}, "https://example.org/team": "b"}, "org.id")
    'a'
    >>> find_claim({"org": {"id": "a"}, "https://example.org/team": "b"},
    ...            "https://example.org/team")
    'b'
    """
    if path in claims:
        return claims[path]
    head, dot, _ = path.rpartition(".")
    while dot:
        if isinstance(inner := claims.get(head), dict):
            return find_claim(inner, path[len(head) + 1 :])
        head, dot, _ = head.rpartition(".")
    return None


def _check_scopes(claims: Claims, required: Sequence[str]) -> None:
    scopes = {scope for name in ("scope", "scp") for scope in _words(claims.get(name))}
    for scope in required:
        if scope not in scopes:
            raise InvalidToken(f"The token does not have the scope {scope!r}.")


def _words(value: Any) -> list[Any]:
    """Return the members of a claim that some issuers write as a list and others as words."""
    if isinstance(value, str):
        return value.split()
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _check_claims(claims: Claims, required: Sequence[str]) -> None:
    for requirement in required:
        name, _, wanted = requirement.partition("=")
        value = find_claim(claims, name)
        if wanted not in map(_text, value if isinstance(value, list) else [value]):
            raise InvalidToken(f"The token's claim {name!r} does not have the required value.")


def _text(value: Any) -> str | None:
    match value:
        case bool():
            return str(value).lower()
        case str() | int():
            return str(value)
        case _:
            return None


def _key_id(claims: Claims) -> str:
    """Return what use is counted by: the same for all tokens of a subject, and of fixed length."""
    subject = f"{claims['iss']}\0{claims['sub']}"
    return "oidc:" + hashlib.sha256(subject.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _printable(name: Any) -> str:
    if isinstance(name, str) and len(name) <= MAX_NAME_LENGTH and name.isprintable():
        return name
    return ""
