"""The Harmony vocabulary: its special tokens, and text ↔ tokens.

`encode` never makes a special token, whatever the text contains. Markup is written with the
constants below. The only exceptions are `encode_markup`, for scripts, and `split_markup`, for
prompts that a client has written whole.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from openai_harmony import (  # type: ignore[import-untyped]
        DeveloperContent,
        HarmonyEncoding,
    )

# These numbers are fixed; a test compares them with the library's.
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
"""A reserved token that no model writes. It stands for a piece of an image."""

FIRST_SPECIAL = 199998
VOCABULARY_SIZE = 201088
STOPS = (RETURN, CALL, END_OF_TEXT)

CHANNELS = ("analysis", "commentary", "final")

# The library's byte-pair merging is quadratic in the length of an unbroken run of letters, symbols
# or blanks: 200,000 equal letters take 15 s. So long runs are split; text that people write has
# none this long.
MAX_RUN = 256


_RUN = re.compile(
    rf"(?:[A-Za-z]|[^\x00-\x7f\s\d]){{{MAX_RUN}}}"
    rf"|(?:[^\w\s]|[_\x1c-\x1f]){{{MAX_RUN}}}"
    rf"|\s{{{MAX_RUN}}}"
    rf"|[\r\n/]{{{MAX_RUN}}}"  # the library takes these into the run of symbols before them
)
_MARKER = re.compile(r"<\|\w+\|>")
_BLANK_RUN = re.compile(rf"\s{{{MAX_RUN}}}")


def has_long_run(text: str) -> bool:
    """Whether `text` has a run of at least `MAX_RUN` letters, symbols or blanks.

    >>> has_long_run("a word " * 1000), has_long_run("a" * 1000), has_long_run(" " * 1000)
    (False, True, True)
    """
    if len(text) < MAX_RUN:
        return False
    # The exact test is slower than encoding, so a cheap one sorts out ordinary text first.
    longest_word = max(map(len, text.split()), default=0)
    if longest_word < MAX_RUN and not _BLANK_RUN.search(text.replace("/", "\n")):
        return False
    return _RUN.search(text) is not None


def split_long_runs(text: str) -> Iterator[str]:
    """Split the text inside runs that the library would take too long to encode."""
    if not has_long_run(text):
        yield text
        return
    start = 0
    for run in _RUN.finditer(text):
        yield text[start : run.end()]
        start = run.end()
    yield text[start:]


MAX_FIXED_CHARS = 512
MAX_FIXED_TEXTS = 512
"""The system message fits. Their tokens take some 2 MB, and up to 10 MB if a client tries."""


class Encoding:
    """Text ↔ tokens. Never raises, for any text and any numbers."""

    def __init__(self, library: HarmonyEncoding) -> None:
        self._library = library
        self._encode_cached = lru_cache(maxsize=MAX_FIXED_TEXTS)(self._encode_fixed)
        # A stream has one token per step, and a few thousand tokens make up most text.
        self._decode_cached = lru_cache(maxsize=16_384)(self._decode_one)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of `text`; the text of a special token is only text."""
        return [token for part in split_long_runs(text) for token in self.encode_run(part)]

    def encode_run(self, text: str) -> list[int]:
        """Return the tokens of a text without long runs, of which it needs no check."""
        ids: list[int] = self._library.encode(text, disallowed_special=())
        return ids

    def encode_fixed(self, text: str) -> tuple[int, ...]:
        """Return the cached tokens of a text that repeats: a role, a channel, a tool's name."""
        if len(text) > MAX_FIXED_CHARS:  # the cache has a limit in bytes
            return self._encode_fixed(text)
        return self._encode_cached(text)

    def encode_markup(self, text: str) -> list[int]:
        """Return the tokens of `text`; the text of a special token becomes that token."""
        return [
            token
            for part in split_long_runs(text)
            for token in self._library.encode(part, allowed_special="all")
        ]

    def split_markup(self, text: str) -> list[int | str]:
        """Return the text's special tokens, and the texts between them."""
        pieces: list[int | str] = []
        start = 0
        for marker in _MARKER.finditer(text):
            token = self._special_ids.get(marker[0])
            if token is not None:
                pieces += [text[start : marker.start()], token]
                start = marker.end()
        pieces.append(text[start:])
        return [piece for piece in pieces if piece != ""]

    @cached_property
    def _special_ids(self) -> dict[str, int]:
        texts = ((self.text((token,)), token) for token in range(FIRST_SPECIAL, VOCABULARY_SIZE))
        return {text: token for text, token in texts if text != "\ufffd"}

    def decode_bytes(self, token_ids: Sequence[int]) -> bytes:
        """Return the bytes of the tokens; a number outside the vocabulary becomes U+FFFD."""
        if len(token_ids) == 1:
            return self._decode_cached(token_ids[0])
        try:
            return self._decode(token_ids)
        except Exception:  # the library's own error type, or OverflowError
            return b"".join(map(self._decode_cached, token_ids))

    def text(self, token_ids: Sequence[int]) -> str:
        return self.decode_bytes(token_ids).decode("utf-8", "replace")

    def render_tools(self, content: DeveloperContent) -> list[int]:
        """Return the tokens of a developer message's body."""
        from openai_harmony import Message, Role

        ids: list[int] = self._library.render(
            Message.from_role_and_content(Role.DEVELOPER, content)
        )
        return ids[ids.index(MESSAGE) + 1 : -1]

    def _decode_one(self, token: int) -> bytes:
        try:
            return self._decode((token,))
        except Exception:  # as above
            return "\ufffd".encode()

    def _decode(self, token_ids: Sequence[int]) -> bytes:
        text: str = self._library.decode(token_ids, errors="surrogateescape")
        return text.encode("utf-8", "surrogateescape")

    def _encode_fixed(self, text: str) -> tuple[int, ...]:
        return tuple(self.encode(text))


_loading_lock = threading.Lock()
_loaded: list[Encoding] = []


def load_encoding() -> Encoding:
    """Return the encoding, loaded once per process (0.3 s, some 55 MB). Thread-safe."""
    if _loaded:
        return _loaded[0]
    with _loading_lock:
        if not _loaded:
            # Imported here: the library and its pydantic models would cost a server without Harmony
            # models 20 MB and 0.1 s.
            from openai_harmony import HarmonyEncodingName, load_harmony_encoding

            _loaded.append(Encoding(load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)))
        return _loaded[0]
