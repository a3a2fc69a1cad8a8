"""What a tenant may keep. What is there can always be read and deleted."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from antiphon.application.ports import ResponseStore, StorageUsage
from antiphon.domain.errors import QuotaExceeded

CACHE_TTL_S = 5.0
"""Seconds for which a figure of the store counts as its present one."""
MAX_TENANTS = 10_000


class Quotas(Struct, frozen=True, kw_only=True):
    """For each tenant; None is no limit. `bytes` are those of its texts, items and logs, about."""

    responses: int | None = None
    bytes: int | None = None

    def exceeded_by(self, use: StorageUsage, *, responses: int) -> str | None:
        """Return what leaves no room for so many more responses, or else items, in words."""
        if self.responses is not None and responses and use.responses >= self.responses:
            return f"{use.responses} responses are kept for you, and {self.responses} may be"
        if self.bytes is not None and use.bytes >= self.bytes:
            return f"{use.bytes} bytes are kept for you, and {self.bytes} may be"
        return None


class _Seen(Struct):
    """What the store said last, and how many responses this server has let in since."""

    use: StorageUsage
    at: float
    since: int = 0

    def now(self) -> StorageUsage:
        return StorageUsage(responses=self.use.responses + self.since, bytes=self.use.bytes)


class CheckQuota:
    """Asked before anything is kept.

    A store is asked at most every few seconds for a tenant; several servers may each let in a few
    more meanwhile. `clock` gives seconds of any origin.
    """

    def __init__(self, store: ResponseStore, quotas: Quotas, *, clock: Callable[[], float]) -> None:
        self._store = store
        self._quotas = quotas
        self._clock = clock
        self._seen: dict[str, _Seen] = {}

    async def __call__(self, tenant: str, *, responses: int = 0) -> None:
        """Let so many responses be kept, or only items. Raises: QuotaExceeded; StoreError."""
        if self._quotas == Quotas():
            return
        seen = self._seen.get(tenant)
        if seen is None or self._clock() - seen.at >= CACHE_TTL_S:
            seen = await self._look(tenant)
        if (passed := self._quotas.exceeded_by(seen.now(), responses=responses)) is not None:
            raise QuotaExceeded(
                f"{passed}. Delete what is no longer needed, or send `store: false`.",
                code="insufficient_quota",
            )
        seen.since += responses

    async def _look(self, tenant: str) -> _Seen:
        asked_at = self._clock()
        use = await self._store.usage(tenant)
        known = self._seen.pop(tenant, None)
        # Of many that ask at the same time, the first to be answered counts for all of them.
        if known is None or known.at < asked_at:
            known = _Seen(use=use, at=self._clock())
        self._seen[tenant] = known
        if len(self._seen) > MAX_TENANTS:
            del self._seen[next(iter(self._seen))]
        return known
