"""The items of contexts and conversations in the SQLite store: functions for its threads.

There may be thousands of items: the thread that reads makes them, not the event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing

import apsw
from msgspec import Raw, json

from antiphon.adapters.stores.item_ranges import (
    ItemRange,
    ItemRow,
    is_full,
    owners_of,
    range_of_conversation,
    ranges_of_chain,
    remaining_ranges,
)
from antiphon.adapters.stores.sqlite.file import Row, rows_of
from antiphon.application.ports import StoredItem, StorePageQuery

# SQLite walks the chain itself. That is four times as fast as storing a list of ancestors in each
# row, and the file is a third as large (measured).
CHAIN = """
WITH RECURSIVE chain (id, parent, depth, conversation, context_end) AS (
    SELECT id, parent, 0, conversation, context_end
    FROM responses WHERE tenant = ?1 AND id = ?2 AND body IS NOT NULL
    UNION ALL
    SELECT responses.id, responses.parent, depth + 1, responses.conversation, responses.context_end
    FROM chain JOIN responses ON responses.tenant = ?1 AND responses.id = chain.parent
)
"""

# Packs all items into one row. For each row, the interpreter's lock is given away and taken again:
# beside two threads that compute, 30,000 rows took a second, in which nobody else read. These
# aggregates keep the order of the subquery.
PACKED = """
SELECT json_group_array(item_id), group_concat(coalesce(length(body), -1)),
    CAST(group_concat(body, '') AS BLOB)
FROM (SELECT item_id, body FROM ({items}) ORDER BY {order})
HAVING count(*)
"""

# A response without items still returns one row, of NULLs; no row means that the response does not
# exist. Conversation items come first: a response in a conversation has no parent. CROSS JOIN keeps
# SQLite from starting with all conversation items of the tenant.
_ITEMS_OF_CHAIN = """
    SELECT items.item_id, items.body, depth + 1 AS depth, 0 AS kind, items.place AS position
    FROM chain CROSS JOIN items
        ON items.tenant = ?1 AND items.conversation_id = chain.conversation
        AND items.place < chain.context_end
    UNION ALL
    SELECT items.item_id, items.body, depth, items.kind, items.position
    FROM chain LEFT JOIN items
        ON items.tenant = ?1 AND items.response_id = chain.id
        AND (items.kind = 0 OR chain.depth > 0 OR ?3)
"""
CONTEXT = CHAIN + PACKED.format(order="depth DESC, kind, position", items=_ITEMS_OF_CHAIN)

LINKS = f"""
{CHAIN}
SELECT json_group_array(json_array(id, conversation, context_end))
FROM (SELECT id, conversation, context_end FROM chain ORDER BY depth)
HAVING count(*)
"""

# A conversation without items still returns one row, of NULLs.
_ITEMS_OF_CONVERSATION = """
    SELECT items.item_id, items.body, items.place
    FROM conversations LEFT JOIN items
        ON items.tenant = ?1 AND items.conversation_id = conversations.id
    WHERE conversations.tenant = ?1 AND conversations.id = ?2
"""
CONVERSATION_ITEMS = PACKED.format(order="place", items=_ITEMS_OF_CONVERSATION)

HAS_CONVERSATION = "SELECT 1 FROM conversations WHERE tenant = ? AND id = ?"

# The plus keeps SQLite from looking at all items of the conversation.
CONVERSATION_ITEM = """
SELECT body FROM items WHERE tenant = ? AND conversation_id = ? AND item_id = ?
ORDER BY +place DESC LIMIT 1
"""

# The same id may be in many other responses. The pluses keep SQLite from looking at all items of
# these.
PLACES = """
SELECT response_id, kind, position, conversation_id, place FROM items
WHERE tenant = ? AND item_id = ? AND (
    +response_id IN (SELECT value FROM json_each(?))
    OR +conversation_id IN (SELECT value FROM json_each(?))
)
"""

RANGES = {
    False: """
SELECT item_id, body FROM items
WHERE tenant = ? AND response_id = ? AND (kind, position) > (?, ?) AND (kind, position) < (?, ?)
ORDER BY kind {order}, position {order} LIMIT ?
""",
    True: """
SELECT item_id, body FROM items
WHERE tenant = ? AND conversation_id = ? AND place > ? AND place < ?
ORDER BY place {order} LIMIT ?
""",
}


def read_context(
    tenant: str, response_id: str, with_output: bool, db: apsw.Connection
) -> list[StoredItem] | None:
    """Return all items of a context, or None if there is no such response."""
    rows = rows_of(db, CONTEXT, (tenant, response_id, with_output))
    return _unpack(*rows[0]) if rows else None


def read_input_page(
    tenant: str, response_id: str, query: StorePageQuery, db: apsw.Connection
) -> list[StoredItem] | None:
    """Return a page of a response's input, or None if there is no such response.

    Raises: NotInList.
    """
    rows = rows_of(db, LINKS, (tenant, response_id))
    if not rows:
        return None
    chain = json.decode(rows[0][0])
    return _read_page(tenant, ranges_of_chain(chain, with_output=False), query, db)


def read_conversation(
    tenant: str, conversation_id: str, query: StorePageQuery | None, db: apsw.Connection
) -> list[StoredItem] | None:
    """Return all items of a conversation or a page of them, or None if there is none.

    Raises: NotInList.
    """
    owner = (tenant, conversation_id)
    if query is None:
        rows = rows_of(db, CONVERSATION_ITEMS, owner)
        return _unpack(*rows[0]) if rows else None
    if not rows_of(db, HAS_CONVERSATION, owner):
        return None
    return _read_page(tenant, [range_of_conversation(conversation_id)], query, db)


def _read_page(
    tenant: str, ranges: Sequence[ItemRange], query: StorePageQuery, db: apsw.Connection
) -> list[StoredItem]:
    rows = [] if query.after is None else _places_of(tenant, query.after, ranges, db)
    rest = remaining_ranges(
        ranges,
        is_descending=query.is_descending,
        after=query.after,
        rows=rows,
    )
    order = "DESC" if query.is_descending else "ASC"
    found: list[Row] = []
    for each in rest:
        statement = RANGES[each.is_conversation].format(order=order)
        left = query.limit - len(found)
        with closing(db.execute(statement, (tenant, each.owner, *each.bounds, left))) as rows_left:
            for row in rows_left:
                found.append(row)
                if is_full(found, query):
                    return _to_items(found)
    return _to_items(found)


def _places_of(
    tenant: str, item_id: str, ranges: Sequence[ItemRange], db: apsw.Connection
) -> list[ItemRow]:
    owners = [json.encode(each).decode() for each in owners_of(ranges)]
    return [ItemRow(*row) for row in rows_of(db, PLACES, (tenant, item_id, *owners))]


def _to_items(rows: Iterable[tuple[str | None, bytes]]) -> list[StoredItem]:
    return [StoredItem(id=item_id or "", raw=Raw(body)) for item_id, body in rows]


def _unpack(ids: str, lengths: str, bodies: bytes | None) -> list[StoredItem]:
    return _to_items(_items_in(json.decode(ids), map(int, lengths.split(",")), bodies or b""))


def _items_in(
    ids: Sequence[str | None], lengths: Iterable[int], bodies: bytes
) -> Iterator[tuple[str | None, bytes]]:
    end = 0
    for item_id, length in zip(ids, lengths, strict=True):
        if length >= 0:  # else it stands for a response or a conversation without items
            start, end = end, end + length
            yield item_id, bodies[start:end]
