"""Search in the PostgreSQL store."""

from __future__ import annotations

from msgspec import Raw

from antiphon.adapters.stores.listing import ordered
from antiphon.adapters.stores.postgres.lists import PostgresLists
from antiphon.adapters.stores.postgres.server import PostgresServer, Row
from antiphon.adapters.stores.search_sql import SearchSql, condition_of
from antiphon.application.ports import FoundPage, FoundResponse, StorePageQuery
from antiphon.domain.responses.response_lists import summary_from
from antiphon.domain.responses.text_search import TextSearch

SEARCHED_AT_ONCE = 1000
"""Responses: some 20 ms."""

PAGE = """
SELECT number, id, {condition} FROM (
    SELECT number, id FROM responses
    WHERE tenant = $1 AND number {{past}} $2 AND body IS NOT NULL ORDER BY number {{order}} LIMIT $3
) AS page ORDER BY number {{order}}
"""

# `encode` never fails, unlike reading JSON as text, of which a byte may be no UTF-8. The offset
# keeps PostgreSQL from encoding an item again for each spelling.
HAS_PIECE = """EXISTS (
    SELECT 1 FROM (
        SELECT {json} AS json FROM items
        WHERE response = page.number AND kind < 2 AND octet_length(body) <= {max_bytes} OFFSET 0
    ) AS said WHERE {has_spelling}
)"""

CONDITION = SearchSql(
    has_piece=HAS_PIECE,
    json="lower(encode(body, 'escape') COLLATE \"C\")",
    find="strpos",
    marker="$",
)

FOUND = """
SELECT r.body, array(
    SELECT i.body FROM items i WHERE i.response = r.number AND kind < 2 ORDER BY kind, position
)
FROM responses r WHERE r.number = ANY ($1::bigint[]) AND r.body IS NOT NULL ORDER BY number {order}
"""


class PostgresSearch:
    """The search for responses by what was said in them."""

    def __init__(self, server: PostgresServer, lists: PostgresLists) -> None:
        self._server = server
        self._lists = lists

    async def responses(self, tenant: str, search: TextSearch, query: StorePageQuery) -> FoundPage:
        """Search some responses. Raises: NotFound."""
        after = await self._lists.number_after("responses", tenant, query)
        condition, texts = condition_of(search, CONDITION)
        statement = ordered(PAGE.format(condition=condition), query)
        values = (tenant, after, SEARCHED_AT_ONCE, *map(_escape, texts))
        rows = await self._server.fetch(statement, *values, idempotent=True)
        places = [place for place, (*_, may_match) in enumerate(rows) if may_match][: query.limit]
        is_full = len(places) == query.limit
        searched = places[-1] + 1 if is_full else len(rows)
        numbers = [rows[place][0] for place in places]
        # Some may be deleted by now.
        found = await self._server.fetch(ordered(FOUND, query), numbers, idempotent=True)
        return FoundPage(
            found=[*map(_found, found)],
            searched=searched,
            last_id=rows[searched - 1][1] if rows else query.after,
            is_last=not is_full and len(rows) < SEARCHED_AT_ONCE,
        )


def _escape(piece: str) -> str:
    r"""Return what `encode(…, 'escape')` makes of the piece.

    >>> print(_escape("\\u00fc"), _escape("ü"))
    \\u00fc \303\274
    """
    escaped = (f"\\{byte:03o}" if byte > 0x7F else chr(byte) for byte in piece.encode())
    return "".join("\\\\" if each == "\\" else each for each in escaped)


def _found(row: Row) -> FoundResponse:
    body, items = row
    return FoundResponse(response=summary_from(body), items=[Raw(item) for item in items])
