"""A tokenizer without a vocabulary: a token is a short piece of a word, its id says which.

An id packs the piece's bytes behind a leading 1, so every text has tokens and every id but those
of the markers can be read back. At most six bytes a token: ids then stay below 2^53, the largest
integers that every JSON reader keeps exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain

from antiphon.adapters.formats.chat_template.tokenizer import Tokenizer

LONGEST_PIECE = 6
# A word with the space before it, or other signs, or whitespace; bounded, so that what is worth
# remembering is short.
_SPLIT = re.compile(r" ?(?:\w{1,60}|[^\w\s]{1,60})|\s{1,60}").findall
_REMEMBERED = 200_000
_REMEMBERED_TEXTS = 256
_LONGEST_REMEMBERED = 4096  # characters


class WordTokenizer(Tokenizer):
    """`markers` become the ids 1, 2, …, which no text has."""

    def __init__(self, markers: Sequence[str]) -> None:
        self._ids = {marker: number for number, marker in enumerate(markers, start=1)}
        self._markers = {number: marker for marker, number in self._ids.items()}
        self._parts = re.compile(f"({'|'.join(map(re.escape, markers))})").split
        self._words = _Words()
        self._remembered = lru_cache(_REMEMBERED_TEXTS)(self._words.encode)
        self._spellings = _Spellings(self._markers)

    def encode(self, text: str, *, special: bool) -> list[int]:
        if not special:
            # Tests and agents say the same things again and again: instructions, scripts.
            short = len(text) <= _LONGEST_REMEMBERED
            return list(self._remembered(text)) if short else self._words.encode(text)
        return list(
            chain.from_iterable(
                [self._ids[part]] if part in self._ids else self._words.encode(part)
                for part in self._parts(text)
            )
        )

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(self.spell(token_ids))

    def spell(self, token_ids: Sequence[int]) -> Iterable[str]:
        """Return the text of each token: none ends inside a character."""
        return map(self._spellings.__getitem__, token_ids)

    def token_id(self, text: str) -> int | None:
        return self._ids.get(text)

    def added(self) -> Mapping[str, bool]:
        return dict.fromkeys(self._ids, True)


class _Spellings(dict[int, str]):
    """The text of each token met so far."""

    def __init__(self, markers: Mapping[int, str]) -> None:
        super().__init__(markers)
        self._markers = markers

    def __missing__(self, token_id: int) -> str:
        if len(self) >= _REMEMBERED:
            self.clear()
            self.update(self._markers)
        packed = token_id.to_bytes((token_id.bit_length() + 7) // 8, "big")
        text = packed[1:].decode("utf-8", "replace")
        self[token_id] = text
        return text


class _Words(dict[str, tuple[int, ...]]):
    """The tokens of each word met so far."""

    def encode(self, text: str) -> list[int]:
        return list(chain.from_iterable(map(self.__getitem__, _SPLIT(text))))

    def __missing__(self, word: str) -> tuple[int, ...]:
        if len(self) >= _REMEMBERED:
            self.clear()
        ids = tuple(int.from_bytes(b"\x01" + piece, "big") for piece in _pieces(word))
        self[word] = ids
        return ids


def _pieces(word: str) -> Iterator[bytes]:
    written = word.encode("utf-8", "replace")
    start = 0
    while start < len(written):
        end = min(start + LONGEST_PIECE, len(written))
        while end < len(written) and written[end] & 0xC0 == 0x80:
            end -= 1  # not inside a character
        yield written[start:end]
        start = end
