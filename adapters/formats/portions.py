"""Split what must be encoded into portions, so that no request holds up the others.

Most tokenizers hold the interpreter's lock while they encode a text, so a thread alone is no help.
Between two portions, other requests run. The tokens are those of the whole text: a portion ends
between a letter and a blank, a digit or a symbol, where the patterns that split texts before they
are encoded always end a match, and do not look back from the next one.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator
from itertools import islice

import msgspec

from antiphon.application.ports import Turn
from antiphon.application.support.lengths import length_of
from antiphon.domain.errors import input_too_long

CUT_SEARCH_CHARS = 2048
"""How far before its limit a portion may end. Only a text that nobody reads has no place there."""

MAX_TRIES = 8
"""How many ends of words are checked before a portion ends at its limit."""

MAX_ITEMS_AT_ONCE = 100
MAX_CHARS_AT_ONCE = 100_000
"""A turn with more items or characters is rendered in a thread: that takes more than some 3 ms."""

_encode = msgspec.json.Encoder().encode

_APOSTROPHES = "'\u2019"  # patterns keep 's and 'll with the word
_FOLLOWING = "ZPSN"


def split_into_portions(
    text: str, max_chars: int, is_safe: Callable[[str, int], bool] = lambda *_: True
) -> Iterator[str]:
    """Split a text into portions of at most `max_chars`, at places that `is_safe` accepts.

    >>> list(split_into_portions("some words, 3 times", 12))
    ['some words', ', 3 times']
    """
    start = 0
    while len(text) - start > max_chars:
        limit = start + max_chars
        places = islice(word_ends(text, start, limit), MAX_TRIES)
        end = next((place for place in places if is_safe(text, place)), limit)
        yield text[start:end]
        start = end
    yield text[start:]


def word_ends(text: str, start: int, limit: int) -> Iterator[int]:
    """Yield the places after `start`, up to `limit`, where a word ends; the last one first."""
    for place in range(limit, max(start, limit - CUT_SEARCH_CHARS), -1):
        if text[place - 1].isalpha() and _ends_word(text[place]):
            yield place


def _ends_word(char: str) -> bool:
    if char in _APOSTROPHES:
        return False
    return char.isspace() or unicodedata.category(char)[0] in _FOLLOWING


def is_large(turn: Turn) -> bool:
    """Whether rendering the conversation takes so long that others would notice."""
    if len(turn.items) > MAX_ITEMS_AT_ONCE:
        return True
    size = len(turn.instructions or "")
    for item in turn.items:
        content = getattr(item, "content", None)
        if isinstance(content, str):
            size += len(content)
        else:
            size += length_of(item, MAX_CHARS_AT_ONCE - size)
    for value in filter(None, (turn.previous_messages, turn.template_kwargs)):
        size += length_of(value, MAX_CHARS_AT_ONCE - size)
    return size > MAX_CHARS_AT_ONCE


def has_large_tools(turn: Turn) -> bool:
    """Whether rendering the tools takes so long that others would notice."""
    if len(turn.tools) > MAX_ITEMS_AT_ONCE:
        return True
    size = 0
    try:
        for tool in turn.tools:
            size += len(_encode(tool))  # much faster than `length_of`, and tools are often many
            if size > MAX_CHARS_AT_ONCE:
                return True
    except RecursionError:
        return True
    return False


def check_length(tokens: int, limit: int | None) -> None:
    """Raises: RequestError if the prompt has more tokens already than it may have in all."""
    if limit is not None and tokens > limit:
        raise input_too_long(f"more than {tokens - 1}", limit)
