"""Text that arrives in pieces, and reading it as if it were whole.

A reading is a generator: it yields where it needs more text and is resumed when there is some. So a
reader is written once, as for a complete text, and cannot depend on where the pieces were cut. It
ends at `closed`, with what there is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

T = TypeVar("T")
Resumable = Generator[None, None, T]
Write = Callable[[str], object]


class MarkerFinder:
    """Finds the first of some markers in text whose end may be the beginning of one.

    No marker may contain another elsewhere than at its start.
    """

    def __init__(self, markers: Iterable[str]) -> None:
        known = sorted(set(markers), key=len, reverse=True)
        pattern = "|".join(re.escape(marker) for marker in known)
        self._search = re.compile(pattern or "(?!)").search
        self._beginnings = frozenset(m[:size] for m in known for size in range(1, len(m)))
        self._reach = max((len(marker) for marker in known), default=1) - 1
        self.firsts = "".join(sorted({marker[0] for marker in known}))

    def find(self, text: str, pos: int) -> tuple[int, int]:
        """Return start and end of the next marker; or where one may yet begin, and -1."""
        match = self._search(text, pos)
        if match:
            return match.span()
        for start in range(max(pos, len(text) - self._reach), len(text)):
            if text[start] in self.firsts and text[start:] in self._beginnings:
                return start, -1
        return len(text), -1


class TextBuffer:
    """What was written and not yet forgotten; `origin` counts the characters forgotten."""

    __slots__ = ("_pin", "closed", "origin", "pos", "text")

    def __init__(self) -> None:
        self.text = ""
        self.pos = 0
        self.origin = 0
        self.closed = False
        self._pin: int | None = None

    @property
    def over(self) -> bool:
        """Whether nothing is left and nothing will come."""
        return self.closed and self.pos == len(self.text)

    def write(self, text: str) -> None:
        # The only reference while it grows: CPython then extends it in place, and a long wait for
        # the end of a value does not copy it with every token.
        kept, self.text = self.text, ""
        kept += text
        self.text = kept

    def forget(self) -> None:
        """Let go of what was read, unless a reader may go back to it."""
        if self._pin is None and self.pos:
            self.origin += self.pos
            self.text = self.text[self.pos :]
            self.pos = 0

    def pin(self) -> None:
        """Remember this place, for `back`."""
        self._pin = self.pos

    def release(self) -> None:
        self._pin = None

    def back(self) -> None:
        """Return to the pinned place, as if nothing had been read since."""
        if self._pin is not None:
            self.pos, self._pin = self._pin, None

    def unread(self, text: str) -> None:
        self.pos -= len(text)

    def peek(self) -> Resumable[str]:
        """Return the next character without reading it, "" at the end."""
        while self.pos == len(self.text):
            if self.closed:
                return ""
            yield
        return self.text[self.pos]

    def next(self) -> Resumable[str]:
        char = yield from self.peek()
        self.pos += len(char)
        return char

    def space(self) -> Resumable[None]:
        """Read past whitespace."""
        while (yield from self.peek()).isspace():
            self.pos += 1

    def literal(self, text: str) -> Resumable[bool]:
        """Read exactly `text`; if something else comes, read nothing and return False."""
        for count, char in enumerate(text):
            if (yield from self.peek()) != char:
                self.pos -= count
                return False
            self.pos += 1
        return True

    def until(self, finder: MarkerFinder, write: Write) -> Resumable[str]:
        """Pass text on up to the next marker; read and return the marker, "" at the end."""
        while True:
            start, end = finder.find(self.text, self.pos)
            if end < 0 and self.closed:
                start = len(self.text)
            if start > self.pos:
                write(self.text[self.pos : start])
            self.pos = start
            if end >= 0:
                self.pos = end
                return self.text[start:end]
            if self.closed:
                return ""
            self.forget()
            yield

    def upto(self, finder: MarkerFinder, limit: int) -> Resumable[tuple[str, str] | None]:
        """Read and return the text before the next marker, and the marker.

        None if there is no marker within `limit` characters.
        """
        while True:
            start, end = finder.find(self.text, self.pos)
            if start - self.pos > limit:
                return None
            if end >= 0:
                found = self.text[self.pos : start], self.text[start:end]
                self.pos = end
                return found
            if self.closed:
                return None
            yield
