"""A text in portions has the tokens of the whole text, for each kind of tokenizer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.adapters.formats.harmony.encoding import load_encoding
from antiphon.adapters.formats.portions import split_into_portions, word_ends
from antiphon.application.support.lengths import length_of

WORDS = st.sampled_from(
    [
        *("word", "Word", "it", "'s", "\u2019ll", "don't", "1234567", "x9", "\u00e9t\u00e9"),
        *("\u4f60\u597d", "\u3002", "\uff0c", "\U0001f600", "\u0e01\u0e33", "\u0301", "e\u0301"),
        *("<|im_end|>", "<|start|>", "</think>", "f(x):", "!!", "//", "_"),
    ]
)
BLANKS = st.sampled_from(
    ["", " ", "  ", "\n", "\n\n", "\r\n", "\t", " \n ", "\u00a0", "\u3000", "\u2028", "/\n"]
)
TEXTS = st.one_of(
    st.text(),
    st.lists(st.one_of(WORDS, BLANKS, st.text(max_size=3)), max_size=40).map("".join),
)


def test_portions_are_the_whole_text_and_have_a_limit() -> None:
    text = "some words, 3 times, " * 1000
    portions = list(split_into_portions(text, 100))
    assert "".join(portions) == text
    assert max(map(len, portions)) <= 100


def test_a_text_without_a_place_to_cut_is_cut_at_the_limit() -> None:
    assert list(map(len, split_into_portions("a" * 250, 100))) == [100, 100, 50]


def test_a_place_that_is_not_safe_is_passed_over() -> None:
    portions = split_into_portions("one two three four", 12, lambda _, place: place == 3)
    assert next(portions) == "one"


@given(TEXTS)
def test_the_portions_of_harmony_have_the_tokens_of_the_whole(text: str) -> None:
    encode = load_encoding().encode
    _assert_same_tokens(encode, text)


def _assert_same_tokens(encode: Callable[[str], list[int]], text: str) -> None:
    whole = encode(text)
    for place in word_ends(text, 0, len(text) - 1):
        assert [*encode(text[:place]), *encode(text[place:])] == whole


@pytest.mark.parametrize("value", ["x" * 50, ["x" * 50], {"x" * 50: 1}, {"a": [{"b": "x" * 50}]}])
def test_the_length_of_a_value_is_that_of_its_texts(value: object) -> None:
    assert 50 <= length_of(value, 1000) <= 60


def test_counting_ends_soon_after_the_limit() -> None:
    assert length_of(["x"] * 1_000_000, 100) <= 200
