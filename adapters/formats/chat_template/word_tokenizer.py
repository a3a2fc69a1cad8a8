"""A tokenizer without a vocabulary: a token is a short piece of a word, and its id holds the bytes.

An id packs the piece's bytes after a leading 1. So every text has tokens, and every id except those
of the markers can be decoded. A token has at most six bytes, so that ids stay below 2^53, up to
which every JSON reader keeps integers exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain

from antiphon.adapters.formats.chat_template.tokenizer import Tokenizer

MAX_TOKEN_BYTES = 6
# A word with the space before it, or punctuation, or whitespace. The length is limited to keep the
# cached words short.
_find_words = re.compile(r" ?(?:\w{1,60}|[^\w\s]{1,60})|\s{1,60}").findall
# A client chooses the words and the texts: these caches take some 10 MB at the most.
_MAX_CACHED_WORDS = 20_000
_MAX_CACHED_TEXTS = 64
_MAX_CACHED_TEXT_LENGTH = 2048  # characters
_PORTION_LENGTH = 4096  # characters; a search holds the interpreter's lock, here for 0.5 ms


class WordTokenizer(Tokenizer):
    """`markers` get the ids 1, 2, …, which no text is encoded as."""

    def __init__(self, markers: Sequence[str]) -> None:
        self._ids = {marker: number for number, marker in enumerate(markers, start=1)}
        self._markers = {number: marker for marker, number in self._ids.items()}
        self._split_markers = re.compile(f"({'|'.join(map(re.escape, markers))})").split
        self._words = _Words()
        self._encode_cached = lru_cache(_MAX_CACHED_TEXTS)(self._words.encode)
        self._texts = _TokenTexts(self._markers)

    def encode(self, text: str, *, special: bool) -> list[int]:
        if not special:
            # Tests and agents repeat the same texts, such as instructions and scripts.
            is_short = len(text) <= _MAX_CACHED_TEXT_LENGTH
            return list(self._encode_cached(text)) if is_short else self._words.encode(text)
        return list(
            chain.from_iterable(
                [self._ids[part]] if part in self._ids else self._words.encode(part)
                for part in self._split_markers(text)
            )
        )

    def encode_in_portions(self, text: str) -> Iterator[list[int]]:
        """Yield the tokens that `encode` returns; each portion takes about a millisecond."""
        return map(self._words.encode_words, _portions_of_words(text))

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(self.token_texts(token_ids))

    def token_texts(self, token_ids: Sequence[int]) -> Iterable[str]:
        """Return the text of each token; no token ends inside a character."""
        return map(self._texts.__getitem__, token_ids)

    def token_id(self, text: str) -> int | None:
        return self._ids.get(text)

    def added_tokens(self) -> Mapping[str, bool]:
        return dict.fromkeys(self._ids, True)


class _TokenTexts(dict[int, str]):
    """A cache of the tokens' texts."""

    def __init__(self, markers: Mapping[int, str]) -> None:
        super().__init__(markers)
        self._markers = markers

    def __missing__(self, token_id: int) -> str:
        if len(self) >= _MAX_CACHED_WORDS:
            self.clear()
            self.update(self._markers)
        packed = token_id.to_bytes((token_id.bit_length() + 7) // 8, "big")
        text = packed[1:].decode("utf-8", "replace")
        self[token_id] = text
        return text


class _Words(dict[str, tuple[int, ...]]):
    """A cache of the words' tokens."""

    def encode(self, text: str) -> list[int]:
        return self.encode_words(chain.from_iterable(_portions_of_words(text)))

    def encode_words(self, words: Iterable[str]) -> list[int]:
        return list(chain.from_iterable(map(self.__getitem__, words)))

    def __missing__(self, word: str) -> tuple[int, ...]:
        if len(self) >= _MAX_CACHED_WORDS:
            self.clear()
        ids = tuple(int.from_bytes(b"\x01" + piece, "big") for piece in _split_word(word))
        self[word] = ids
        return ids


def _portions_of_words(text: str) -> Iterator[list[str]]:
    start = 0
    while start < len(text):
        end = start + _PORTION_LENGTH
        words = _find_words(text, start, end)
        if end < len(text):
            words.pop()  # it may go on
        yield words
        start += sum(map(len, words))


def _split_word(word: str) -> Iterator[bytes]:
    encoded = word.encode("utf-8", "replace")
    start = 0
    while start < len(encoded):
        end = min(start + MAX_TOKEN_BYTES, len(encoded))
        while end < len(encoded) and encoded[end] & 0xC0 == 0x80:
            end -= 1  # not inside a character
        yield encoded[start:end]
        start = end
