"""Parts of the transactions of the PostgreSQL store."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.adapters.stores.not_found import conversation_not_found
from antiphon.adapters.stores.postgres import statements as sql
from antiphon.adapters.stores.postgres.appends import out_of_order_error
from antiphon.adapters.stores.postgres.rows import conversation_of
from antiphon.adapters.stores.postgres.server import Connection, columns
from antiphon.application.ports import EventChunk, StoredItem
from antiphon.domain.errors import ConversationLocked, RequestError
from antiphon.domain.responses.response import Response


async def events_to_append(
    db: Connection, number: int, next_number: int | None, events: EventChunk | None
) -> EventChunk | None:
    """Return the events unless the log has them. Raises: StoreError if they are out of order."""
    if events is None or events.first == next_number:
        return events
    if not await db.fetch(sql.HAS_CHUNK, number, events.first, events.count):
        raise out_of_order_error(events, next_number)
    return None


async def release_with_items(db: Connection, tenant: str, number: int, response: Response) -> None:
    """Release the response's conversation with the response's items at its end."""
    conversation_id = conversation_of(response)
    if conversation_id is None:
        return
    count = await db.fetchval(sql.COUNT_ITEMS, number) if response.keeps_items else 0
    places = await db.fetchrow(sql.RELEASE, tenant, conversation_id, response.id, count)
    if places is not None and count:
        await db.execute(sql.LINK_ITEMS, number, *places)


async def delete_response(tenant: str, response_id: str, channel: str, db: Connection) -> bool:
    await db.execute(sql.DELETE_RUN, tenant, response_id)
    number = await db.fetchval(sql.CLEAR_RESPONSE, tenant, response_id)
    if number is None:
        return False
    await db.execute(sql.DELETE_LOG_AND_CLAIMS, tenant, response_id, number, channel)
    # Delete the items of this response and of its deleted ancestors that no response continues.
    while number is not None:
        conversation, is_deleted = await db.fetchrow(sql.LOCK_RESPONSE, number) or (None, False)
        if not is_deleted:
            break
        await db.execute(sql.LOCK_CONVERSATION, conversation)
        purgeable, number = number, None
        for (parent,) in await db.fetch(sql.PURGE_RESPONSE, purgeable):
            await db.execute(sql.REMOVE_ITEMS, purgeable)
            number = parent
    return True


async def sweep_response(tenant: str, response_id: str, channel: str, db: Connection) -> bool:
    await db.execute(sql.COMMIT_WITHOUT_WAITING)
    return await delete_response(tenant, response_id, channel, db)


async def add_own_items(
    db: Connection, tenant: str, conversation: int, first: int, items: Sequence[StoredItem]
) -> None:
    if items:
        rows = [(item.id or None, memoryview(item.raw)) for item in items]
        await db.execute(sql.ADD_OWN_ITEMS, tenant, conversation, first, *columns(rows, 2))


async def unavailable_error(db: Connection, tenant: str, conversation_id: str) -> RequestError:
    exists = await db.fetchrow(sql.GET_CONVERSATION, tenant, conversation_id)
    return ConversationLocked() if exists else conversation_not_found(conversation_id)
