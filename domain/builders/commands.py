"""Read a shell call's commands out of its JSON arguments while these arrive.

Commands can be shown early only if they come first, `{"commands": ["…"`: before the first one
begins, nothing is known. Text in any number of pieces gives the same commands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from enum import Enum, auto

from antiphon.domain import deltas as d

_STEPS = [r"\s*", r"\{", r"\s*", *'"commands"', r"\s*", ":", r"\s*", r"\[", r"\s*", '"']
_OPENING = re.compile("".join(_STEPS))
_OPENING_SO_FAR = re.compile("(?:".join(("", *_STEPS)) + ")?" * len(_STEPS) + r"\Z")
_BETWEEN = re.compile(r'\s*(?:,\s*"|\])')
_BETWEEN_SO_FAR = re.compile(r"\s*(?:,\s*)?\Z")
_PLAIN = re.compile(r'[^"\\]+')
_HEX = re.compile(r"[0-9A-Fa-f]{4}\Z")
_SHORT = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_LOST = "\ufffd"


class Place(Enum):
    """Where in the arguments the reader is."""

    BEFORE = auto()
    ELSEWHERE = auto()  # something else comes first
    COMMAND = auto()
    BETWEEN = auto()
    AFTER = auto()
    LOST = auto()  # the list goes on with what is no command


class CommandReader:
    """Text in, deltas of a shell call out: a `command` step for each command, then its text."""

    def __init__(self) -> None:
        self._place = Place.BEFORE
        self._held = ""
        self._rest: list[str] = []

    @property
    def is_whole(self) -> bool:
        """Whether the list of commands came to its end."""
        return self._place is Place.AFTER

    @property
    def rest(self) -> str:
        """What was not read as commands."""
        return self._held + "".join(self._rest)

    def feed(self, text: str) -> Iterator[d.Delta]:
        if self._place not in _READS:
            self._rest.append(text)
            return
        self._held += text
        before = None
        while self._place in _READS and self._place is not before:
            before = self._place
            yield from _READS[before](self)

    def _begin(self) -> Iterator[d.Delta]:
        if opening := _OPENING.match(self._held):
            yield self._next_command(opening.end())
        elif not _OPENING_SO_FAR.match(self._held):
            self._place = Place.ELSEWHERE

    def _next_command(self, position: int) -> d.Delta:
        self._held = self._held[position:]
        self._place = Place.COMMAND
        return d.ToolProgress("command")

    def _between(self) -> Iterator[d.Delta]:
        if found := _BETWEEN.match(self._held):
            if found[0].endswith('"'):
                yield self._next_command(found.end())
            else:
                self._held = self._held[found.end() :]
                self._place = Place.AFTER
        elif not _BETWEEN_SO_FAR.match(self._held):
            self._place = Place.LOST

    def _command(self) -> Iterator[d.Delta]:
        texts: list[str] = []
        position = 0
        while position < len(self._held):
            if plain := _PLAIN.match(self._held, position):
                texts.append(plain[0])
                position = plain.end()
            elif self._held[position] == '"':
                position += 1
                self._place = Place.BETWEEN
                break
            else:
                text, length = _escaped(self._held, position)
                if not length:
                    break
                texts.append(text)
                position += length
        self._held = self._held[position:]
        if texts:
            yield d.ArgumentsDelta("".join(texts))


_READS: Mapping[Place, Callable[[CommandReader], Iterator[d.Delta]]] = {
    Place.BEFORE: CommandReader._begin,
    Place.COMMAND: CommandReader._command,
    Place.BETWEEN: CommandReader._between,
}
"""In the other places nothing is read."""


def _escaped(text: str, start: int) -> tuple[str, int]:
    """Return what an escape means and its length, 0 if more must come. A bad escape is its text.

    >>> _escaped(r"\\n", 0), _escaped(r"\\u00e4", 0), _escaped(r"\\ud83d\\ude00", 0)
    (('\\n', 2), ('ä', 6), ('😀', 12))
    """
    letter = text[start + 1 : start + 2]
    if letter != "u":
        return (_SHORT.get(letter, "\\" + letter), 2) if letter else ("", 0)
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
    return _LOST, 6
