"""Contract tests for a store's API keys."""

from __future__ import annotations

import hashlib

import pytest
from msgspec.structs import replace

from antiphon.application.ports import ApiKey, Store
from antiphon.domain.access.limits import FULL_ACCESS, KeyPolicy
from antiphon.domain.errors import StoreError
from antiphon.testing.stores.fixtures import StoreFixtures

POLICY = KeyPolicy(
    limits={"requests/min": 60, "tokens/day": 10**15},
    models=("org/modèl",),
    tools=("mcp",),
    hosts=("example.org",),
    scopes=("read",),
    service_tier="flex",
    expires_at=1_790_000_000,
)


def api_key(name: str, *, created_at: int = 7) -> ApiKey:
    return ApiKey(
        id=f"key_{name}",
        name=f"é {name}",
        tenant=f"tenant_{name}",
        hash=hashlib.sha256(name.encode()).digest(),
        created_at=created_at,
    )


@pytest.mark.asyncio
class KeyStoreContract(StoreFixtures):
    """The part of StoreContract about API keys."""

    async def test_keys_are_listed_oldest_first(self, store: Store, another: Store) -> None:
        assert await store.list_api_keys() == []
        keys = [api_key("z", created_at=1), api_key("a", created_at=2), api_key("m", created_at=2)]
        for one in keys:
            await store.create_api_key(one)
        assert await another.list_api_keys() == keys

    async def test_a_key_is_found_by_its_hash(self, store: Store, another: Store) -> None:
        for name in ("a", "b"):
            await store.create_api_key(api_key(name))
        assert await another.get_api_key(api_key("b").hash) == api_key("b")
        assert await another.get_api_key(api_key("unknown").hash) is None
        assert await another.get_api_key(b"") is None

    async def test_a_policy_is_stored_and_replaced(self, store: Store, another: Store) -> None:
        await store.create_api_key(replace(api_key("a"), policy=POLICY))
        await store.create_api_key(api_key("b"))
        assert await another.list_api_keys() == [replace(api_key("a"), policy=POLICY), api_key("b")]
        assert await another.update_api_key("key_b", POLICY)
        assert await another.update_api_key("key_a", FULL_ACCESS)
        assert not await store.update_api_key("key_unknown", POLICY)
        assert await store.get_api_key(api_key("b").hash) == replace(api_key("b"), policy=POLICY)
        assert await store.list_api_keys() == [api_key("a"), replace(api_key("b"), policy=POLICY)]

    async def test_a_revoked_key_is_gone(self, store: Store, another: Store) -> None:
        for name in ("a", "b"):
            await store.create_api_key(api_key(name))
        assert await store.revoke_api_key("key_a")
        assert not await another.revoke_api_key("key_a")
        assert not await store.revoke_api_key("key_unknown")
        assert await another.get_api_key(api_key("a").hash) is None
        assert await another.list_api_keys() == [api_key("b")]

    async def test_neither_an_id_nor_a_hash_can_be_used_twice(self, store: Store) -> None:
        await store.create_api_key(api_key("a"))
        same_id = ApiKey(id="key_a", name="", tenant="t", hash=b"other" * 6, created_at=8)
        same_hash = ApiKey(id="key_b", name="", tenant="t", hash=api_key("a").hash, created_at=8)
        for one in (same_id, same_hash):
            with pytest.raises(StoreError):
                await store.create_api_key(one)
        assert await store.list_api_keys() == [api_key("a")]
