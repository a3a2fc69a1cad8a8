"""Report the activity of a tenant from its newest responses, for the charts of the console."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from antiphon.application.ports import Clock, ResponseStore, StorePageQuery
from antiphon.application.support.fair_queue import FairQueue
from antiphon.application.support.threads import compute_in_thread
from antiphon.domain.errors import NotFound
from antiphon.domain.responses.activity import ActivityReport, CountActivity, Grouping, Span
from antiphon.domain.responses.response_lists import ResponseSummary

MAX_READ = 10_000
"""Responses that one report reads, whatever the tenant has."""
READ_AT_ONCE = 50
"""A page of them holds up the event loop for a few milliseconds, if the store is this process."""
KEEP_S = 5.0
"""A report is that old at most; pages that ask together read once."""
MAX_KEPT = 32

_Key = tuple[str, Span, Grouping, str | None]


class ReportActivity:
    """Reads the list of responses, so a report has what every server of the store has run.

    Requests pay nothing for it. One report is made at a time, as each costs about as much as
    `MAX_READ` entries of a list; tenants take turns.
    """

    def __init__(self, store: ResponseStore, *, now: Clock, max_read: int = MAX_READ) -> None:
        self._store = store
        self._now = now
        self._max_read = max_read
        self._turns = FairQueue(1)
        self._kept: dict[_Key, tuple[float, ActivityReport]] = {}

    async def __call__(
        self, tenant: str, span: Span, grouping: Grouping, only: str | None = None
    ) -> ActivityReport:
        """Raises: StoreError."""
        key = (tenant, span, grouping, only)
        async with self._turns.slot(tenant):
            now = self._now()
            made_at, report = self._kept.get(key, (None, None))
            if report is not None and made_at is not None and 0 <= now - made_at < KEEP_S:
                return report
            counted = CountActivity(span, now=now, grouping=grouping, only=only)
            covered_from = await self._count(tenant, counted)
            report = await compute_in_thread(counted.report, covered_from=covered_from)
            self._kept.pop(key, None)
            self._kept[key] = (now, report)
            while len(self._kept) > MAX_KEPT:
                del self._kept[next(iter(self._kept))]
            return report

    async def _count(self, tenant: str, counted: CountActivity) -> int | None:
        """Count responses until one is too old. Return how far it came if that is not enough."""
        query = StorePageQuery(limit=READ_AT_ONCE, is_descending=True)
        last: ResponseSummary | None = None
        left = self._max_read
        while page := await self._read(tenant, replace(query, limit=min(query.limit, left))):
            for response in page:
                counted.add(response)
            last, left = page[-1], left - len(page)
            if last.created_at < counted.begins_at:
                return None
            if left == 0:
                return last.created_at
            query = replace(query, after=last.id)
            await asyncio.sleep(0)  # others have their turn, also if the store never waits
        if page is None and last is not None:
            return last.created_at
        return None

    async def _read(self, tenant: str, query: StorePageQuery) -> Sequence[ResponseSummary] | None:
        """Return a page; None if the response before it was deleted meanwhile."""
        try:
            return await self._store.list_responses(tenant, query)
        except NotFound:
            return None
