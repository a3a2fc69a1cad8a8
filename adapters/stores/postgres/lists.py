"""Lists in the PostgreSQL store."""

from __future__ import annotations

import msgspec

from antiphon.adapters.stores.listing import AFTER_NOTHING, MAX_LISTED_BYTES, ordered
from antiphon.adapters.stores.postgres.server import PostgresServer
from antiphon.application.ports import StorePageQuery
from antiphon.domain.errors import NotFound
from antiphon.domain.history.conversation import Conversation
from antiphon.domain.responses.response_lists import ResponseSummary, summary_from

NUMBER_OF = "SELECT number FROM {table} WHERE tenant = $1 AND id = $2"

RESPONSES = """
SELECT number, CASE WHEN octet_length(body) <= $3 THEN body END FROM responses
WHERE tenant = $1 AND number {past} $2 AND body IS NOT NULL ORDER BY number {order} LIMIT $4
"""

BODY = "SELECT body FROM responses WHERE number = $1 AND body IS NOT NULL"

CONVERSATIONS = """
SELECT id, created_at, metadata FROM conversations
WHERE tenant = $1 AND number {past} $2 ORDER BY number {order} LIMIT $3
"""


class PostgresLists:
    """Pages of a tenant's responses and conversations."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server

    async def responses(self, tenant: str, query: StorePageQuery) -> list[ResponseSummary]:
        after = await self.number_after("responses", tenant, query)
        rows = await self._server.fetch(
            *(ordered(RESPONSES, query), tenant, after, MAX_LISTED_BYTES, query.limit),
            idempotent=True,
        )
        summaries = []
        for number, body in rows:
            found = [(body,)] if body is not None else await self._read_long(number)
            summaries += [summary_from(each) for (each,) in found]
        return summaries

    async def conversations(self, tenant: str, query: StorePageQuery) -> list[Conversation]:
        after = await self.number_after("conversations", tenant, query)
        rows = await self._server.fetch(
            *(ordered(CONVERSATIONS, query), tenant, after, query.limit), idempotent=True
        )
        return [
            Conversation(id=name, created_at=created_at, metadata=msgspec.json.decode(metadata))
            for name, created_at, metadata in rows
        ]

    async def _read_long(self, number: int) -> list[tuple[bytes]]:
        rows = await self._server.fetch(BODY, number, idempotent=True)  # it may be deleted by now
        return [(row[0],) for row in rows]

    async def number_after(self, table: str, tenant: str, query: StorePageQuery) -> int:
        if query.after is None:
            return AFTER_NOTHING[query.is_descending]
        statement = NUMBER_OF.format(table=table)
        rows = await self._server.fetch(statement, tenant, query.after, idempotent=True)
        if not rows:
            raise NotFound(f"There is no {query.after[:100]!r}.")
        number: int = rows[0][0]
        return number
