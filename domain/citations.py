"""Find what a message cites, while its text is written.

A citation is a marker that the model was told to write: `【…】` with a few words between, which say
where the knowledge comes from. What they mean is known to the tool that told the model of them.
"""

from __future__ import annotations

import re

from msgspec import Struct

LONGEST = 300
"""Characters between the brackets of a marker. What is longer is text that has brackets in it."""

_OPENING = "【"
_MARKER = re.compile(f"【([^【】]{{1,{LONGEST}}})】")


class Marker(Struct, frozen=True):
    """`words` stand between the brackets; `start` and `end` are the marker's place in the text, in
    characters, `end` behind it."""

    words: str
    start: int
    end: int


class Markers:
    """The markers of one text, in whatever pieces it comes.

    >>> markers = Markers()
    >>> markers.feed("It rains 【3†"), markers.feed("L7】.")
    ([], [Marker(words='3†L7', start=9, end=15)])
    """

    def __init__(self) -> None:
        self._length = 0
        self._open = ""

    def feed(self, text: str) -> list[Marker]:
        """Return the markers that this piece completes."""
        before = self._length - len(self._open)
        self._length += len(text)
        if not self._open and _OPENING not in text:
            return []  # nearly always: every token passes here
        text = self._open + text
        found = [
            Marker(match[1], before + match.start(), before + match.end())
            for match in _MARKER.finditer(text)
        ]
        opening = text.rfind(_OPENING)
        tail = text[opening:] if opening >= 0 else ""
        self._open = "" if "】" in tail or len(tail) > LONGEST + 1 else tail
        return found
