"""The Harmony vocabulary: its special tokens by number, and text ↔ tokens.

Rule: `encode` never makes a special token, whatever the text says. Markup is written with the
constants below; the one exception, `encode_markup`, is for scripts and constants of our own.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from openai_harmony import (  # type: ignore[import-untyped]
        DeveloperContent,
        HarmonyEncoding,
    )

# The vocabulary is fixed: a test compares these numbers with the library's.
START_OF_TEXT = 199998
END_OF_TEXT = 199999
RETURN = 200002
CONSTRAIN = 200003
CHANNEL = 200005
START = 200006
END = 200007
MESSAGE = 200008
CALL = 200012
PLACEHOLDER = 200013
"""A reserved token that no model writes; stands for a piece of an image."""

FIRST_SPECIAL = 199998
VOCABULARY_SIZE = 201088
STOPS = (RETURN, CALL, END_OF_TEXT)

CHANNELS = ("analysis", "commentary", "final")

# The library's byte-pair merging is quadratic in the length of an unbroken run of letters, symbols
# or blanks: 200,000 equal letters take 15 s. Runs are cut well before that is felt; text that
# people write has none so long.
LONGEST_RUN = 256


@lru_cache
def _runs(longest: int) -> re.Pattern[str]:
    return re.compile(
        rf"(?:[A-Za-z]|[^\x00-\x7f\s\d]){{{longest}}}"
        rf"|(?:[^\w\s]|[_\x1c-\x1f]){{{longest}}}"
        rf"|\s{{{longest}}}"
    )


@lru_cache
def _blanks(longest: int) -> re.Pattern[str]:
    return re.compile(rf"\s{{{longest}}}")


def has_long_run(text: str, *, longest: int = LONGEST_RUN) -> bool:
    """Whether `text` holds a run of letters, symbols or blanks of that length.

    >>> has_long_run("a word " * 1000), has_long_run("a" * 1000), has_long_run(" " * 1000)
    (False, True, True)
    """
    if len(text) < longest:
        return False
    # The exact test is slower than encoding itself; ordinary text is sorted out before it.
    if max(map(len, text.split()), default=0) < longest and not _blanks(longest).search(text):
        return False
    return _runs(longest).search(text) is not None


def _short_runs(text: str) -> Iterator[str]:
    if not has_long_run(text):
        yield text
        return
    start = 0
    for run in _runs(LONGEST_RUN).finditer(text):
        yield text[start : run.end()]
        start = run.end()
    yield text[start:]


class Encoding:
    """Text ↔ tokens. Never raises, on any text and any numbers."""

    def __init__(self, library: HarmonyEncoding) -> None:
        self._library = library
        self._fixed = lru_cache(maxsize=4096)(self._encode_fixed)
        # A stream brings one token a step, and the same few thousand tokens make up most text.
        self._spelled = lru_cache(maxsize=16_384)(self._spell_one)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of `text`, in which special-token text is only text."""
        ids: list[int] = []
        for piece in _short_runs(text):
            ids += self._library.encode(piece, disallowed_special=())
        return ids

    def encode_fixed(self, text: str) -> tuple[int, ...]:
        """Encode what comes again and again: roles, channels, names of tools."""
        return self._fixed(text)

    def encode_markup(self, text: str) -> list[int]:
        """Return the tokens of `text`, in which special-token text becomes special tokens."""
        return list(self._library.encode(text, allowed_special="all"))

    def spell(self, token_ids: Sequence[int]) -> bytes:
        """Return the bytes that the tokens spell; a number outside the vocabulary spells U+FFFD."""
        if len(token_ids) == 1:
            return self._spelled(token_ids[0])
        try:
            return self._spell(token_ids)
        except Exception:  # the library's own error type, or OverflowError
            return b"".join(map(self._spelled, token_ids))

    def text(self, token_ids: Sequence[int]) -> str:
        return self.spell(token_ids).decode("utf-8", "replace")

    def render_tools(self, content: DeveloperContent) -> list[int]:
        """Return the tokens of a developer message's body."""
        from openai_harmony import Message, Role

        ids: list[int] = self._library.render(
            Message.from_role_and_content(Role.DEVELOPER, content)
        )
        return ids[ids.index(MESSAGE) + 1 : -1]

    def _spell_one(self, token: int) -> bytes:
        try:
            return self._spell((token,))
        except Exception:  # as above
            return "\ufffd".encode()

    def _spell(self, token_ids: Sequence[int]) -> bytes:
        text: str = self._library.decode(token_ids, errors="surrogateescape")
        return text.encode("utf-8", "surrogateescape")

    def _encode_fixed(self, text: str) -> tuple[int, ...]:
        return tuple(self.encode(text))


_loading = threading.Lock()
_loaded: list[Encoding] = []


def load_encoding() -> Encoding:
    """Return the encoding, loaded once in a process (0.3 s and some 55 MB); safe in any thread."""
    if _loaded:
        return _loaded[0]
    with _loading:
        if not _loaded:
            # Imported here: the library and its pydantic models cost a server that speaks no
            # Harmony 20 MB and 0.1 s.
            from openai_harmony import HarmonyEncodingName, load_harmony_encoding

            _loaded.append(Encoding(load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)))
        return _loaded[0]
