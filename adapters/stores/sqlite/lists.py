"""Lists in the SQLite store."""

from __future__ import annotations

import apsw
import msgspec

from antiphon.adapters.stores.listing import AFTER_NOTHING, MAX_LISTED_BYTES, ordered
from antiphon.adapters.stores.sqlite.file import rows_of
from antiphon.application.ports import StorePageQuery
from antiphon.domain.errors import NotFound
from antiphon.domain.history.conversation import Conversation
from antiphon.domain.responses.response_lists import ResponseSummary, summary_from

NUMBER_OF = "SELECT number FROM {table} WHERE tenant = ? AND id = ?"

RESPONSES = """
SELECT number, CASE WHEN length(body) <= ?3 THEN body END FROM responses
WHERE tenant = ?1 AND number {past} ?2 AND body IS NOT NULL ORDER BY number {order} LIMIT ?4
"""

BODY = "SELECT body FROM responses WHERE number = ?"

CONVERSATIONS = """
SELECT id, created_at, metadata FROM conversations
WHERE tenant = ?1 AND number {past} ?2 ORDER BY number {order} LIMIT ?3
"""


def list_responses(
    tenant: str, query: StorePageQuery, db: apsw.Connection
) -> list[ResponseSummary]:
    """Return a page, read in one transaction. Raises: NotFound."""
    after = number_after("responses", tenant, query, db)
    rows = rows_of(db, ordered(RESPONSES, query), (tenant, after, MAX_LISTED_BYTES, query.limit))
    summaries = []
    for number, body in rows:
        for (found,) in [(body,)] if body is not None else rows_of(db, BODY, (number,)):
            summaries.append(summary_from(found))
    return summaries


def list_conversations(
    tenant: str, query: StorePageQuery, db: apsw.Connection
) -> list[Conversation]:
    """Return a page. Raises: NotFound."""
    after = number_after("conversations", tenant, query, db)
    rows = rows_of(db, ordered(CONVERSATIONS, query), (tenant, after, query.limit))
    return [
        Conversation(id=name, created_at=created_at, metadata=msgspec.json.decode(metadata))
        for name, created_at, metadata in rows
    ]


def number_after(table: str, tenant: str, query: StorePageQuery, db: apsw.Connection) -> int:
    if query.after is None:
        return AFTER_NOTHING[query.is_descending]
    rows = rows_of(db, NUMBER_OF.format(table=table), (tenant, query.after))
    if not rows:
        raise NotFound(f"There is no {query.after[:100]!r}.")
    number: int = rows[0][0]
    return number
