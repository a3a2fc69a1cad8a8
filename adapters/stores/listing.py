"""Parts of lists that the stores share."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import chain, count, islice
from types import MappingProxyType
from typing import TypeVar

from antiphon.application.ports import StoredItem, StorePageQuery
from antiphon.domain.errors import NotFound, NotInList

V = TypeVar("V")
Key = tuple[str, str]

MAX_LISTED_BYTES = 64 * 1024
"""Of a response's body. Longer ones are read one by one: a page of them would fill the memory."""

AFTER_NOTHING = {True: 2**63 - 1, False: 0}
"""The number that a list begins after, by whether it is descending."""


def ordered(statement: str, query: StorePageQuery) -> str:
    """Return an SQL statement of a list in the order of the query.

    >>> ordered("number {past} 5 ORDER BY number {order}", StorePageQuery(limit=1))
    'number > 5 ORDER BY number ASC'
    """
    past, order = ("<", "DESC") if query.is_descending else (">", "ASC")
    return statement.format(past=past, order=order)


def items_of(
    parts: Sequence[Sequence[StoredItem]], query: StorePageQuery | None = None
) -> list[StoredItem]:
    """Return the items of all parts in order, or one page of them. Raises: NotInList.

    >>> from msgspec import Raw
    >>> a, b = (StoredItem(id=name, raw=Raw(b"{}")) for name in "ab")
    >>> items_of([[a], [b]], StorePageQuery(limit=1, after="b", is_descending=True)) == [a]
    True
    """
    if query is None:
        return list(chain.from_iterable(parts))
    items = chain.from_iterable(parts)
    if query.is_descending:
        items = chain.from_iterable(map(reversed, reversed(parts)))
    if query.after is not None and not any(item.id == query.after for item in items):
        raise NotInList(query.after)  # else the iterator stands behind it now
    return list(islice(items, query.limit))


class Listed(dict[Key, V]):
    """Records by tenant and id, in the order of their creation.

    A page costs what it has, however many records there are before it, or of other tenants.

    >>> records = Listed[int]({("t", "a"): 1, ("u", "b"): 2, ("t", "c"): 3})
    >>> records.page("t", StorePageQuery(after="a", limit=5))
    [3]
    """

    def __init__(self, records: Mapping[Key, V] = MappingProxyType({})) -> None:
        super().__init__()
        self._numbers: dict[Key, int] = {}
        self._own: dict[str, list[tuple[int, str]]] = {}
        self._next = count()
        for key, record in records.items():
            self[key] = record

    def __setitem__(self, key: Key, record: V) -> None:
        if key not in self:
            tenant, name = key
            self._numbers[key] = next(self._next)
            self._own.setdefault(tenant, []).append((self._numbers[key], name))
        super().__setitem__(key, record)

    def remove(self, key: Key) -> V:
        """Remove a record that is there, and return it."""
        tenant, name = key
        own = self._own[tenant]
        del own[bisect_left(own, (self._numbers.pop(key), name))]
        if not own:
            del self._own[tenant]
        return super().pop(key)

    def page(self, tenant: str, query: StorePageQuery) -> list[V]:
        """Return a page of a tenant's records.

        Raises: NotFound if the record that the page begins after is not there.
        """
        own = self._own.get(tenant, [])
        if query.after is None:
            start = len(own) if query.is_descending else 0
        else:
            number = self._numbers.get((tenant, query.after))
            if number is None:
                raise NotFound(f"There is no {query.after[:100]!r}.")
            start = bisect_left(own, (number, query.after)) + (not query.is_descending)
        if query.is_descending:
            wanted = own[max(0, start - query.limit) : start][::-1]
        else:
            wanted = own[start : start + query.limit]
        return [self[tenant, name] for _, name in wanted]
