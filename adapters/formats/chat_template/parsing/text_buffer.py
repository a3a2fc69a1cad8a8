"""A buffer for text that arrives in pieces, with readers that see it as if it were complete.

Another one is for the deltas that they write.

A reader is a generator: it yields when it needs more text, and is resumed when some has arrived. So
a reader is written as for a complete text, and does not depend on where the pieces were cut. Once
the buffer is `closed`, the reader ends with the text that there is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from itertools import combinations
from typing import TypeVar

from antiphon.domain import deltas as d

T = TypeVar("T")
Resumable = Generator[None, None, T]
Write = Callable[[str], object]
DeltaType = Callable[[str], d.Delta]
"""A delta with only a text: TextDelta, ReasoningDelta, RefusalDelta or ArgumentsDelta."""


_is_cut_marker = re.compile(r"(<[|\uff5c]|\]<\]).*\w", re.DOTALL).match


class MarkerFinder:
    """Finds the first of several markers in a text that may end in the middle of one.

    Of the markers that start at one place, the longest is found.
    """

    def __init__(self, markers: Iterable[str]) -> None:
        longest_first = sorted(set(markers), key=len, reverse=True)
        self.markers = tuple(longest_first)
        pattern = "|".join(re.escape(marker) for marker in longest_first)
        compiled = re.compile(pattern or "(?!)")
        self._search = compiled.search
        self._match = compiled.match
        self._prefixes = frozenset(m[:size] for m in longest_first for size in range(1, len(m)))
        self._max_prefix = max((len(marker) for marker in longest_first), default=1) - 1
        self.first_characters = "".join(sorted({marker[0] for marker in longest_first}))
        # A marker that stands in another one is only found once that is ruled out.
        self._overlaps = any(inner in outer for outer, inner in combinations(longest_first, 2))

    def find(self, text: str, pos: int, *, is_whole: bool = False) -> tuple[int, int]:
        """Return the start and end of the next marker, or where one may start later, and -1.

        If the text `is_whole`, none can start later.
        """
        match = self._search(text, pos)
        if is_whole or (match and not self._overlaps):
            return match.span() if match else (len(text), -1)
        last = match.start() + 1 if match else len(text)
        for start in range(max(pos, len(text) - self._max_prefix), last):
            if text[start] in self.first_characters and text[start:] in self._prefixes:
                return start, -1
        return match.span() if match else (len(text), -1)

    def find_cut(self, text: str, pos: int) -> int:
        """Return where a marker starts that the end of the text cut off, else that end.

        Its beginning must be unmistakable: a text may well end with `<` or `</`.

        >>> finder = MarkerFinder(["<|tool_call|>", "</think>"])
        >>> [finder.find_cut(text, 0) for text in ("a <|tool_", "a <|", "a </thi")]
        [2, 4, 7]
        """
        for start in range(max(pos, len(text) - self._max_prefix), len(text)):
            if text[start:] in self._prefixes and _is_cut_marker(text, start):
                return start
        return len(text)

    def find_here(self, text: str, pos: int, *, is_whole: bool = False) -> int:
        """Return the end of the marker that starts here, 0 if one may start, -1 if none does."""
        match = self._match(text, pos)
        rest = text[pos : pos + self._max_prefix + 1]
        if not is_whole and (not rest or rest in self._prefixes) and (not match or self._overlaps):
            return 0
        return match.end() if match else -1


class TextBuffer:
    """Text that was written and not yet discarded; `offset` counts the discarded characters."""

    __slots__ = ("_pinned", "closed", "offset", "pos", "text")

    def __init__(self) -> None:
        self.text = ""
        self.pos = 0
        self.offset = 0
        self.closed = False
        self._pinned: int | None = None

    @property
    def at_end(self) -> bool:
        """Whether all text was read and no more will come."""
        return self.closed and self.pos == len(self.text)

    def write(self, text: str) -> None:
        # CPython extends a string in place if there is only one reference to it. So a long value
        # that has not ended yet is not copied for every token.
        buffered, self.text = self.text, ""
        buffered += text
        self.text = buffered

    def discard_read(self) -> None:
        """Discard the text that was read, unless a reader may rewind to it."""
        if self._pinned is None and self.pos:
            self.offset += self.pos
            self.text = self.text[self.pos :]
            self.pos = 0

    def pin(self) -> None:
        """Remember this position, for `rewind`."""
        self._pinned = self.pos

    def unpin(self) -> None:
        self._pinned = None

    def rewind(self) -> None:
        """Return to the pinned position, as if nothing had been read since."""
        if self._pinned is not None:
            self.pos, self._pinned = self._pinned, None

    def unread(self, text: str) -> None:
        self.pos -= len(text)

    def peek(self) -> Resumable[str]:
        """Return the next character without reading it, "" at the end."""
        while self.pos == len(self.text):
            if self.closed:
                return ""
            yield
        return self.text[self.pos]

    def read_char(self) -> Resumable[str]:
        char = yield from self.peek()
        self.pos += len(char)
        return char

    def skip_space(self) -> Resumable[None]:
        """Skip whitespace."""
        while (yield from self.peek()).isspace():
            self.pos += 1

    def read_literal(self, text: str) -> Resumable[bool]:
        """Read exactly `text`; if the text differs, read nothing and return False."""
        for count, char in enumerate(text):
            if (yield from self.peek()) != char:
                self.pos -= count
                return False
            self.pos += 1
        return True

    def read_marker(self, finder: MarkerFinder) -> Resumable[str]:
        """Read and return the marker that starts here, "" if there is none."""
        while (end := finder.find_here(self.text, self.pos, is_whole=self.closed)) == 0:
            yield
        if end < 0:
            return ""
        marker = self.text[self.pos : end]
        self.pos = end
        return marker

    def read_until(self, finder: MarkerFinder, write: Write) -> Resumable[str]:
        """Write the text up to the next marker; read and return the marker, "" at the end."""
        while True:
            start, end = finder.find(self.text, self.pos, is_whole=self.closed)
            if start > self.pos:
                write(self.text[self.pos : start])
            self.pos = start
            if end >= 0:
                self.pos = end
                return self.text[start:end]
            if self.closed:
                return ""
            self.discard_read()
            yield

    def read_up_to(
        self, finder: MarkerFinder, limit: int, *, or_end: bool = False
    ) -> Resumable[tuple[str, str] | None]:
        """Read and return the text before the next marker, and the marker.

        Return None if there is no marker within `limit` characters. With `or_end`, the end of the
        text is a marker, too: "".
        """
        while True:
            start, end = finder.find(self.text, self.pos, is_whole=self.closed)
            if start - self.pos > limit:
                return None
            if end >= 0:
                text, marker = self.text[self.pos : start], self.text[start:end]
                self.pos = end
                return text, marker
            if self.closed:
                if not or_end or len(self.text) - self.pos > limit:
                    return None
                text, self.pos = self.text[self.pos :], len(self.text)
                return text, ""
            yield


class DeltaBuffer:
    """The deltas of one step; consecutive texts of one type become one delta."""

    def __init__(self) -> None:
        self._finished: list[d.Delta] = []
        self._text_type: DeltaType = d.TextDelta
        self._pieces: list[str] = []

    def write(self, delta_type: DeltaType, text: str) -> None:
        if delta_type is not self._text_type:
            self._finish_text()
            self._text_type = delta_type
        if text:
            self._pieces.append(text)

    def add(self, delta: d.Delta) -> None:
        self._finish_text()
        self._finished.append(delta)

    def extend(self, deltas: Iterable[d.Delta]) -> None:
        for delta in deltas:
            self.add(delta)

    def take(self) -> list[d.Delta]:
        self._finish_text()
        finished, self._finished = self._finished, []
        return finished

    def _finish_text(self) -> None:
        if self._pieces:
            self._finished.append(self._text_type("".join(self._pieces)))
            self._pieces = []
