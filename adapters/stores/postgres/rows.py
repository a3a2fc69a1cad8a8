"""Rows of the PostgreSQL store, from and to the types of the port."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Raw

from antiphon.adapters.stores.postgres.server import Row, columns
from antiphon.adapters.stores.stored_json import response_from
from antiphon.application.ports import Charge, EventChunk, Lease, LeasedRun, StoredItem
from antiphon.domain.errors import StoreError
from antiphon.domain.responses.response import Response

MAX_EVENT_NUMBER = 2**62
"""Above the number of any event, and within the range of BIGINT."""


def item_rows(kind: int, items: Sequence[StoredItem]) -> list[Row]:
    return [
        (kind, position, item.id or None, memoryview(item.raw))
        for position, item in enumerate(items)
    ]


def columns_of(events: EventChunk | None) -> tuple[int | None, int | None, bytes | None]:
    if events is None:
        return None, None, None
    return events.first, events.count, events.body


def clamp_number(after: int) -> int:
    """Return an event number from a client, limited to what PostgreSQL can represent."""
    return min(max(after, -1), MAX_EVENT_NUMBER)


def size_of(items: Sequence[Row]) -> int:
    return sum(len(item[-1]) for item in items)


def conversation_of(response: Response) -> str | None:
    return response.conversation.id if response.conversation else None


def to_items(rows: Sequence[Row]) -> list[StoredItem]:
    return [StoredItem(id=item_id or "", raw=Raw(body)) for item_id, body in rows if body]


def leased_run(row: Row) -> LeasedRun:
    tenant, response_id, epoch, job, body, output = row
    lease = Lease(tenant=tenant, response_id=response_id, epoch=epoch)
    return LeasedRun(lease=lease, response=response_from(body, output), job=job)


def missing_event_error(response_id: str, number: int) -> StoreError:
    return StoreError(f"The log of response {response_id!r} is damaged: event {number} is missing.")


def columns_of_charges(charges: Sequence[Charge]) -> list[list[object]]:
    """Return their names, starts, amounts, expiry times and limits."""
    return columns([(c.name, c.start, c.amount, c.expires_at, c.limit) for c in charges], 5)
