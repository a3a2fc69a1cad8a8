"""Contract tests for a store's values that its servers share."""

from __future__ import annotations

import asyncio

import pytest

from antiphon.application.ports import Store
from antiphon.testing.stores.fixtures import StoreFixtures

ODD = b"\0\xff{"


@pytest.mark.asyncio
class SharedValuesContract(StoreFixtures):
    """The part of StoreContract about shared values."""

    async def test_all_servers_get_the_first_value(self, store: Store, another: Store) -> None:
        assert await store.compare_and_set("a", ODD) == ODD
        assert await another.compare_and_set("a", b"late") == ODD
        assert await store.compare_and_set("a", b"later") == ODD

    async def test_each_name_has_its_own_value(self, store: Store) -> None:
        assert await store.compare_and_set("a", b"1") == b"1"
        assert await store.compare_and_set("é", b"2") == b"2"
        assert await store.compare_and_set("a", b"2") == b"1"

    async def test_a_value_is_replaced_only_if_it_is_the_expected_one(
        self, store: Store, another: Store
    ) -> None:
        await store.compare_and_set("a", ODD)
        assert await another.compare_and_set("a", b"new", expected=b"wrong") == ODD
        assert await another.compare_and_set("a", b"new", expected=ODD) == b"new"
        assert await store.compare_and_set("a", b"newer", expected=ODD) == b"new"
        assert await store.compare_and_set("a", ODD) == b"new"

    async def test_a_first_value_needs_no_expected_one(self, store: Store) -> None:
        assert await store.compare_and_set("a", b"1", expected=b"none") == b"1"
        assert await store.compare_and_set("b", b"", expected=b"") == b""
        assert await store.compare_and_set("b", b"1") == b""

    async def test_concurrent_callers_get_the_same_value(
        self, store: Store, another: Store
    ) -> None:
        values = [b"%d" % n for n in range(20)]
        for before in (None, await store.compare_and_set("b", b"before")):
            name = "b" if before else "a"
            calls = [
                (store, another)[n % 2].compare_and_set(name, value, expected=before)
                for n, value in enumerate(values)
            ]
            kept_values = set(await asyncio.gather(*calls))
            assert len(kept_values) == 1
            assert kept_values < set(values)
