"""Texts of several items as the one text that a client of another API gets."""

from __future__ import annotations

BETWEEN = "\n\n"
"""What separates two messages, or two thoughts, of one response: they are one text here."""


class Joined:
    """Where texts are in the one that they make up: those of one item follow each other, others are
    separated. It holds no text, since a stream may be long."""

    def __init__(self) -> None:
        self._length = 0
        self._last = (-1, -1)
        self._starts: dict[tuple[int, int], int] = {}

    def add(self, item: int, part: int, text: str) -> str:
        """Add the text of a part of an item, and return what is added in all.

        >>> joined = Joined()
        >>> [joined.add(0, 0, "a"), joined.add(0, 0, "b"), joined.add(2, 0, "c")]
        ['a', 'b', '\\n\\nc']
        """
        added, place = text, (item, part)
        if text and place != self._last:
            if item != self._last[0] and self._length:
                added = BETWEEN + text
            self._starts[place] = self._length + len(added) - len(text)
            self._last = place
        self._length += len(added)
        return added

    def start_of(self, item: int, part: int) -> int:
        """Return the place at which a part begins."""
        return self._starts.get((item, part), self._length)


class WholeText(Joined):
    """A joined text that is kept."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[str] = []

    def add(self, item: int, part: int, text: str) -> str:
        added = super().add(item, part, text)
        self._pieces.append(added)
        return added

    @property
    def text(self) -> str:
        return "".join(self._pieces)
