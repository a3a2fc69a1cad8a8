"""A cache has a limit in bytes, whatever its keys and values are."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from antiphon.adapters.formats import token_cache
from antiphon.adapters.formats.token_cache import MAX_CACHED_CHARACTERS, TokenCache, share_tokens
from antiphon.application.support.lru_cache import ENTRY_BYTES, LruCache, digest_of


def test_tenants_do_not_share_encoded_texts() -> None:
    cache: LruCache[Any] = LruCache(10_000)
    TokenCache("a", cache).put(300 * "x", [1, 2])
    assert list(TokenCache("a", cache).get(300 * "x") or ()) == [1, 2]
    assert TokenCache("b", cache).get(300 * "x") is None


def test_equal_tokens_of_a_vocabulary_are_one_integer() -> None:
    one, other = (share_tokens([int("1000"), int("262143")]) for _ in range(2))
    assert list(one) == list(other) == [1000, 262_143]
    assert all(mine is its for mine, its in zip(one, other, strict=True))


@given(st.lists(st.integers(0, 2**63)))
def test_shared_tokens_are_the_tokens(token_ids: list[int]) -> None:
    assert list(share_tokens(token_ids)) == token_ids


def test_tokens_that_no_vocabulary_has_are_kept_by_nobody() -> None:
    share_tokens([2**40])
    assert 2**40 not in token_cache._shared


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


def test_a_text_that_is_too_long_for_the_cache_is_not_looked_up() -> None:
    cache: LruCache[Any] = LruCache(10**9)
    text = "x" * (MAX_CACHED_CHARACTERS + 1)
    TokenCache("a", cache).put(text, [1])
    assert not cache


def test_parts_that_meet_elsewhere_have_another_digest() -> None:
    assert digest_of(b"ab", b"c") != digest_of(b"a", b"bc")
