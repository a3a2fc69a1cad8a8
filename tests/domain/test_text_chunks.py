"""Chunks of a text: nothing is lost, and none is longer than requested."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from antiphon.domain.retrieval.text_chunks import text_chunks

TEXTS = st.text(alphabet=st.sampled_from("ab \n.漢字é"), max_size=400)
SIZES = st.integers(2, 20)
WORDS = st.lists(st.text(alphabet="ab.é", min_size=1, max_size=14) | st.sampled_from("漢字"))


def words(text: str) -> list[str]:
    return re.findall(r"[漢字]|[^\s漢字]+", text)


@given(TEXTS, SIZES, st.integers(0, 10))
def test_the_new_parts_of_all_chunks_are_the_text(text: str, size: int, overlap: int) -> None:
    chunks = list(text_chunks(text, size=size, overlap=min(overlap, size // 2)))
    joined = "".join(chunk.text[chunk.overlap_chars :] for chunk in chunks)
    assert re.sub(r"\s", "", joined) == re.sub(r"\s", "", text)
    assert all(chunk.text in text for chunk in chunks)


@given(TEXTS, SIZES)
def test_no_chunk_has_more_words_than_tokens(text: str, size: int) -> None:
    for chunk in text_chunks(text, size=size, overlap=size // 2):
        assert 1 <= len(words(chunk.text)) <= size


def tokens_of(word: str) -> int:
    return -(-len(word) // 6)


def plain_chunks(words: list[str], size: int, overlap: int) -> list[str]:
    """Return the chunks of words that are short enough, found word by word."""
    chunks, chunk = [], words[:0]
    for word in words:
        if sum(map(tokens_of, [*chunk, word])) > size:
            chunks.append(" ".join(chunk))
            while sum(map(tokens_of, chunk)) > overlap:
                del chunk[0]
            if sum(map(tokens_of, [*chunk, word])) > size:
                chunk.clear()
        chunk.append(word)
    return [*chunks, " ".join(chunk)] if words else []


@given(WORDS, st.integers(3, 12), st.integers(0, 6))
def test_chunks_have_as_many_whole_words_as_fit(words: list[str], size: int, overlap: int) -> None:
    overlap = min(overlap, size // 2)
    chunks = text_chunks(" ".join(words), size=size, overlap=overlap)
    assert [chunk.text for chunk in chunks] == plain_chunks(words, size, overlap)


def test_a_word_is_cut_only_if_it_is_longer_than_a_chunk() -> None:
    chunks = text_chunks(f"one {'x' * 30} two", size=3, overlap=0)
    assert [chunk.text for chunk in chunks] == ["one", "x" * 18, "x" * 12 + " two"]


def test_a_word_is_not_cut_where_spaces_fill_the_chunk() -> None:
    chunks = text_chunks(f"a{' ' * 36}bcdef", size=2, overlap=0)
    assert [chunk.text for chunk in chunks] == ["a", "bcdef"]


def test_each_chunk_begins_with_the_end_of_the_one_before() -> None:
    text = " ".join(f"w{n}" for n in range(10))
    chunks = list(text_chunks(text, size=4, overlap=2))
    assert [chunk.text for chunk in chunks] == [
        "w0 w1 w2 w3",
        "w2 w3 w4 w5",
        "w4 w5 w6 w7",
        "w6 w7 w8 w9",
    ]
    assert [chunk.text[: chunk.overlap_chars] for chunk in chunks] == [
        "",
        "w2 w3",
        "w4 w5",
        "w6 w7",
    ]


def test_a_long_text_is_split_like_a_short_one() -> None:
    text = "one two " * 300_000
    chunks = list(text_chunks(text, size=100, overlap=0))
    assert "".join(chunk.text for chunk in chunks).replace(" ", "") == text.replace(" ", "")


def test_text_without_spaces_is_split_too() -> None:
    assert len(list(text_chunks("x" * 10_000, size=100, overlap=50))) > 10
    assert len(list(text_chunks("字" * 1000, size=100, overlap=50))) == 19


def test_a_chunk_does_not_span_megabytes_of_spaces() -> None:
    chunks = list(text_chunks(f"a b{' ' * 1_000_000}c d", size=100, overlap=50))
    assert [chunk.text for chunk in chunks] == ["a b", "c d"]
    sparse_text = (" " * 100).join("x" for _ in range(1000))
    sparse_chunks = text_chunks(sparse_text, size=100, overlap=50)
    assert sum(len(chunk.text) for chunk in sparse_chunks) <= len(sparse_text)
