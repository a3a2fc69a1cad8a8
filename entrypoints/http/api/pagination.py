"""Pages of lists, and the `include` parameter (docs/reference/api.md#lists, #include)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, get_args

import msgspec
from litestar.params import FromQuery, QueryParameter

from antiphon.application.ports import StoredItem, VectorPageQuery
from antiphon.application.support.paging import L, Page
from antiphon.application.support.threads import run_in_thread
from antiphon.domain.errors import RequestError
from antiphon.domain.history.include_filter import IncludeFilter
from antiphon.domain.requests.request import INCLUDABLE
from antiphon.entrypoints.http.api.parameters import QueryText

INCLUDE_VALUES = frozenset(get_args(INCLUDABLE))

Include = Annotated[
    list[str] | None, QueryParameter(name="include[]", required=False, max_items=100)
]
IncludePlain = Annotated[
    list[str] | None, QueryParameter(name="include", required=False, max_items=100)
]
After = QueryText
Before = QueryText
Limit = Annotated[int, QueryParameter(ge=1, le=100)]
Order = FromQuery[Literal["asc", "desc"]]


def vector_page_query(
    limit: int, after: str | None, before: str | None, order: str
) -> VectorPageQuery:
    return VectorPageQuery(limit=limit, after=after, before=before, is_descending=order == "desc")


def as_objects(page: Page[L]) -> dict[str, Any]:
    """Return a page of objects as JSON, unchanged."""
    return {
        "object": "list",
        "data": page.items,
        "first_id": page.items[0].id if page.items else None,
        "last_id": page.items[-1].id if page.items else None,
        "has_more": page.has_more,
    }


async def encode_list(page: Page[StoredItem], view: IncludeFilter) -> bytes:
    """Return a page of items as JSON, filtered by the view; a thread makes a long one."""
    size = sum(memoryview(item.raw).nbytes for item in page.items)
    return await run_in_thread(size, _encode_list, page, view)


async def encode_item(item: StoredItem, view: IncludeFilter) -> bytes:
    """Return an item as JSON, filtered by the view; a thread makes a long one."""
    return await run_in_thread(memoryview(item.raw).nbytes, _encode_item, item, view)


def _encode_list(page: Page[StoredItem], view: IncludeFilter) -> bytes:
    items = {
        "object": "list",
        "data": [view.raw(item.raw) for item in page.items],
        "first_id": page.items[0].id if page.items else None,
        "last_id": page.items[-1].id if page.items else None,
        "has_more": page.has_more,
    }
    return msgspec.json.encode(items)


def _encode_item(item: StoredItem, view: IncludeFilter) -> bytes:
    return bytes(view.raw(item.raw))


def values_of(*include: list[str] | None) -> list[str]:
    """Return all values of these `include` parameters."""
    texts = [text for parameter in include for text in parameter or ()]
    return [value for text in texts for value in text.split(",")]


def view_of(*include: list[str] | None, seal: Callable[[str], str]) -> IncludeFilter:
    """Return the view of a client with these `include` parameters. Raises: RequestError."""
    values = values_of(*include)
    for position, value in enumerate(values):
        if value not in INCLUDE_VALUES:
            raise RequestError(
                f"Invalid value: {value[:100]!r} cannot be included. Supported values are: "
                f"{', '.join(map(repr, sorted(INCLUDE_VALUES)))}.",
                param=f"include[{position}]",
                code="invalid_value",
            )
    return IncludeFilter(values, seal=seal)
