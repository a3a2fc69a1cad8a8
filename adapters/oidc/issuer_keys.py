"""The public keys of an issuer (JWKS, RFC 7517), fetched and kept up to date.

They are fetched when the server starts, every few minutes, and when a token names a key that is not
among them, because issuers rotate their keys. Anyone can send such a token, so the last happens at
most once in `MIN_INTERVAL_S`, and all requests wait for the same fetch. If the issuer is down, its
keys are kept for `MAX_AGE_S`.

A key is used only for the algorithms of its own type, so a public key is never a shared secret.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jwt
import msgspec
from msgspec import Struct

from antiphon.adapters.oidc.secure_url import is_secure
from antiphon.application.ports import Clock, Fetcher
from antiphon.application.support.outages import Outages
from antiphon.application.support.tasks import start_shared_task
from antiphon.domain.errors import FetchFailed, InvalidToken, IssuerUnavailable

T = TypeVar("T")

logger = logging.getLogger("antiphon.oidc")

REFRESH_S = 300.0
"""Seconds between fetches, and for which a key that its issuer withdraws may still be used."""

RETRY_S = 15.0
"""Seconds after a failed fetch."""

MIN_INTERVAL_S = 10.0
"""Seconds in which unknown keys cause one fetch at most."""

MAX_AGE_S = 3600.0
"""Seconds to keep the keys of an issuer that cannot be reached: about as long as tokens last, which
it cannot issue meanwhile."""

MAX_KEYS = 100
RSA_BITS = range(2048, 8193)  # below it is weak, above it takes long to verify

KEY_TYPES: Mapping[str, tuple[str, str | None]] = {
    **{f"{family}{bits}": ("RSA", None) for family in ("RS", "PS") for bits in (256, 384, 512)},
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "EdDSA": ("OKP", "Ed25519"),
}
"""The type of key that each algorithm needs, and its curve (RFC 7518, section 3.1)."""


class _Configuration(Struct, frozen=True):
    """The fields of `/.well-known/openid-configuration` that are used here."""

    issuer: str
    jwks_uri: str


class _KeySet(Struct, frozen=True):
    keys: list[msgspec.Raw]


class _Jwk(Struct, frozen=True):
    kty: str
    crv: str | None = None
    kid: str | None = None
    use: str | None = None
    alg: str | None = None
    key_ops: Sequence[str] | None = None
    d: Any = None  # a private key

    def fits(self, algorithm: str) -> bool:
        """Whether tokens of this algorithm may be verified with the key."""
        kty, curve = KEY_TYPES[algorithm]
        return (
            self.kty == kty
            and (curve is None or self.crv == curve)
            and self.alg in (None, algorithm)
            and self.use in (None, "sig")
            and (self.key_ops is None or "verify" in self.key_ops)
            and self.d is None  # everybody could sign with a key that its issuer has published
        )


class _Key(NamedTuple):
    kid: str | None
    algorithm: str
    public_key: jwt.PyJWK


class IssuerKeys:
    """The keys of an issuer, for these algorithms.

    `fetcher_for` returns the fetcher for one URL. `version` changes with the keys.
    """

    def __init__(
        self,
        issuer: str,
        algorithms: Sequence[str],
        fetcher_for: Callable[[str], Fetcher],
        *,
        jwks_url: str | None = None,
        now: Clock = time.monotonic,
    ) -> None:
        self._issuer = issuer
        self._algorithms = algorithms
        self._fetcher_for = fetcher_for
        self._jwks_url = jwks_url
        self._now = now
        self._keys: Sequence[_Key] = ()
        self._document = b""
        self._version = 0
        self._fetched_at = self._tried_at = float("-inf")
        self._is_failing = True
        self._refresh: asyncio.Task[None] | None = None
        self._outages = Outages(
            logger, f"the keys of the issuer {issuer} could not be fetched to verify tokens"
        )

    async def start(self) -> None:
        """Fetch the keys. If that fails, it is logged, and tried again later."""
        await self.refresh()

    async def aclose(self) -> None:
        if self._refresh is not None:
            self._refresh.cancel()
            await asyncio.wait([self._refresh])

    async def run_forever(self) -> None:
        """Keep the keys up to date."""
        while True:
            await asyncio.sleep(RETRY_S if self._is_failing else REFRESH_S)
            await self.refresh()

    @property
    def version(self) -> int:
        if self._keys and self._now() - self._fetched_at > MAX_AGE_S:
            self._replace((), b"")
        return self._version

    async def find(self, kid: str | None, algorithm: str) -> jwt.PyJWK:
        """Return the key that signs tokens with this header.

        Raises: InvalidToken if the issuer has no such key; IssuerUnavailable.
        """
        if (key := self._find(kid, algorithm)) is None:
            await self.refresh()
            key = self._find(kid, algorithm)
        if key is not None:
            return key
        if self._is_failing:  # the issuer may have made a new key meanwhile
            raise IssuerUnavailable("The token cannot be verified at the moment. Try again.")
        raise InvalidToken("The token is signed with a key that its issuer does not publish.")

    async def refresh(self) -> None:
        """Fetch the keys, unless that was tried moments ago. A failure is only logged."""
        if self._refresh is None or self._refresh.done():
            if self._now() - self._tried_at < MIN_INTERVAL_S:
                return
            self._tried_at = self._now()
            self._refresh = start_shared_task(self._try_to_fetch())
        # The request of one client may end before the fetch that others wait for.
        await asyncio.shield(self._refresh)

    def _find(self, kid: str | None, algorithm: str) -> jwt.PyJWK | None:
        _ = self.version  # drops keys that are too old
        keys = [
            key.public_key
            for key in self._keys
            if key.algorithm == algorithm and kid in (None, key.kid)
        ]
        # A token without a key's id is verified if only one key comes into question: trying out
        # many would cost a request a hundred times as much.
        return keys[0] if keys and (kid is not None or len(keys) == 1) else None

    async def _try_to_fetch(self) -> None:
        self._is_failing = True
        with self._outages.log_outages():
            document = await self._fetch_key_set()
            if document != self._document:
                self._replace(_read_keys(document, self._algorithms), document)
            self._fetched_at = self._now()
            self._is_failing = False

    def _replace(self, keys: Sequence[_Key], document: bytes) -> None:
        self._keys, self._document = keys, document
        self._version += 1

    async def _fetch_key_set(self) -> bytes:
        if self._jwks_url is not None:
            return await self._fetch(self._jwks_url)
        url = self._issuer.rstrip("/") + "/.well-known/openid-configuration"
        configuration = _decode(await self._fetch(url), _Configuration)
        # OpenID Connect Discovery, section 4.3: or one issuer could pose as another.
        if configuration.issuer != self._issuer:
            raise FetchFailed(
                f"{url} belongs to another issuer: {configuration.issuer[:200]!r}. The setting "
                "oidc.issuer must be spelled like that."
            )
        if not is_secure(configuration.jwks_uri):
            raise FetchFailed(f"{url} names keys at a URL that is not https.")
        return await self._fetch(configuration.jwks_uri)

    async def _fetch(self, url: str) -> bytes:
        headers = {"accept": "application/json"}
        result = await self._fetcher_for(url).fetch(url, tenant="", headers=headers)
        if result.status != 200:
            raise FetchFailed(f"{url} answered with the status {result.status}.")
        return result.content


def _read_keys(document: bytes, algorithms: Sequence[str]) -> Sequence[_Key]:
    """Return the keys that can be used. Raises: FetchFailed if there is none."""
    keys = [
        key
        for raw in _decode(document, _KeySet).keys[:MAX_KEYS]
        for key in _read_key(raw, algorithms)
    ]
    if not keys:
        raise FetchFailed(f"The issuer publishes no key for {', '.join(algorithms)}.")
    return keys


def _read_key(raw: msgspec.Raw, algorithms: Sequence[str]) -> Iterator[_Key]:
    """Yield the key for each algorithm that it fits. Others are for other purposes."""
    try:
        jwk = msgspec.json.decode(raw, type=_Jwk)
        parameters = msgspec.json.decode(raw)
        for algorithm in filter(jwk.fits, algorithms):
            key = jwt.PyJWK(parameters, algorithm)
            if jwk.kty != "RSA" or key.key.key_size in RSA_BITS:
                yield _Key(jwk.kid, algorithm, key)
    except (jwt.PyJWTError, msgspec.MsgspecError, ValueError, RecursionError) as error:
        logger.warning("one of the issuer's keys cannot be read: %s", type(error).__name__)


def _decode(document: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(document, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FetchFailed(f"The issuer's answer cannot be read: {error}.") from error
