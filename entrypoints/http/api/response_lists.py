"""The query of `GET /v1/responses` and `GET /v1/conversations`: pages and filters."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Annotated, Any

from litestar.params import QueryParameter
from msgspec import UNSET
from msgspec.structs import replace

from antiphon.application.ports import StorePageQuery
from antiphon.application.support.listing import E, ListPage
from antiphon.domain.errors import RequestError
from antiphon.domain.history.include_filter import METRICS
from antiphon.domain.responses.response import TERMINAL
from antiphon.domain.responses.response_lists import ResponseSummary
from antiphon.entrypoints.http.api.pagination import Order
from antiphon.entrypoints.http.api.requests import HttpRequest

STATUSES = TERMINAL | {"queued", "in_progress"}
PAGE_PARAMETERS = frozenset({"limit", "after", "order"})
RESPONSE_PARAMETERS = PAGE_PARAMETERS | {
    "include",
    "include[]",
    "status",
    "model",
    "key",
    "door",
    "conversation",
    "previous_response_id",
    "tool",
    "error",
    "created_after",
    "created_before",
    "awaits_approval",
    "search",
}
# Litestar leaves a bound of 0 out of the OpenAPI document.
Time = Annotated[float | None, QueryParameter(gt=-1, le=2**53)]
SearchText = Annotated[str | None, QueryParameter(max_length=1000)]
_METADATA = re.compile(r"metadata\[(.*)\]", re.DOTALL)


def metadata_of(request: HttpRequest, known: Collection[str]) -> dict[str, str]:
    """Return the values of the parameters `metadata[NAME]`.

    Raises: RequestError for any other parameter that is not `known`: a filter that is spelled wrong
    would find everything.
    """
    metadata = {}
    for name, value in request.query_params.multi_items():
        if (of_metadata := _METADATA.fullmatch(name)) is not None:
            metadata[of_metadata[1]] = value
        elif name not in known:
            names = ", ".join((*sorted(known), "metadata[NAME]"))
            raise RequestError(
                f"Unknown parameter: {name[:100]!r}. Known are: {names}.",
                param=name[:100],
                code="unknown_parameter",
            )
    return metadata


def statuses_of(status: str | None) -> frozenset[str]:
    """Return the statuses of a parameter, which are separated by commas. Raises: RequestError."""
    statuses = frozenset(status.split(",")) if status is not None else frozenset()
    if not statuses <= STATUSES:
        raise RequestError(
            f"Invalid value: 'status' must be one or more of {', '.join(sorted(STATUSES))}, "
            "separated by commas.",
            param="status",
            code="invalid_value",
        )
    return statuses


def page_query(limit: int, after: str | None, order: Order) -> StorePageQuery:
    return StorePageQuery(limit=limit, after=after, is_descending=order == "desc")


def as_page(page: ListPage[E]) -> dict[str, Any]:
    """Return a page as JSON."""
    return {
        "object": "list",
        "data": page.items,
        "first_id": page.items[0].id if page.items else None,
        "last_id": page.last_id,
        "has_more": page.has_more,
        "searched": page.searched,
    }


def show_metrics(
    page: ListPage[ResponseSummary], include: Sequence[str]
) -> ListPage[ResponseSummary]:
    """Return the page as a client that includes these sees it."""
    if METRICS in include:
        return page
    return replace(page, items=[replace(each, metrics=UNSET, preview=UNSET) for each in page.items])
