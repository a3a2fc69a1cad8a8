"""Storage quotas of a tenant. What is stored can always be read and deleted."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Raw, Struct

from antiphon.application.ports import ResponseStore, StorageUsage
from antiphon.domain.errors import QuotaExceeded
from antiphon.domain.requests.request import CreateResponse

CACHE_TTL_S = 5.0
"""Seconds for which the usage that a store reported counts as current."""
MAX_CACHED_TENANTS = 10_000


class Quotas(Struct, frozen=True, kw_only=True):
    """The limits of each tenant; None means no limit.

    `bytes` is the approximate size of the tenant's texts, items and logs.
    """

    responses: int | None = None
    bytes: int | None = None

    def describe_excess(self, usage: StorageUsage, *, responses: int) -> str | None:
        """Return the reason to refuse so many more responses, or more items if that is 0."""
        if self.responses is not None and responses and usage.responses >= self.responses:
            return f"You have {usage.responses} stored responses of at most {self.responses}"
        if self.bytes is not None and usage.bytes >= self.bytes:
            return f"You have {usage.bytes} stored bytes of at most {self.bytes}"
        return None


def size_of(request: CreateResponse) -> int:
    """Return the approximate number of bytes that a store keeps of a request."""
    content = request.input
    size = sum(map(len_of, content)) if isinstance(content, tuple) else len(content or "")
    return size + len(request.instructions or "")


def len_of(raw: Raw) -> int:
    return memoryview(raw).nbytes


class _CachedUsage(Struct):
    """The usage that the store reported last, and what this server has accepted since."""

    reported: StorageUsage
    reported_at: float
    added_responses: int = 0
    added_bytes: int = 0

    def estimate(self) -> StorageUsage:
        return StorageUsage(
            responses=self.reported.responses + self.added_responses,
            bytes=self.reported.bytes + self.added_bytes,
        )


class CheckQuota:
    """Checks a tenant's quota before anything is stored.

    The store reports a tenant's usage at most every few seconds; several servers may each accept a
    few more responses meanwhile. `clock` returns seconds from any starting point.
    """

    def __init__(self, store: ResponseStore, quotas: Quotas, *, clock: Callable[[], float]) -> None:
        self._store = store
        self.quotas = quotas
        self.has_quotas = quotas != Quotas()
        self._clock = clock
        self._cache: dict[str, _CachedUsage] = {}

    async def __call__(self, tenant: str, *, responses: int = 0, size: int = 0) -> None:
        """Check for so many new responses, or only for items, of about `size` bytes.

        Raises: QuotaExceeded; StoreError.
        """
        if not self.has_quotas:
            return
        usage = self._cache.get(tenant)
        if usage is None or self._clock() - usage.reported_at >= CACHE_TTL_S:
            usage = await self._refresh(tenant)
        excess = self.quotas.describe_excess(usage.estimate(), responses=responses)
        if excess is not None:
            raise QuotaExceeded(
                f"{excess}. Delete what you no longer need, or send `store: false`.",
                code="insufficient_quota",
            )
        usage.added_responses += responses
        usage.added_bytes += size

    def forget(self, tenant: str) -> None:
        """Ask the store anew next time: something was deleted, so there is room again."""
        self._cache.pop(tenant, None)

    async def _refresh(self, tenant: str) -> _CachedUsage:
        queried_at = self._clock()
        reported = await self._store.get_storage_usage(tenant)
        usage = self._cache.pop(tenant, None)
        # If several requests ask at the same time, the first answer counts for all of them.
        if usage is None or usage.reported_at < queried_at:
            usage = _CachedUsage(reported=reported, reported_at=self._clock())
        self._cache[tenant] = usage
        if len(self._cache) > MAX_CACHED_TENANTS:
            del self._cache[next(iter(self._cache))]
        return usage
