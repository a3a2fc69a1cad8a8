"""Parts of lists that the stores share."""

from __future__ import annotations

from itertools import islice
from typing import TypeVar

from antiphon.application.ports import StorePageQuery
from antiphon.domain.errors import NotFound

V = TypeVar("V")

MAX_LISTED_BYTES = 64 * 1024
"""Of a response's body. Longer ones are read one by one: a page of them would fill the memory."""

AFTER_NOTHING = {True: 2**63 - 1, False: 0}
"""The number that a list begins after, by whether it is descending."""


def page_of(records: dict[tuple[str, str], V], tenant: str, query: StorePageQuery) -> list[V]:
    """Return a page of a tenant's records, which are in the order of their creation.

    Raises: NotFound if the record that the page begins after is not there.

    >>> records = {("t", "a"): 1, ("u", "b"): 2, ("t", "c"): 3}
    >>> page_of(records, "t", StorePageQuery(after="a", limit=5))
    [3]
    """
    if query.after is not None and (tenant, query.after) not in records:
        raise NotFound(f"There is no {query.after[:100]!r}.")
    keys = reversed(records) if query.is_descending else iter(records)
    if query.after is not None:
        for key in keys:
            if key == (tenant, query.after):
                break
    own = (records[key] for key in keys if key[0] == tenant)
    return list(islice(own, query.limit))
