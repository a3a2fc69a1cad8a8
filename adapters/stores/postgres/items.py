"""The items of contexts and conversations in the PostgreSQL store."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Raw

from antiphon.adapters.stores.item_ranges import (
    ItemRange,
    ItemRow,
    is_full,
    owners_of,
    range_of_conversation,
    ranges_of_chain,
    remaining_ranges,
)
from antiphon.adapters.stores.not_found import (
    conversation_not_found,
    item_not_found,
    response_not_found,
)
from antiphon.adapters.stores.postgres.rows import to_items
from antiphon.adapters.stores.postgres.server import PostgresServer, Row, columns
from antiphon.application.ports import StoredItem, StorePageQuery
from antiphon.application.support.threads import run_in_thread

# CREATE ensures that parents belong to the same tenant.
CHAIN = """
WITH RECURSIVE chain (number, parent, depth, conversation, context_end) AS (
    SELECT number, parent, 0, conversation, context_end
    FROM responses WHERE tenant = $1 AND id = $2 AND body IS NOT NULL
    UNION ALL
    SELECT r.number, r.parent, depth + 1, r.conversation, r.context_end
    FROM chain JOIN responses r ON r.number = chain.parent
)
"""

# A response without items still returns one row, of NULLs; no row means that the response does not
# exist. Conversation items come first: a response in a conversation has no parent.
CONTEXT = f"""
{CHAIN}
SELECT item_id, body FROM (
    SELECT i.item_id, i.body, depth + 1 AS depth, 0 AS kind, i.place AS position
    FROM chain JOIN items i ON i.conversation = chain.conversation AND i.place < chain.context_end
    UNION ALL
    SELECT i.item_id, i.body, depth, i.kind, i.position
    FROM chain LEFT JOIN items i
        ON i.response = chain.number AND (i.kind = 0 OR chain.depth > 0 OR $3)
) AS found
ORDER BY depth DESC, kind, position
"""

LINKS = f"{CHAIN} SELECT number, conversation, context_end FROM chain ORDER BY depth"

# A conversation without items still returns one row, of NULLs.
CONVERSATION_ITEMS = """
SELECT i.item_id, i.body FROM conversations c LEFT JOIN items i ON i.conversation = c.number
WHERE c.tenant = $1 AND c.id = $2
ORDER BY i.place
"""

NUMBER_OF_CONVERSATION = "SELECT number FROM conversations WHERE tenant = $1 AND id = $2"

# The sum keeps PostgreSQL from looking at all items of the conversation.
CONVERSATION_ITEM = """
SELECT i.body FROM items i JOIN conversations c ON c.number = i.conversation
WHERE i.tenant = $1 AND i.item_id = $3 AND c.tenant = $1 AND c.id = $2
ORDER BY i.place + 0 DESC LIMIT 1
"""

# The same id may be in many other responses. The sums keep PostgreSQL from looking at all items of
# these.
PLACES = """
SELECT response, kind, position, conversation, place FROM items
WHERE tenant = $1 AND item_id = $2
    AND (response + 0 = ANY($3::bigint[]) OR conversation + 0 = ANY($4::bigint[]))
"""

# Each range has an index of its own to read from, and no more of it is read than the page needs.
# The length of a body is known without reading it.
_WITHIN = """
SELECT item_id, body FROM (
    SELECT item_id, body, sum(octet_length(body)) OVER (
        ORDER BY number, kind {{order}}, position {{order}}
        ROWS BETWEEN UNBOUNDED PRECEDING AND 2 PRECEDING
    ) AS before, number, kind, position
    FROM ({page}) AS page
) AS counted
WHERE coalesce(before, 0) <= {max_bytes}
ORDER BY number, kind {{order}}, position {{order}}
"""
RANGES = {
    False: _WITHIN.format(
        max_bytes="$7",
        page="""
SELECT found.item_id, found.body, number, found.kind, found.position
FROM unnest($1::bigint[], $2::int[], $3::int[], $4::int[], $5::int[]) WITH ORDINALITY
    AS range (owner, kind, position, end_kind, end_position, number)
CROSS JOIN LATERAL (
    SELECT item_id, body, i.kind, i.position FROM items i
    WHERE i.response = range.owner AND (i.kind, i.position) > (range.kind, range.position)
        AND (i.kind, i.position) < (range.end_kind, range.end_position)
    ORDER BY i.kind {order}, i.position {order} LIMIT $6
) AS found
ORDER BY number, found.kind {order}, found.position {order} LIMIT $6
""",
    ),
    True: _WITHIN.format(
        max_bytes="$5",
        page="""
SELECT item_id, body, 0 AS number, 0 AS kind, place AS position FROM items
WHERE conversation = $1 AND place > $2 AND place < $3
ORDER BY place {order} LIMIT $4
""",
    ),
}

MAX_BYTES = 2**62
"""More than a page can have."""

ROW_BYTES = 128
"""A row takes as long as decoding so much JSON, about a microsecond. There may be many."""


class PostgresItems:
    """Contexts and conversations, whole or in pages."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server

    async def context(
        self, tenant: str, response_id: str, *, with_output: bool
    ) -> list[StoredItem]:
        """Return all items of a context. Raises: NotFound."""
        rows = await self._fetch(CONTEXT, tenant, response_id, with_output)
        if not rows:
            raise response_not_found(response_id)
        return await _in_thread(rows)

    async def input_page(
        self, tenant: str, response_id: str, query: StorePageQuery
    ) -> list[StoredItem]:
        """Return a page of a response's input. Raises: NotFound, NotInList."""
        chain = await self._fetch(LINKS, tenant, response_id)
        if not chain:
            raise response_not_found(response_id)
        return await self._read_page(tenant, ranges_of_chain(chain, with_output=False), query)

    async def of_conversation(
        self, tenant: str, conversation_id: str, query: StorePageQuery | None
    ) -> list[StoredItem]:
        """Return a conversation's items, or a page of them. Raises: NotFound, NotInList."""
        statement = CONVERSATION_ITEMS if query is None else NUMBER_OF_CONVERSATION
        rows = await self._fetch(statement, tenant, conversation_id)
        if not rows:
            raise conversation_not_found(conversation_id)
        if query is None:
            return await _in_thread(rows)
        return await self._read_page(tenant, [range_of_conversation(rows[0][0])], query)

    async def in_conversation(self, tenant: str, conversation_id: str, item_id: str) -> StoredItem:
        """Return the last item of the conversation that has this id. Raises: NotFound."""
        rows = await self._fetch(CONVERSATION_ITEM, tenant, conversation_id, item_id)
        if not rows:
            raise item_not_found(item_id, conversation_id)
        return StoredItem(id=item_id, raw=Raw(rows[0][0]))

    async def _read_page(
        self, tenant: str, ranges: Sequence[ItemRange], query: StorePageQuery
    ) -> list[StoredItem]:
        rows = [] if query.after is None else await self._places_of(tenant, query.after, ranges)
        rest = remaining_ranges(
            ranges,
            is_descending=query.is_descending,
            after=query.after,
            rows=rows,
        )
        found: list[Row] = []
        while rest and not is_full(found, query):
            batch = _first_batch(rest, query.limit)
            found += await self._read_ranges(batch, query, found)
            rest = rest[len(batch) :]
        return to_items(found)

    async def _places_of(
        self, tenant: str, item_id: str, ranges: Sequence[ItemRange]
    ) -> list[ItemRow]:
        rows = await self._fetch(PLACES, tenant, item_id, *owners_of(ranges))
        return [ItemRow(*row) for row in rows]

    async def _read_ranges(
        self, ranges: Sequence[ItemRange], query: StorePageQuery, found: Sequence[Row]
    ) -> list[Row]:
        order = "DESC" if query.is_descending else "ASC"
        limit, max_bytes = query.limit - len(found), MAX_BYTES
        if query.max_bytes is not None:
            max_bytes = query.max_bytes - sum(len(body) for _, body in found)
        first = ranges[0]
        statement = RANGES[first.is_conversation].format(order=order)
        if first.is_conversation:
            return await self._fetch(statement, first.owner, *first.bounds, limit, max_bytes)
        values = columns([(each.owner, *each.bounds) for each in ranges], 5)
        return await self._fetch(statement, *values, limit, max_bytes)

    async def _fetch(self, statement: str, *values: object) -> list[Row]:
        return await self._server.fetch(statement, *values, idempotent=True)


def _first_batch(ranges: Sequence[ItemRange], limit: int) -> Sequence[ItemRange]:
    """Return the first ranges, which one statement reads: a conversation, or some responses."""
    if ranges[0].is_conversation:
        return ranges[:1]
    end = next((n for n, each in enumerate(ranges) if each.is_conversation), len(ranges))
    return ranges[: min(end, limit)]


async def _in_thread(rows: list[Row]) -> list[StoredItem]:
    return await run_in_thread(ROW_BYTES * len(rows), to_items, rows)
