"""Read a shell call's commands from its JSON arguments while they arrive.

Commands can be shown early only if they come first in the arguments: `{"commands": ["…"`. The
result does not depend on how the arguments are split.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from enum import Enum, auto

from antiphon.domain import deltas as d

_STEPS = [r"\s*", r"\{", r"\s*", *'"commands"', r"\s*", ":", r"\s*", r"\[", r"\s*", '"']
_OPENING = re.compile("".join(_STEPS))
_PARTIAL_OPENING = re.compile("(?:".join(("", *_STEPS)) + ")?" * len(_STEPS) + r"\Z")
_SEPARATOR = re.compile(r'\s*(?:,\s*"|\])')
_PARTIAL_SEPARATOR = re.compile(r"\s*(?:,\s*)?\Z")
_UNESCAPED = re.compile(r'[^"\\]+')
_HEX = re.compile(r"[0-9A-Fa-f]{4}\Z")
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_REPLACEMENT = "\ufffd"


class Position(Enum):
    """Where the reader is in the arguments."""

    START = auto()
    OTHER_FIELD = auto()  # the arguments do not begin with the commands
    COMMAND = auto()
    BETWEEN = auto()
    END = auto()
    INVALID = auto()  # the list contains something other than strings


class CommandReader:
    """Turns text into deltas of a shell call: a `command` step for each command, then its text."""

    def __init__(self) -> None:
        self._position = Position.START
        self._buffer = ""
        self._rest: list[str] = []

    @property
    def is_complete(self) -> bool:
        """Whether the list of commands has ended."""
        return self._position is Position.END

    @property
    def rest(self) -> str:
        """The text that was not read as commands."""
        return self._buffer + "".join(self._rest)

    def feed(self, text: str) -> Iterator[d.Delta]:
        if self._position not in _READERS:
            self._rest.append(text)
            return
        self._buffer += text
        previous = None
        while self._position in _READERS and self._position is not previous:
            previous = self._position
            yield from _READERS[previous](self)

    def _read_opening(self) -> Iterator[d.Delta]:
        if opening := _OPENING.match(self._buffer):
            yield self._start_command(opening.end())
        elif not _PARTIAL_OPENING.match(self._buffer):
            self._position = Position.OTHER_FIELD

    def _start_command(self, position: int) -> d.Delta:
        self._buffer = self._buffer[position:]
        self._position = Position.COMMAND
        return d.ToolProgress("command")

    def _read_separator(self) -> Iterator[d.Delta]:
        if separator := _SEPARATOR.match(self._buffer):
            if separator[0].endswith('"'):
                yield self._start_command(separator.end())
            else:
                self._buffer = self._buffer[separator.end() :]
                self._position = Position.END
        elif not _PARTIAL_SEPARATOR.match(self._buffer):
            self._position = Position.INVALID

    def _read_command(self) -> Iterator[d.Delta]:
        texts: list[str] = []
        position = 0
        while position < len(self._buffer):
            if unescaped := _UNESCAPED.match(self._buffer, position):
                texts.append(unescaped[0])
                position = unescaped.end()
            elif self._buffer[position] == '"':
                position += 1
                self._position = Position.BETWEEN
                break
            else:
                text, length = _unescape(self._buffer, position)
                if not length:
                    break
                texts.append(text)
                position += length
        self._buffer = self._buffer[position:]
        if texts:
            yield d.ArgumentsDelta("".join(texts))


_READERS: Mapping[Position, Callable[[CommandReader], Iterator[d.Delta]]] = {
    Position.START: CommandReader._read_opening,
    Position.COMMAND: CommandReader._read_command,
    Position.BETWEEN: CommandReader._read_separator,
}
"""The method for each position; in the others, nothing is read."""


def _unescape(text: str, start: int) -> tuple[str, int]:
    """Return the text of an escape and the escape's length, 0 if it is not complete yet.

    An invalid escape stands for itself.

    >>> _unescape(r"\\n", 0), _unescape(r"\\u00e4", 0), _unescape(r"\\ud83d\\ude00", 0)
    (('\\n', 2), ('ä', 6), ('😀', 12))
    """
    letter = text[start + 1 : start + 2]
    if letter != "u":
        return (_ESCAPES.get(letter, "\\" + letter), 2) if letter else ("", 0)
    digits = text[start + 2 : start + 6]
    if len(digits) < 4:
        return "", 0
    if not _HEX.match(digits):
        return "\\u", 2
    code = int(digits, 16)
    if not 0xD800 <= code < 0xE000:
        return chr(code), 6
    second = text[start + 6 : start + 12]
    if code < 0xDC00 and len(second) < 6 and "\\u".startswith(second[:2]):
        return "", 0
    if code < 0xDC00 and second.startswith("\\u") and _HEX.match(second[2:]):
        low = int(second[2:], 16)
        if 0xDC00 <= low < 0xE000:
            return chr(0x10000 + ((code - 0xD800) << 10) + low - 0xDC00), 12
    return _REPLACEMENT, 6
