"""Search in the SQLite store."""

from __future__ import annotations

from contextlib import closing

import apsw
from msgspec import Raw

from antiphon.adapters.stores.listing import ordered
from antiphon.adapters.stores.search_sql import SearchSql, condition_of
from antiphon.adapters.stores.sqlite.file import Row, rows_of
from antiphon.adapters.stores.sqlite.lists import number_after
from antiphon.application.ports import FoundPage, FoundResponse, StorePageQuery
from antiphon.domain.responses.response_lists import summary_from
from antiphon.domain.responses.text_search import TextSearch

SEARCHED_AT_ONCE = 500
"""Responses: some 5 ms. Other reads of the tenant wait for them."""

PAGE = """
SELECT number, id, {condition} FROM (
    SELECT number, id FROM responses
    WHERE tenant = ?1 AND number {{past}} ?2 AND body IS NOT NULL ORDER BY number {{order}} LIMIT ?3
) AS page ORDER BY number {{order}}
"""

# All in SQL: a thread that runs Python for each row would wait for the event loop each time. The
# limit keeps SQLite from computing `json` for each spelling.
HAS_PIECE = """EXISTS (
    SELECT 1 FROM (
        SELECT {json} AS json FROM items
        WHERE tenant = ?1 AND response_id = page.id AND kind < 2 AND length(body) <= {max_bytes}
        LIMIT -1
    ) WHERE {has_spelling}
)"""

CONDITION = SearchSql(
    has_piece=HAS_PIECE, json="lower(CAST(body AS TEXT))", find="instr", marker="?"
)

FOUND = "SELECT body FROM responses WHERE number = ? AND body IS NOT NULL"

ITEMS = """
SELECT body FROM items WHERE tenant = ? AND response_id = ? AND kind < 2 ORDER BY kind, position
"""


def search_responses(
    tenant: str, search: TextSearch, query: StorePageQuery, db: apsw.Connection
) -> FoundPage:
    """Search some responses, read in one transaction. Raises: NotFound."""
    condition, texts = condition_of(search, CONDITION)
    statement = ordered(PAGE.format(condition=condition), query)
    after = number_after("responses", tenant, query, db)
    found: list[FoundResponse] = []
    searched, last_id = 0, query.after
    # A row is searched when it is read. A cursor that is only half read must be closed.
    with closing(db.execute(statement, (tenant, after, SEARCHED_AT_ONCE, *texts))) as rows:
        for number, last_id, may_match in rows:
            searched += 1
            if may_match:
                found.append(_read(tenant, number, last_id, db))
            if len(found) == query.limit:
                break
    is_last = searched < SEARCHED_AT_ONCE and len(found) < query.limit
    return FoundPage(found=found, searched=searched, last_id=last_id, is_last=is_last)


def _read(tenant: str, number: int, response_id: str, db: apsw.Connection) -> FoundResponse:
    [(body,)] = rows_of(db, FOUND, (number,))
    items: list[Row] = rows_of(db, ITEMS, (tenant, response_id))
    return FoundResponse(response=summary_from(body), items=[Raw(item) for (item,) in items])
