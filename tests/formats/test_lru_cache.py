"""A cache has a limit in bytes, whatever its keys and values are."""

from __future__ import annotations

from typing import Any

from antiphon.adapters.formats.token_cache import MAX_CACHED_CHARACTERS, TokenCache, token_array
from antiphon.application.support.lru_cache import ENTRY_BYTES, LruCache, digest_of


def test_tenants_do_not_share_encoded_texts() -> None:
    cache: LruCache[Any] = LruCache(10_000)
    TokenCache("a", cache).put(300 * "x", [1, 2])
    assert list(TokenCache("a", cache).get(300 * "x") or ()) == [1, 2]
    assert TokenCache("b", cache).get(300 * "x") is None


def test_tokens_take_four_bytes_each_unless_one_needs_more() -> None:
    for largest, size in ((2**32 - 1, 4), (2**32, 8)):
        ids = token_array([1, largest])
        assert (ids.tolist(), ids.itemsize) == ([1, largest], size)


def test_the_least_recently_used_values_are_evicted_first() -> None:
    cache: LruCache[str] = LruCache(4 * (ENTRY_BYTES + 100))
    for key in (b"a", b"b", b"c", b"d"):
        cache.put(key, "value", 100)
    assert cache.get(b"a") == "value"
    cache.put(b"e", "value", 100)
    assert cache.get(b"b") is None
    assert [cache.get(key) for key in (b"a", b"c", b"d", b"e")] == ["value"] * 4


def test_a_large_value_is_not_stored_and_evicts_nothing() -> None:
    cache: LruCache[str] = LruCache(10_000)
    cache.put(b"a", "small", 100)
    cache.put(b"b", "large", 5000)
    assert cache.get(b"a") == "small"
    assert cache.get(b"b") is None


def test_a_large_value_removes_the_earlier_one_of_its_key() -> None:
    cache: LruCache[str] = LruCache(10_000)
    cache.put(b"a", "small", 100)
    cache.put(b"a", "large", 5000)
    assert cache.get(b"a") is None
    assert not cache


def test_entries_without_a_value_to_speak_of_are_limited_too() -> None:
    cache: LruCache[None] = LruCache(100 * ENTRY_BYTES)
    for number in range(1000):
        cache.put(str(number).encode(), None, 0)
    assert len(cache._entries) == 100


def test_a_text_that_is_too_long_for_the_cache_costs_no_digest() -> None:
    cache: LruCache[Any] = LruCache(10**9)
    text = "x" * (MAX_CACHED_CHARACTERS + 1)
    TokenCache("a", cache).put(text, [1])
    assert not cache


def test_parts_that_meet_elsewhere_have_another_digest() -> None:
    assert digest_of(b"ab", b"c") != digest_of(b"a", b"bc")
