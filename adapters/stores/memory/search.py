"""Search in the memory store."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from antiphon.adapters.stores.listing import Listed
from antiphon.adapters.stores.memory.records import ResponseRecord
from antiphon.application.ports import (
    MAX_SEARCHED_BYTES,
    FoundPage,
    FoundResponse,
    StorePageQuery,
)
from antiphon.domain.responses.response_lists import summary_from
from antiphon.domain.responses.text_search import TextSearch, WordPiece

SEARCHED_AT_ONCE = 200
"""Responses. With as many bytes as below, they hold up the event loop for a millisecond or two."""

BYTES_AT_ONCE = 1024 * 1024

EncodedPiece = tuple[list[bytes], list[bytes]]
"""The frame and the spellings of a piece."""


def search_records(
    records: Listed[ResponseRecord], tenant: str, search: TextSearch, query: StorePageQuery
) -> FoundPage:
    """Search some responses. Raises: NotFound."""
    pieces = [_encode(piece) for piece in search.pieces]
    page = records.page(tenant, replace(query, limit=SEARCHED_AT_ONCE))
    found: list[FoundResponse] = []
    searched = size = 0
    for record in page:
        searched += 1
        items = [item.raw for item in (*record.input, *record.output)]
        size += sum(map(len, items))
        bodies = [bytes(raw).lower() for raw in items if len(raw) <= MAX_SEARCHED_BYTES]
        if all(_is_in(piece, bodies) for piece in pieces):
            found.append(FoundResponse(response=summary_from(record.body), items=items))
        if len(found) == query.limit or size > BYTES_AT_ONCE:
            break
    return FoundPage(
        found=found,
        searched=searched,
        last_id=summary_from(page[searched - 1].body).id if page else query.after,
        is_last=searched == len(page) < SEARCHED_AT_ONCE,
    )


def _encode(piece: WordPiece) -> EncodedPiece:
    return [text.encode() for text in piece.frame], [text.encode() for text in piece.spellings]


def _is_in(piece: EncodedPiece, bodies: Sequence[bytes]) -> bool:
    frame, spellings = piece
    for body in bodies:
        texts = body
        for each in frame:
            texts = texts.replace(each, b"")
        if any(spelling in texts for spelling in spellings):
            return True
    return False
