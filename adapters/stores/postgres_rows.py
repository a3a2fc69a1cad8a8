"""Rows of PostgreSQL, and what the store makes of them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Raw

from antiphon.adapters.stores.postgres_server import Row
from antiphon.adapters.stores.stored_json import response_from
from antiphon.application.ports import EventChunk, Lease, LeasedRun, StoredItem
from antiphon.domain.response import Response


def item_rows(kind: int, items: Sequence[StoredItem]) -> list[Row]:
    return [
        (kind, position, item.id or None, bytes(item.raw)) for position, item in enumerate(items)
    ]


def columns_of(events: EventChunk | None) -> tuple[int | None, int | None, bytes | None]:
    if events is None:
        return None, None, None
    return events.first, events.count, events.body


def size_of(items: Sequence[Row]) -> int:
    return sum(len(item[-1]) for item in items)


def conversation_of(response: Response) -> str | None:
    return response.conversation.id if response.conversation else None


def to_items(rows: Sequence[Row]) -> list[StoredItem]:
    return [StoredItem(id=item_id or "", raw=Raw(body)) for item_id, body in rows if body]


def to_leased_run(row: Row) -> LeasedRun:
    tenant, response_id, epoch, job, body, output = row
    lease = Lease(tenant=tenant, response_id=response_id, epoch=epoch)
    return LeasedRun(lease=lease, response=response_from(body, output), job=job)
