"""Find what a message cites, while its text is written.

A citation is a marker that the model was told to write: `【…】` with a few words between, which say
where the knowledge comes from. What they mean is known to the tool that told the model of them. A
link to a file that code has written is one, too: models write `sandbox:/mnt/data/…` by themselves.
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


LINK = "sandbox:/mnt/data/"
"""Where models say that a file of their container is."""

_LINK_END = r"\s()\[\]<>\"'`"
_LINK = re.compile(f"{LINK}([^{_LINK_END}]{{1,{LONGEST}}})")
_STOPS = ".,;:!?*"
_LINK_SO_FAR = re.compile(
    f"(?:{LINK}[^{_LINK_END}]{{0,{LONGEST}}}"
    + "".join(f"|{LINK[:length]}" for length in range(1, len(LINK)))
    + r")\Z"
)


class Links:
    """The links of one text to files of a container, in whatever pieces it comes.

    >>> links = Links()
    >>> links.feed("See [it](sandbox:/mnt/"), links.feed("data/a.png)."), links.end()
    ([], [Marker(words='sandbox:/mnt/data/a.png', start=9, end=32)], [])
    """

    def __init__(self) -> None:
        self._length = 0
        self._open = ""

    def feed(self, text: str) -> list[Marker]:
        """Return the links that this piece shows to be whole."""
        text = self._open + text
        before = self._length - len(self._open)
        self._length = before + len(text)
        unfinished = _LINK_SO_FAR.search(text)
        self._open = unfinished[0] if unfinished else ""
        return _links(text[: len(text) - len(self._open)], before)

    def end(self) -> list[Marker]:
        """Return the link that the text ends with, if it does."""
        text, self._open = self._open, ""
        return _links(text, self._length - len(text))


def _links(text: str, before: int) -> list[Marker]:
    if LINK not in text:
        return []
    found = ((match.start() + before, match[0].rstrip(_STOPS)) for match in _LINK.finditer(text))
    return [Marker(words, start, start + len(words)) for start, words in found if words != LINK]
