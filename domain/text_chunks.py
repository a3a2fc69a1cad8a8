"""A text in chunks that overlap, each of about so many tokens.

Tokens are counted without a tokenizer: every word is one for its first six characters and one more
for each six that follow, and so is each character of a script that puts no spaces between words.
That is a little more than models count in English, so that a chunk is seldom longer than asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
"""Characters of scripts that put no spaces between words: Thai, Lao, Burmese, Khmer, Japanese and
Chinese; not Korean, which does."""

CHARACTERS_A_TOKEN = 6
SPREAD = 20
"""Characters for each token that a chunk may span, its spaces included: megabytes of spaces between
two words would else be in every result that shows them."""

WINDOW = 1 << 20
_WORD = re.compile(rf"[{UNSPACED}]|[^\s{UNSPACED}]{{1,60}}")
_UNSPACED = re.compile(rf"([{UNSPACED}])")


class TextChunk(Struct, frozen=True, kw_only=True):
    """`overlap_chars` is how many of its first characters end the chunk before."""

    text: str
    overlap_chars: int = 0


def text_chunks(text: str, *, size: int, overlap: int) -> Iterator[TextChunk]:
    """Yield the chunks of a text: `size` tokens each, the first `overlap` those of the one before.

    >>> [chunk.text for chunk in text_chunks("one two three four", size=2, overlap=1)]
    ['one two', 'two three', 'three four']
    """
    words: list[tuple[int, int, int]] = []  # start, end, tokens
    tokens = 0
    end_before = 0
    longest = SPREAD * size
    for word in _words_of(text):
        start, end = word.span()
        count = 1 + (end - start - 1) // CHARACTERS_A_TOKEN
        is_too_long = bool(words) and end - words[0][0] > longest
        if words and (tokens + count > size or is_too_long):
            yield _chunk(text, words, end_before)
            end_before = words[-1][1]
            words = [] if is_too_long else _last(words, min(overlap, size - count))
            tokens = sum(each[2] for each in words)
        words.append((start, end, count))
        tokens += count
    if words:
        yield _chunk(text, words, end_before)


def _words_of(text: str) -> Iterator[re.Match[str]]:
    # By a megabyte at a time: while an expression is looked for, no other thread runs.
    for start in range(0, len(text), WINDOW):
        yield from _WORD.finditer(text, start, start + WINDOW)


def _chunk(text: str, words: list[tuple[int, int, int]], end_before: int) -> TextChunk:
    start, end = words[0][0], words[-1][1]
    return TextChunk(text=text[start:end], overlap_chars=max(end_before - start, 0))


def _last(words: list[tuple[int, int, int]], most: int) -> list[tuple[int, int, int]]:
    """Return the last words that have up to `most` tokens."""
    first, tokens = len(words), 0
    while first and tokens + words[first - 1][2] <= most:
        first -= 1
        tokens += words[first][2]
    return words[first:]


def add_spaces(text: str) -> str:
    """Return the text with spaces around characters that are words by themselves.

    >>> add_spaces("東京 tower")
    ' 東  京  tower'
    """
    return text if text.isascii() else _UNSPACED.sub(r" \1 ", text)
