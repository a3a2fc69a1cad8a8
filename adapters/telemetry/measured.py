"""Wrap a store or a fetcher, so that a meter times what it does."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from inspect import iscoroutinefunction
from typing import Any, cast

from antiphon.application.ports import Fetcher, FetchResult, Meter, Store
from antiphon.application.telemetry.instruments import STORE_SECONDS, WEBHOOK_SECONDS, WEBHOOKS
from antiphon.domain.errors import StoreError

UNTIMED = frozenset({"start", "aclose", "wait_for_events"})
"""Operations that wait for something else than the store."""


def measure_store(store: Store, meter: Meter) -> Store:
    """Return the store; each of its operations is timed."""
    return cast(Store, _MeasuredStore(store, meter))


class _MeasuredStore:
    """Passes everything on. An operation is wrapped once, when it is first used."""

    def __init__(self, store: Store, meter: Meter) -> None:
        self._store = store
        self._meter = meter

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._store, name)
        if name not in UNTIMED and iscoroutinefunction(value):
            value = self._timed(name, value)
            setattr(self, name, value)
        return value

    def _timed(self, name: str, operate: Callable[..., Any]) -> Callable[..., Any]:
        meter = self._meter
        worked, failed = (name, "ok"), (name, "error")

        async def timed(*args: Any, **kwargs: Any) -> Any:
            started_at = time.perf_counter()
            labels = worked
            try:
                return await operate(*args, **kwargs)
            except StoreError:
                labels = failed
                raise
            finally:
                meter.observe(STORE_SECONDS, time.perf_counter() - started_at, labels)

        return timed


class MeasuredWebhooks(Fetcher):
    """A fetcher that delivers webhooks."""

    def __init__(self, fetcher: Fetcher, meter: Meter) -> None:
        self._fetcher = fetcher
        self._meter = meter

    async def fetch(
        self,
        url: str,
        *,
        tenant: str,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        content: bytes = b"",
        hosts: Sequence[str] = (),
    ) -> FetchResult:
        started_at = time.perf_counter()
        result = "no answer"
        try:
            answer = await self._fetcher.fetch(
                url, tenant=tenant, method=method, headers=headers, content=content, hosts=hosts
            )
            result = "received" if 200 <= answer.status < 300 else "refused"
            return answer
        finally:
            self._meter.add(WEBHOOKS, 1, (result,))
            self._meter.observe(WEBHOOK_SECONDS, time.perf_counter() - started_at)
