"""A list in memory: a page costs what it has, wherever it begins and whoever has other records."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from antiphon.adapters.stores.listing import Listed
from antiphon.application.ports import StorePageQuery
from antiphon.domain.errors import NotFound

RECORDS = 20_000
MAX_FACTOR = 20
"""To look through all records takes a thousand times as long."""


def ask(after: str | None = None, *, limit: int = 10, newest: bool = False) -> StorePageQuery:
    return StorePageQuery(after=after, limit=limit, is_descending=newest)


def test_pages_are_in_the_order_of_creation_without_what_was_removed() -> None:
    listed = Listed({("us", "a"): 1, ("them", "x"): 9, ("us", "b"): 2, ("us", "c"): 3})
    listed["us", "a"] = 4  # changed, not new
    assert listed.page("us", ask()) == [4, 2, 3]
    assert listed.remove(("us", "b")) == 2
    assert listed.page("us", ask(newest=True)) == [3, 4]
    assert listed.page("us", ask("c", newest=True)) == [4]
    assert listed.page("us", ask("a")) == [3]
    assert listed.page("nobody", ask()) == []


@pytest.mark.parametrize("after", ["b", "x"])
def test_a_page_after_a_record_that_is_not_there_is_not_found(after: str) -> None:
    listed = Listed({("us", "a"): 1, ("us", "b"): 2, ("them", "x"): 9})
    listed.remove(("us", "b"))
    with pytest.raises(NotFound):
        listed.page("us", ask(after))


def test_a_page_at_the_end_costs_as_much_as_the_first() -> None:
    listed = Listed({("loud", f"{number}"): number for number in range(RECORDS)})
    listed["quiet", "only"] = 0
    first = shortest(lambda: listed.page("loud", ask()))
    assert shortest(lambda: listed.page("loud", ask(f"{RECORDS - 20}"))) < MAX_FACTOR * first
    assert shortest(lambda: listed.page("quiet", ask())) < MAX_FACTOR * first


def shortest(work: Callable[[], object], tries: int = 50) -> float:
    """Return the shortest of some times: what a busy machine cannot make longer."""
    times = []
    for _ in range(tries):
        began_at = time.perf_counter()
        work()
        times.append(time.perf_counter() - began_at)
    return min(times)
