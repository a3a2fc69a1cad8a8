"""Take free text, or code, out of the JSON it is wrapped in, as it arrives.

What is not `{"input": "…"}`, or what else the key is, is taken as the free text itself: the model
wrote it without the wrapping (formats/tools.py).
"""

from __future__ import annotations

import re
from functools import lru_cache

_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_CLOSING = re.compile(r"\s*\}?\s*\Z")
_PLAIN = re.compile(r'[^"\\]+')
_HEX = re.compile(r"[0-9A-Fa-f]{4}")


class Unwrapper:
    """Arguments in, free text out; the same text in however many pieces it comes."""

    def __init__(self, key: str) -> None:
        self._opening, self._opening_so_far = _openings(key)
        self._held = ""
        self._read = self._read_opening

    def feed(self, text: str) -> str:
        self._held += text
        return self._read()

    def end(self) -> tuple[str, str]:
        """Return the free text that was held back, and text that followed the wrapping."""
        held, self._held = self._held, ""
        if self._read == self._read_closing:
            return "", "" if _CLOSING.match(held) else held
        return held, ""

    def _read_opening(self) -> str:
        if opening := self._opening.match(self._held):
            self._held = self._held[opening.end() :]
            self._read = self._read_string
            return self._read()
        if self._opening_so_far.match(self._held):
            return ""
        self._read = self._read_bare
        return self._read()

    def _read_bare(self) -> str:
        text, self._held = self._held, ""
        return text

    def _read_string(self) -> str:
        held = self._held
        texts: list[str] = []
        position = 0
        while position < len(held):
            if plain := _PLAIN.match(held, position):
                texts.append(plain[0])
                position = plain.end()
                continue
            if held[position] == '"':
                self._read = self._read_closing
                position += 1
                break
            text, length = _read_escape(held, position)
            if not length:
                break
            texts.append(text)
            position += length
        self._held = held[position:]
        return "".join(texts)

    def _read_closing(self) -> str:
        return ""


@lru_cache
def _openings(key: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return what an opening looks like, and what it may look like so far: every step optional."""
    steps = [r"\{\s*", '"', *map(re.escape, key), r'"\s*', r":\s*", '"']
    so_far = "".join(f"(?:{step}" for step in steps) + ")?" * len(steps)
    return re.compile(r"\s*" + "".join(steps)), re.compile(rf"\s*{so_far}\Z")


def _read_escape(held: str, position: int) -> tuple[str, int]:
    """Return an escape's text and length; length 0 if more must come. A bad escape is its text."""
    if len(held) < position + 2:
        return "", 0
    letter = held[position + 1]
    if letter != "u":
        return _ESCAPES.get(letter, "\\" + letter), 2
    if len(held) < position + 6:
        return "", 0
    digits = held[position + 2 : position + 6]
    if not _HEX.fullmatch(digits):
        return "\\u", 2
    code = int(digits, 16)
    if not 0xD800 <= code <= 0xDFFF:
        return chr(code), 6
    if code >= 0xDC00:
        return "\ufffd", 6  # the second half of a pair without its first
    low = held[position + 6 : position + 12]
    if len(low) < 6 and "\\u".startswith(low[:2]):
        return "", 0
    if low.startswith("\\u") and _HEX.fullmatch(low[2:]) and 0xDC00 <= int(low[2:], 16) <= 0xDFFF:
        return chr(0x10000 + ((code - 0xD800) << 10) + int(low[2:], 16) - 0xDC00), 12
    return "\ufffd", 6
