"""The condition of a search in SQL, which the databases write alike."""

from __future__ import annotations

from msgspec import Struct

from antiphon.application.ports import MAX_SEARCHED_BYTES
from antiphon.domain.responses.text_search import TextSearch

PARAMETERS_BEFORE = 3
"""Of a statement: the tenant, the number that the page begins after, and how many it reads."""


class SearchSql(Struct, frozen=True, kw_only=True):
    """How a database writes the condition.

    `has_piece` is true of a response with an item of up to `{max_bytes}` of which `{has_spelling}`
    is true, where `json` is `{json}`. `json` is the JSON of an item in lower case, `find` the
    function that returns where a text is in another, from 1. `marker` begins a parameter.
    """

    has_piece: str
    json: str
    find: str
    marker: str


def condition_of(search: TextSearch, sql: SearchSql) -> tuple[str, list[str]]:
    """Return the condition that a response may have the words, and the texts of its parameters."""
    texts: list[str] = []

    def parameter(text: str) -> str:
        texts.append(text)
        return f"{sql.marker}{PARAMETERS_BEFORE + len(texts)}"

    conditions = []
    for piece in search.pieces:
        json = sql.json
        for text in piece.frame:
            json = f"replace({json}, {parameter(text)}, '')"
        spellings = [f"{sql.find}(json, {parameter(text)}) > 0" for text in piece.spellings]
        conditions.append(
            sql.has_piece.format(
                json=json, max_bytes=MAX_SEARCHED_BYTES, has_spelling=" OR ".join(spellings)
            )
        )
    return " AND ".join(conditions) or "true", texts
