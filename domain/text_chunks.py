"""Split a text into overlapping chunks of about a given number of tokens.

Tokens are estimated without a tokenizer. A word counts as one token for its first six characters
and one more for every six after that; in scripts without spaces between words, each character
counts as a word. For English this is slightly more than models count, so a chunk is seldom longer
than requested.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
"""Characters of scripts without spaces between words: Thai, Lao, Burmese, Khmer, Japanese and
Chinese. Korean has spaces."""

CHARS_PER_TOKEN = 6
MAX_CHARS_PER_TOKEN = 20
"""How many characters a chunk may span per token, spaces included. Without this limit, megabytes of
spaces between two words would end up in search results."""

WINDOW_CHARS = 1 << 20
_WORD = re.compile(rf"[{UNSPACED}]|[^\s{UNSPACED}]{{1,60}}")
_UNSPACED = re.compile(rf"([{UNSPACED}])")


class TextChunk(Struct, frozen=True, kw_only=True):
    """A chunk of a text; its first `overlap_chars` characters also end the previous chunk."""

    text: str
    overlap_chars: int = 0


def text_chunks(text: str, *, size: int, overlap: int) -> Iterator[TextChunk]:
    """Yield chunks of up to `size` tokens; each repeats up to `overlap` tokens of the previous one.

    >>> [chunk.text for chunk in text_chunks("one two three four", size=2, overlap=1)]
    ['one two', 'two three', 'three four']
    """
    words: list[tuple[int, int, int]] = []  # start, end, tokens
    tokens = 0
    previous_end = 0
    max_chars = MAX_CHARS_PER_TOKEN * size
    for word in _words_of(text):
        start, end = word.span()
        count = 1 + (end - start - 1) // CHARS_PER_TOKEN
        is_too_long = bool(words) and end - words[0][0] > max_chars
        if words and (tokens + count > size or is_too_long):
            yield _chunk(text, words, previous_end)
            previous_end = words[-1][1]
            words = [] if is_too_long else _last_words(words, min(overlap, size - count))
            tokens = sum(word_tokens for _, _, word_tokens in words)
        words.append((start, end, count))
        tokens += count
    if words:
        yield _chunk(text, words, previous_end)


def _words_of(text: str) -> Iterator[re.Match[str]]:
    # One window at a time: no other thread runs while a regular expression searches.
    for start in range(0, len(text), WINDOW_CHARS):
        yield from _WORD.finditer(text, start, start + WINDOW_CHARS)


def _chunk(text: str, words: list[tuple[int, int, int]], previous_end: int) -> TextChunk:
    start, end = words[0][0], words[-1][1]
    return TextChunk(text=text[start:end], overlap_chars=max(previous_end - start, 0))


def _last_words(words: list[tuple[int, int, int]], max_tokens: int) -> list[tuple[int, int, int]]:
    """Return as many of the last words as fit into `max_tokens`."""
    first, tokens = len(words), 0
    while first and tokens + words[first - 1][2] <= max_tokens:
        first -= 1
        tokens += words[first][2]
    return words[first:]


def add_spaces(text: str) -> str:
    """Return the text with spaces around each character of a script without spaces.

    >>> add_spaces("東京 tower")
    ' 東  京  tower'
    """
    return text if text.isascii() else _UNSPACED.sub(r" \1 ", text)
