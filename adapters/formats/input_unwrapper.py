"""Takes free text, or code, out of its JSON wrapping as it arrives.

Anything but `{"input": "…"}` (or another key) is the free text itself: the model wrote it without
the wrapping that formats/tools.py describes.
"""

from __future__ import annotations

import re
from functools import lru_cache

_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_PLAIN = re.compile(r'[^"\\]+')
_HEX = re.compile(r"[0-9A-Fa-f]{4}")


_QUOTED_OBJECT = (
    re.compile(r'\s*"(?=\{(?:\s|\\[nrt])*(?:\\"|\}))'),
    re.compile(r'\s*(?:"(?:\{(?:\s|\\[nrt])*\\?)?)?\Z'),
)
"""A whole and a partial opening of a JSON object that was encoded twice, as a string."""


class InputUnwrapper:
    """Turns a call's arguments into free text; the pieces they come in make no difference.

    Without a key, only a JSON object that was encoded twice is unwrapped: to that object.
    """

    def __init__(self, key: str | None) -> None:
        self._opening, self._partial_opening = (
            _QUOTED_OBJECT if key is None else _opening_patterns(key)
        )
        self._buffer = ""
        self._read = self._read_opening

    def feed(self, text: str) -> str:
        self._buffer += text
        return self._read()

    def end(self) -> tuple[str, str]:
        """Return the free text that was held back, and stray text after the wrapping."""
        rest, self._buffer = self._buffer, ""
        if self._read == self._read_closing:
            # Models write a call as if it stood in a list.
            return "", rest if rest.strip(" \t\r\n}])") else ""
        return rest, ""

    def _read_opening(self) -> str:
        if opening := self._opening.match(self._buffer):
            self._buffer = self._buffer[opening.end() :]
            self._read = self._read_string
            return self._read()
        if self._partial_opening.match(self._buffer):
            return ""
        self._read = self._read_unwrapped
        return self._read()

    def _read_unwrapped(self) -> str:
        text, self._buffer = self._buffer, ""
        return text

    def _read_string(self) -> str:
        buffer = self._buffer
        texts: list[str] = []
        position = 0
        while position < len(buffer):
            if plain := _PLAIN.match(buffer, position):
                texts.append(plain[0])
                position = plain.end()
                continue
            if buffer[position] == '"':
                self._read = self._read_closing
                position += 1
                break
            text, length = _read_escape(buffer, position)
            if not length:
                break
            texts.append(text)
            position += length
        self._buffer = buffer[position:]
        return "".join(texts)

    def _read_closing(self) -> str:
        return ""


def unquote_object(arguments: str) -> str:
    """Return whole arguments, decoded if they are a JSON object that was encoded twice.

    >>> unquote_object(r'"{\\"a\\": 1}"'), unquote_object('{"a": 1}'), unquote_object('"a"')
    ('{"a": 1}', '{"a": 1}', '"a"')
    """
    if not _QUOTED_OBJECT[0].match(arguments):
        return arguments
    unwrapper = InputUnwrapper(None)
    return unwrapper.feed(arguments) + "".join(unwrapper.end())


@lru_cache
def _opening_patterns(key: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return a pattern for a whole opening, and one for a partial opening."""
    steps = [r"\{\s*", '"', *map(re.escape, key), r'"\s*', r":\s*", '"']
    partial = "".join(f"(?:{step}" for step in steps) + ")?" * len(steps)
    return re.compile(r"\s*" + "".join(steps)), re.compile(rf"\s*{partial}\Z")


def _read_escape(buffer: str, position: int) -> tuple[str, int]:
    """Return an escape's text and length, 0 if it is incomplete. A bad escape stands for itself."""
    if len(buffer) < position + 2:
        return "", 0
    letter = buffer[position + 1]
    if letter != "u":
        return _ESCAPES.get(letter, "\\" + letter), 2
    if len(buffer) < position + 6:
        return "", 0
    digits = buffer[position + 2 : position + 6]
    if not _HEX.fullmatch(digits):
        return "\\u", 2
    code = int(digits, 16)
    if not 0xD800 <= code <= 0xDFFF:
        return chr(code), 6
    if code >= 0xDC00:
        return "\ufffd", 6  # a low surrogate without a high one
    low = buffer[position + 6 : position + 12]
    if len(low) < 6 and "\\u".startswith(low[:2]):
        return "", 0
    if low.startswith("\\u") and _HEX.fullmatch(low[2:]) and 0xDC00 <= int(low[2:], 16) <= 0xDFFF:
        return chr(0x10000 + ((code - 0xD800) << 10) + int(low[2:], 16) - 0xDC00), 12
    return "\ufffd", 6
