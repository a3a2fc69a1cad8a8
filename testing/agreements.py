"""What every store must do with what its servers agree on."""

from __future__ import annotations

import asyncio

import pytest

from antiphon.application.ports import Store
from antiphon.testing.store_fixtures import StoreFixtures

ODD = b"\0\xff{"


@pytest.mark.asyncio
class AgreementsContract(StoreFixtures):
    """What StoreContract says of agreements."""

    async def test_the_first_value_is_everybodys(self, store: Store, another: Store) -> None:
        assert await store.compare_and_set("a", ODD) == ODD
        assert await another.compare_and_set("a", b"late") == ODD
        assert await store.compare_and_set("a", b"later") == ODD

    async def test_names_have_values_of_their_own(self, store: Store) -> None:
        assert await store.compare_and_set("a", b"1") == b"1"
        assert await store.compare_and_set("é", b"2") == b"2"
        assert await store.compare_and_set("a", b"2") == b"1"

    async def test_a_value_is_replaced_by_who_names_it(self, store: Store, another: Store) -> None:
        await store.compare_and_set("a", ODD)
        assert await another.compare_and_set("a", b"new", expected=b"wrong") == ODD
        assert await another.compare_and_set("a", b"new", expected=ODD) == b"new"
        assert await store.compare_and_set("a", b"newer", expected=ODD) == b"new"
        assert await store.compare_and_set("a", ODD) == b"new"

    async def test_the_first_value_replaces_nothing(self, store: Store) -> None:
        assert await store.compare_and_set("a", b"1", expected=b"none") == b"1"
        assert await store.compare_and_set("b", b"", expected=b"") == b""
        assert await store.compare_and_set("b", b"1") == b""

    async def test_all_that_ask_at_once_are_told_the_same(
        self, store: Store, another: Store
    ) -> None:
        values = [b"%d" % n for n in range(20)]
        for before in (None, await store.compare_and_set("b", b"before")):
            name = "b" if before else "a"
            asked = [
                (store, another)[n % 2].compare_and_set(name, value, expected=before)
                for n, value in enumerate(values)
            ]
            told = set(await asyncio.gather(*asked))
            assert len(told) == 1
            assert told < set(values)
