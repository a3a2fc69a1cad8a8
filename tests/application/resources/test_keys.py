"""API keys: their form, and the tenants that they belong to."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from antiphon.application.ports import ApiKey
from antiphon.application.resources.keys import (
    FindCaller,
    RefreshCaller,
    caller_of,
    create_key,
    hash_of,
)
from antiphon.domain.access.callers import Caller
from antiphon.domain.access.limits import KeyPolicy
from antiphon.domain.errors import KeysUnavailable, SettingsError, StoreError, Unauthenticated


class Source:
    """A source of keys that a test adds and removes, with a clock that it moves."""

    def __init__(self) -> None:
        self.tenants: dict[str, str] = {}
        self.lookups: list[bytes] = []
        self.fails = False
        self.now = 0.0

    async def key(self, hash: bytes) -> ApiKey | None:
        self.lookups.append(hash)
        if self.fails:
            raise StoreError("the disk is full")
        matches = (each for each in self.tenants.items() if hash_of(each[0]) == hash)
        return next((_record_of(key, tenant) for key, tenant in matches), None)

    def find(self, *others: Source, max_cached: int = 100) -> FindCaller:
        sources = [each.key for each in (self, *others)]
        return FindCaller(sources, now=lambda: self.now, cache_ttl_s=5, max_cached=max_cached)


def _record_of(key: str, tenant: str) -> ApiKey:
    return ApiKey(id=f"key_{key}", name="n", tenant=tenant, hash=hash_of(key), created_at=0)


async def tenant_of(find: FindCaller, key: str) -> str | None:
    caller = await find(key)
    return None if caller is None else caller.tenant


def make_key(name: str = "n", tenant: str = "t") -> tuple[str, ApiKey]:
    return create_key(name, tenant, new_id=lambda prefix: f"{prefix}_1", now=lambda: 12.7)


def test_a_key_has_256_random_bits_and_is_stored_as_its_hash() -> None:
    keys = {make_key()[0] for _ in range(100)}
    assert len(keys) == 100
    assert all(re.fullmatch(r"ak-[A-Za-z0-9_-]{43}", key) for key in keys)
    key, record = make_key("laptop", "search")
    assert (record.id, record.name, record.tenant, record.created_at) == (
        "key_1",
        "laptop",
        "search",
        12,
    )
    assert record.hash == hash_of(key)
    assert key.encode() not in record.hash


@pytest.mark.parametrize("tenant", ["", "a b", "-a", "a/b", "ä", "a\n", "a" * 65])
def test_a_tenant_must_have_a_plain_name(tenant: str) -> None:
    with pytest.raises(SettingsError, match=r"^A tenant must be"):
        make_key(tenant=tenant)


@pytest.mark.parametrize("name", ["", "a\n", "\x1b[31m", "n" * 101])
def test_a_key_must_have_a_printable_name(name: str) -> None:
    with pytest.raises(SettingsError, match=r"^A key's name must be"):
        make_key(name)


async def test_a_key_belongs_to_its_tenant_and_an_unknown_key_to_none() -> None:
    source = Source()
    source.tenants["k"] = "t"
    find = source.find()
    assert await tenant_of(find, "k") == "t"
    assert await tenant_of(find, "K") is None


async def test_sources_are_asked_in_order() -> None:
    file, store = Source(), Source()
    store.tenants["k"] = "t"
    find = file.find(store)
    assert await tenant_of(find, "k") == "t"
    assert len(file.lookups) == len(store.lookups) == 1


async def test_a_key_is_looked_up_once_in_five_seconds() -> None:
    source = Source()
    source.tenants["k"] = "t"
    find = source.find()
    for source.now in (0, 1, 4.9):
        assert await tenant_of(find, "k") == "t"
    assert len(source.lookups) == 1
    source.now = 5
    assert await tenant_of(find, "k") == "t"
    assert len(source.lookups) == 2


async def test_a_revoked_key_works_for_at_most_five_seconds() -> None:
    source = Source()
    source.tenants["k"] = "t"
    find = source.find()
    assert await tenant_of(find, "k") == "t"
    del source.tenants["k"]
    source.now = 4.9
    assert await tenant_of(find, "k") == "t"
    source.now = 5
    assert await tenant_of(find, "k") is None


async def test_a_new_key_that_was_tried_too_early_works_after_five_seconds() -> None:
    source = Source()
    find = source.find()
    assert await tenant_of(find, "k") is None
    source.tenants["k"] = "t"
    source.now = 5
    assert await tenant_of(find, "k") == "t"


async def test_a_flood_of_unknown_keys_evicts_no_known_key() -> None:
    source = Source()
    source.tenants["k"] = "t"
    find = source.find(max_cached=10)
    assert await tenant_of(find, "k") == "t"
    for number in range(50):
        assert await tenant_of(find, f"guess {number}") is None
    assert len(source.lookups) == 51
    assert await tenant_of(find, "k") == "t"
    assert len(source.lookups) == 51


async def test_the_least_recently_used_key_is_evicted() -> None:
    source = Source()
    source.tenants.update(a="t", b="t", c="t")
    find = source.find(max_cached=2)
    for key in "abac":  # b is the least recently used
        assert await tenant_of(find, key) == "t"
    assert len(source.lookups) == 3
    assert await tenant_of(find, "a") == "t"
    assert len(source.lookups) == 3
    assert await tenant_of(find, "b") == "t"
    assert len(source.lookups) == 4


async def test_a_source_that_fails_is_asked_again_and_its_failure_is_not_cached() -> None:
    source = Source()
    source.tenants["k"] = "t"
    source.fails = True
    find = source.find()
    with pytest.raises(KeysUnavailable):
        await find("k")
    source.fails = False
    assert await tenant_of(find, "k") == "t"


async def test_a_caller_is_refreshed_with_what_its_key_may_do_now() -> None:
    listed: list[ApiKey] = []
    asked = 0

    async def keys() -> list[ApiKey]:
        nonlocal asked
        asked += 1
        return list(listed)

    time = 100.0
    refresh = RefreshCaller([keys], now=lambda: time, date=lambda: time, cache_ttl_s=5)
    _, key = make_key()
    caller = caller_of(key)
    with pytest.raises(Unauthenticated, match="revoked"):
        await refresh(caller)
    listed.append(replace(key, policy=KeyPolicy(models=("m",), expires_at=200)))
    time = 105.0
    refreshed = await refresh(caller)
    assert refreshed.policy.models == ("m",)
    assert (await refresh(caller), asked) == (refreshed, 2)
    with pytest.raises(Unauthenticated, match="revoked"):
        await refresh(replace(caller, tenant="other"))
    time = 201.0
    with pytest.raises(Unauthenticated, match="expired"):
        await refresh(caller)


@pytest.mark.parametrize("key_id", ["", "proxy:abc", "oidc:abc"])
async def test_a_caller_without_a_key_of_ours_stays_as_it_is(key_id: str) -> None:
    caller = Caller(tenant="t", key_id=key_id)
    assert await RefreshCaller([])(caller) is caller


async def test_keys_that_cannot_be_listed_refuse_for_now() -> None:
    async def fail() -> list[ApiKey]:
        raise StoreError("down")

    with pytest.raises(KeysUnavailable):
        await RefreshCaller([fail])(Caller(tenant="t", key_id="key_1"))
