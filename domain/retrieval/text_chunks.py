"""Split a text into overlapping chunks of about a given number of tokens.

Tokens are estimated without a tokenizer. A word counts as one token for its first six characters
and one more for every six after that; in scripts without spaces between words, each character
counts as a word. For English this is slightly more than models count, so a chunk is seldom longer
than requested.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from msgspec import Struct

UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
"""Characters of scripts without spaces between words: Thai, Lao, Burmese, Khmer, Japanese and
Chinese. Korean has spaces."""

CHARS_PER_TOKEN = 6
MAX_CHARS_PER_TOKEN = 20
"""How many characters a chunk may span per token, spaces included. Without this limit, megabytes of
spaces between two words would end up in search results."""

WINDOW_CHARS = 1 << 20
_LETTER = rf"[^\s{UNSPACED}]"
_NOT_SPACE = re.compile(r"\S")
_LETTERS = re.compile(rf"{_LETTER}*")
_INSIDE_WORD = re.compile(rf"(?<={_LETTER}){_LETTER}")
_WORD = re.compile(rf"[{UNSPACED}]|{_LETTER}{{1,60}}")  # of a longer one, its beginning
BLOCKS = (64, 8, 1)
"""How many tokens are found at a time."""

_UNSPACED = re.compile(rf"([{UNSPACED}])")


class TextChunk(Struct, frozen=True, kw_only=True):
    """A chunk of a text; its first `overlap_chars` characters also end the previous chunk."""

    text: str
    overlap_chars: int = 0


def text_chunks(text: str, *, size: int, overlap: int) -> Iterator[TextChunk]:
    """Yield chunks of up to `size` tokens; each repeats up to `overlap` tokens of the previous one.

    A chunk ends between two words, unless it has only one.

    >>> [chunk.text for chunk in text_chunks("one two three four", size=2, overlap=1)]
    ['one two', 'two three', 'three four']
    """
    previous_end = 0
    start = new_start = _next_word(text, 0)
    while new_start < len(text):
        end = _end_of_words(text, start, size)
        if end <= new_start:  # what comes next is too long for an overlap
            start, end = new_start, _end_of_words(text, new_start, size)
        yield TextChunk(text=text[start:end], overlap_chars=max(previous_end - start, 0))
        previous_end, new_start = end, _next_word(text, end)
        word = _WORD.match(text, new_start)
        # Where spaces have filled a chunk, repeating would only add more of them.
        is_far = word is not None and word.end() - start > MAX_CHARS_PER_TOKEN * size
        repeated = 0 if is_far else _chars_to_repeat(text, start, end, overlap)
        start = end - repeated if repeated else new_start


def _next_word(text: str, position: int) -> int:
    """Return where the next word starts, or the length of the text."""
    # One window at a time: no other thread runs while a regular expression searches.
    for start in range(position, len(text), WINDOW_CHARS):
        if word := _NOT_SPACE.search(text, start, start + WINDOW_CHARS):
            return word.start()
    return len(text)


def _end_of_words(text: str, start: int, tokens: int) -> int:
    """Return where up to so many tokens of whole words end, or of one word if it has more."""
    end = _end_of_tokens(text, start, tokens)
    if not _INSIDE_WORD.match(text, end):
        return end
    letters = _LETTERS.match(text[start:end][::-1])
    assert letters is not None  # it matches nothing, too
    whole_words = text[start : end - letters.end()].rstrip()
    return start + len(whole_words) if whole_words else end


def _chars_to_repeat(text: str, start: int, end: int, tokens: int) -> int:
    """Return how many characters the last words of a chunk have, of up to so many tokens."""
    # In the reversed text they are the first. A word has as many tokens in either direction.
    backwards = text[start:end][::-1]
    repeated = _end_of_words(backwards, 0, tokens)
    # Only a part of a word that is cut anyway is repeated.
    is_whole = not _INSIDE_WORD.match(backwards, repeated) or _INSIDE_WORD.match(text, end)
    return repeated if is_whole else 0


def _end_of_tokens(text: str, start: int, tokens: int) -> int:
    """Return where so many tokens end, or fewer if they span too many characters."""
    limit = start + MAX_CHARS_PER_TOKEN * tokens
    end = start
    for count, block in zip(BLOCKS, _blocks(is_ascii=text.isascii()), strict=True):
        while tokens >= count and (match := block.match(text, end, limit)):
            end, tokens = match.end(), tokens - count
    return end


@cache
def _blocks(*, is_ascii: bool) -> list[re.Pattern[str]]:
    """Return a pattern for each number of `BLOCKS`.

    Python would count tokens several times as slowly, and all other threads wait meanwhile. There
    is no pattern for any other number: clients choose it, and each would take 10 ms to compile.
    """
    token = r"\S" if is_ascii else _LETTER
    token = rf"{token}{{1,{CHARS_PER_TOKEN}}}+" + ("" if is_ascii else f"|[{UNSPACED}]")
    return [re.compile(rf"(?:\s*+(?:{token})){{{count}}}+") for count in BLOCKS]


def add_spaces(text: str) -> str:
    """Return the text with spaces around each character of a script without spaces.

    >>> add_spaces("東京 tower")
    ' 東  京  tower'
    """
    return text if text.isascii() else _UNSPACED.sub(r" \1 ", text)
