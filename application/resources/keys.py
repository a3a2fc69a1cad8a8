"""API keys: each gives access to the objects of one tenant and is stored as a hash.

A key is 256 random bits, so its plain SHA-256 reveals nothing and needs no salt. Keys are looked up
by their hashes; no code compares the keys themselves.
"""

from __future__ import annotations

import hashlib
import math
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from antiphon.application.ports import ApiKey, Clock, NewId
from antiphon.domain.access.callers import Caller
from antiphon.domain.access.limits import FULL_ACCESS, KeyPolicy
from antiphon.domain.errors import KeysUnavailable, SettingsError, StoreError, Unauthenticated

KEY_PREFIX = "ak-"
"""Lets people, and scanners for leaked secrets, recognize a key."""

KEY_BYTES = 32
CACHE_TTL_S = 5.0
"""Seconds for which an answer is cached, and for which a revoked key may still work."""

MAX_CACHED_KEYS = 10_000
"""Cached answers for known keys, and as many for unknown keys."""

TENANT_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
MAX_NAME_LENGTH = 100

FindKey = Callable[[bytes], Awaitable[ApiKey | None]]
"""Returns the key with this hash, if there is one. Raises: StoreError."""


ListKeys = Callable[[], Awaitable[Sequence[ApiKey]]]
"""Returns all keys of a source. Raises: StoreError."""

LIST_TTL_S = 15.0
"""Seconds for which a list of keys is used: it may be long."""

FOREIGN = ("proxy:", "oidc:")
"""How the ids of callers begin that have no key of ours."""


def hash_of(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def read_tenant(value: object, *, prefix: str) -> str | None:
    """Return the tenant that this value of somebody else's stands for, or None if it cannot be one.

    It is the value itself after the prefix: two values never name the same tenant.
    """
    if not isinstance(value, str) or not value:
        return None
    tenant = prefix + value
    return tenant if TENANT_PATTERN.fullmatch(tenant) else None


def create_key(
    name: str, tenant: str, *, new_id: NewId, now: Clock, policy: KeyPolicy = FULL_ACCESS
) -> tuple[str, ApiKey]:
    """Return a new key and its record to store. Raises: SettingsError.

    The key has 46 characters: `ak-` and 43 that need no escaping in URLs.
    """
    if not TENANT_PATTERN.fullmatch(tenant):
        raise SettingsError(
            "A tenant must be up to 64 letters, digits, '.', '_', '@' and '-', beginning with a "
            f"letter or a digit, not {tenant!r}."
        )
    if not 0 < len(name) <= MAX_NAME_LENGTH or not name.isprintable():
        raise SettingsError(
            f"A key's name must be printable, with 1 to {MAX_NAME_LENGTH} characters, not {name!r}."
        )
    key = KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)
    record = ApiKey(
        id=new_id("key"),
        name=name,
        tenant=tenant,
        hash=hash_of(key),
        created_at=int(now()),
        policy=policy,
    )
    return key, record


def caller_of(key: ApiKey) -> Caller:
    """Return the caller that this key stands for."""
    return Caller(tenant=key.tenant, key_id=key.id, key_name=key.name, policy=key.policy)


class FindCaller:
    """Finds the caller whose key it is. Each source is asked for a key once in `cache_ttl_s`.

    `date` tells the time of day, by which keys expire.
    """

    def __init__(
        self,
        sources: Sequence[FindKey],
        *,
        now: Clock = time.monotonic,
        date: Clock = time.time,
        cache_ttl_s: float = CACHE_TTL_S,
        max_cached: int = MAX_CACHED_KEYS,
    ) -> None:
        self._sources = sources
        self._now = now
        self._date = date
        # Two caches, so that a flood of unknown keys cannot evict the keys that are in use.
        self._known = _AnswerCache(cache_ttl_s, max_cached)
        self._unknown = _AnswerCache(cache_ttl_s, max_cached)

    async def __call__(self, key: str) -> Caller | None:
        """Return the caller, or None for an unknown key.

        Raises: Unauthenticated if the key has expired; KeysUnavailable.
        """
        caller = await self._find(key)
        if caller is not None and caller.policy.has_expired(self._date()):
            raise Unauthenticated("The API key has expired.")
        return caller

    async def _find(self, key: str) -> Caller | None:
        hashed = hash_of(key)
        queried_at = self._now()  # before the sources answer: an answer may be outdated on arrival
        for cache in (self._known, self._unknown):
            if (answer := cache.get(hashed, queried_at)) is not None:
                return answer.caller
        answer = _Answer(await self._ask(hashed), queried_at)
        (self._unknown if answer.caller is None else self._known).add(hashed, answer)
        return answer.caller

    async def _ask(self, hashed: bytes) -> Caller | None:
        try:
            for source in self._sources:
                if (key := await source(hashed)) is not None:
                    return caller_of(key)
        except StoreError as exc:
            raise KeysUnavailable("API keys cannot be looked up at the moment. Try again.") from exc
        return None


class RefreshCaller:
    """Finds out what the key of a caller may do now: work that was sent may begin hours later.

    Each source lists its keys once in `cache_ttl_s`. Callers without a key of ours stay as they
    are.
    """

    def __init__(
        self,
        sources: Sequence[ListKeys],
        *,
        now: Clock = time.monotonic,
        date: Clock = time.time,
        cache_ttl_s: float = LIST_TTL_S,
    ) -> None:
        self._sources = sources
        self._now = now
        self._date = date
        self._ttl_s = cache_ttl_s
        self._keys: Mapping[str, ApiKey] = {}
        self._listed_at = -math.inf

    async def __call__(self, caller: Caller) -> Caller:
        """Return the caller with the rights that its key has now.

        Raises: Unauthenticated if the key was revoked or has expired; KeysUnavailable.
        """
        if not caller.key_id or caller.key_id.startswith(FOREIGN):
            return caller
        if self._now() - self._listed_at >= self._ttl_s:
            await self._list()
        key = self._keys.get(caller.key_id)
        if key is None or key.tenant != caller.tenant:
            raise Unauthenticated("The API key was revoked.")
        if key.policy.has_expired(self._date()):
            raise Unauthenticated("The API key has expired.")
        return caller_of(key)

    async def _list(self) -> None:
        listed_at = self._now()  # before the sources answer
        try:
            lists = [await source() for source in self._sources]
        except StoreError as exc:
            raise KeysUnavailable("API keys cannot be looked up at the moment. Try again.") from exc
        self._keys = {key.id: key for keys in reversed(lists) for key in keys}
        self._listed_at = listed_at


class _Answer(NamedTuple):
    caller: Caller | None
    queried_at: float


class _AnswerCache:
    """An LRU cache of the answers of the last seconds."""

    def __init__(self, cache_ttl_s: float, limit: int) -> None:
        self._ttl_s = cache_ttl_s
        self._limit = limit
        self._answers: OrderedDict[bytes, _Answer] = OrderedDict()

    def get(self, hashed: bytes, now: float) -> _Answer | None:
        answer = self._answers.get(hashed)
        if answer is None or now - answer.queried_at >= self._ttl_s:
            return None
        self._answers.move_to_end(hashed)
        return answer

    def add(self, hashed: bytes, answer: _Answer) -> None:
        self._answers[hashed] = answer
        self._answers.move_to_end(hashed)
        if len(self._answers) > self._limit:
            self._answers.popitem(last=False)
