"""API keys: made once, kept as hashes, each naming the tenant whose objects it opens.

A key is 256 random bits, so its plain SHA-256 gives nothing away and needs no salt. Keys are found
by their hashes; nothing is ever compared with a key itself.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from antiphon.application.ports import ApiKey, Clock, NewId
from antiphon.domain.errors import KeysUnavailable, SettingsError, StoreError

PREFIX = "ak-"
"""By which people, and scanners for leaked secrets, know a key."""

KEY_BYTES = 32
CACHE_TTL_S = 5.0
"""Seconds for which an answer is believed: so long a key may work after it was revoked."""

REMEMBERED = 10_000
"""Answers that are remembered of each kind."""

TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
MAX_NAMED = 100

FindKey = Callable[[bytes], Awaitable[ApiKey | None]]
"""The key of this hash, if there is one. Raises: StoreError."""


def hash_of(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def create_key(name: str, tenant: str, *, new_id: NewId, now: Clock) -> tuple[str, ApiKey]:
    """Return a new key and what is kept of it. Raises: SettingsError.

    The key has 46 characters: `ak-` and 43 of the alphabet that URLs leave alone.
    """
    if not TENANT.fullmatch(tenant):
        raise SettingsError(
            "A tenant must be up to 64 letters, digits, '.', '_', '@' and '-', beginning with a "
            f"letter or a digit, not {tenant!r}."
        )
    if not 0 < len(name) <= MAX_NAMED or not name.isprintable():
        raise SettingsError(
            f"A key's name must be printable, with 1 to {MAX_NAMED} characters, not {name!r}."
        )
    key = PREFIX + secrets.token_urlsafe(KEY_BYTES)
    kept = ApiKey(
        id=new_id("key"), name=name, tenant=tenant, hash=hash_of(key), created_at=int(now())
    )
    return key, kept


class FindTenant:
    """Whose a key is. Each source is asked for a key once in `cache_ttl_s`."""

    def __init__(
        self,
        sources: Sequence[FindKey],
        *,
        now: Clock = time.monotonic,
        cache_ttl_s: float = CACHE_TTL_S,
        remembered: int = REMEMBERED,
    ) -> None:
        self._sources = sources
        self._now = now
        # Apart, so that a flood of keys that nobody has cannot push out those that are in use.
        self._known = _Recent(cache_ttl_s, remembered)
        self._unknown = _Recent(cache_ttl_s, remembered)

    async def __call__(self, key: str) -> str | None:
        """Return the tenant, or None for an unknown key. Raises: KeysUnavailable."""
        hashed = hash_of(key)
        asked_at = self._now()  # before the sources are: what they answer may be old at once
        for answers in (self._known, self._unknown):
            if (answer := answers.get(hashed, asked_at)) is not None:
                return answer.tenant
        answer = _Answer(await self._ask(hashed), asked_at)
        (self._unknown if answer.tenant is None else self._known).add(hashed, answer)
        return answer.tenant

    async def _ask(self, hashed: bytes) -> str | None:
        try:
            for source in self._sources:
                if (key := await source(hashed)) is not None:
                    return key.tenant
        except StoreError as exc:
            raise KeysUnavailable("API keys cannot be looked up now. Try again.") from exc
        return None


class _Answer(NamedTuple):
    tenant: str | None
    asked_at: float


class _Recent:
    """The answers of the last seconds, those last asked for at the end."""

    def __init__(self, cache_ttl_s: float, limit: int) -> None:
        self._fresh_s = cache_ttl_s
        self._limit = limit
        self._answers: OrderedDict[bytes, _Answer] = OrderedDict()

    def get(self, hashed: bytes, now: float) -> _Answer | None:
        answer = self._answers.get(hashed)
        if answer is None or now - answer.asked_at >= self._fresh_s:
            return None
        self._answers.move_to_end(hashed)
        return answer

    def add(self, hashed: bytes, answer: _Answer) -> None:
        self._answers[hashed] = answer
        self._answers.move_to_end(hashed)
        if len(self._answers) > self._limit:
            self._answers.popitem(last=False)
