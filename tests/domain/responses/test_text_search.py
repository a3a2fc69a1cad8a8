"""Pieces of words exclude no text that has the words, however its JSON was written."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.domain.errors import RequestError
from antiphon.domain.responses.text_search import (
    BEFORE,
    EXCERPT_CHARS,
    MAX_WORDS,
    TextSearch,
    search_of,
)

SECOND_CAPITALS = "\u0130\u03f4\u1e9e\u2126\u212a\u212b"
"""Capitals of which the small letter has another capital."""

CHARS = st.characters(codec="utf-8", exclude_characters=SECOND_CAPITALS)
MANY = st.sampled_from(
    [*"aAzZ09_-\"\\/<&' \n", "user", "text", "й", "Й", "ß", "ς", "Σ", "你", "🙂"]
)
TEXTS = st.text(CHARS) | st.lists(MANY).map("".join)


@given(st.data(), TEXTS.filter(lambda text: bool(text.split())), st.booleans())
def test_no_text_with_the_words_is_excluded(data: st.DataObject, text: str, escapes: bool) -> None:
    words = data.draw(st.lists(st.sampled_from(text.split()), min_size=1, max_size=3))
    # Any part of a word is a word.
    cuts = st.integers(0, 5)
    parts = [word[data.draw(cuts) :][: data.draw(cuts) + 1] for word in words]
    search = search_of(" ".join(parts))
    if search is None or not all(word in text.lower() for word in search.words):
        return  # a sign that changes the case of its neighbor was cut off
    part = {"type": "input_text", "text": text}
    message = {"type": "message", "role": "user", "status": "completed", "content": [part]}
    body = json.dumps(message, ensure_ascii=escapes, separators=(",", ":"))
    stored = body.encode().lower()
    for piece in search.pieces:
        rest = stored
        for each in piece.frame:
            rest = rest.replace(each.encode(), b"")
        assert any(spelling.encode() in rest for spelling in piece.spellings)
    assert search.excerpt([text]) is not None


@given(st.lists(TEXTS), TEXTS)
def test_any_text_is_a_search_or_refused(texts: list[str], words: str) -> None:
    try:
        search = search_of(words)
    except RequestError as error:
        assert error.param == "search"
        assert len(set(words.lower().split())) > MAX_WORDS
        return
    assert (search is None) == (not words.split())
    if search is not None:
        excerpt = search.excerpt(texts)
        said = [text.lower() for text in texts]
        has_all = all(any(word in text for text in said) for word in search.words)
        assert (excerpt is not None) == has_all


def test_an_excerpt_is_short_and_has_the_first_word() -> None:
    text = f"{'before ' * 100}\n\n  ZANZIBAR {'after ' * 100}"
    excerpt = TextSearch(("zanzibar",)).excerpt(["nothing", text])
    assert excerpt is not None
    assert excerpt.startswith("…")
    assert excerpt.endswith("…")
    assert "before ZANZIBAR after" in excerpt
    assert excerpt.index("ZANZIBAR") <= BEFORE + 1
    assert len(excerpt) <= EXCERPT_CHARS + 2


@pytest.mark.parametrize("word", ["user", "text", "status", "message", "content", "output"])
def test_what_most_items_have_excludes_responses(word: str) -> None:
    part = '{"type":"input_text","text":"hi"}'
    message = '{"type":"message","id":"m","role":"user","status":"completed","content":[%s]}'
    item = (message % part).encode()
    [piece] = TextSearch((word,)).pieces
    for each in piece.frame:
        item = item.replace(each.encode(), b"")
    assert not any(spelling.encode() in item for spelling in piece.spellings)
