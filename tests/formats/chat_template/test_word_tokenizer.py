"""The tokenizer without a vocabulary."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.adapters.formats.chat_template.word_tokenizer import WordTokenizer

TOKENIZER = WordTokenizer(["<a>", "</a>"])


@given(st.text())
def test_every_text_decodes_to_itself(text: str) -> None:
    ids = TOKENIZER.encode(text, special=False)
    assert TOKENIZER.decode(ids) == text
    assert all(2 < token < 2**53 for token in ids)


@given(st.lists(st.sampled_from(["<a>", "</a>", "<", "a", " word", "ü😀", "\n"])).map("".join))
def test_markers_become_special_tokens_only_on_request(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text, special=True)) == text
    assert not {1, 2} & set(TOKENIZER.encode(text, special=False))
    assert TOKENIZER.encode(text, special=True).count(1) == text.count("<a>")


@given(st.text(), st.integers(0, 50))
def test_a_truncated_output_encodes_to_the_same_tokens(text: str, count: int) -> None:
    """So an output that was cut can be rendered again without losing the prefix cache."""
    ids = TOKENIZER.encode(text, special=False)[:count]
    assert TOKENIZER.encode(TOKENIZER.decode(ids), special=False) == ids


@pytest.mark.parametrize(
    ("text", "count"), [("", 0), ("Hello world", 2), ("strawberries", 2), ("  a", 2), ("日本語", 2)]
)
def test_a_token_is_a_short_piece_of_a_word(text: str, count: int) -> None:
    assert len(TOKENIZER.encode(text, special=False)) == count


def test_markers_have_ids() -> None:
    assert [TOKENIZER.token_id(text) for text in ("<a>", "</a>", "a")] == [1, 2, None]
