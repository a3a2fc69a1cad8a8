"""Find the citations in a message while its text is being written.

A citation is a marker `【…】` that the model was told to write; the words between the brackets name
the source, and the tool that introduced them knows what they mean. A link to a file that code has
written is a citation too: models write `sandbox:/mnt/data/…` without being told.
"""

from __future__ import annotations

import re

from msgspec import Struct

MAX_MARKER_CHARS = 300
"""The maximum number of characters between the brackets of a marker. Anything longer is ordinary
text in brackets."""

_OPENING = "【"
_MARKER = re.compile(f"【([^【】]{{1,{MAX_MARKER_CHARS}}})】")


class Marker(Struct, frozen=True):
    """A marker in a text: the words between its brackets, and its character offsets.

    `end` is the offset after the marker.
    """

    words: str
    start: int
    end: int


class Markers:
    """Finds the markers of one text that arrives in fragments.

    >>> markers = Markers()
    >>> markers.feed("It rains 【3†"), markers.feed("L7】.")
    ([], [Marker(words='3†L7', start=9, end=15)])
    """

    def __init__(self) -> None:
        self._length = 0
        self._open = ""

    def feed(self, text: str) -> list[Marker]:
        """Return the markers that this fragment completes."""
        offset = self._length - len(self._open)
        self._length += len(text)
        if not self._open and _OPENING not in text:
            return []  # the fast path: every token passes through here
        text = self._open + text
        markers = [
            Marker(match[1], offset + match.start(), offset + match.end())
            for match in _MARKER.finditer(text)
        ]
        opening = text.rfind(_OPENING)
        tail = text[opening:] if opening >= 0 else ""
        self._open = "" if "】" in tail or len(tail) > MAX_MARKER_CHARS + 1 else tail
        return markers


LINK = "sandbox:/mnt/data/"
"""The prefix that models write for the path of a file in their container."""

_LINK_END = r"\s()\[\]<>\"'`"
_LINK = re.compile(f"{LINK}([^{_LINK_END}]{{1,{MAX_MARKER_CHARS}}})")
_END_PUNCTUATION = ".,;:!?*"
_PARTIAL_LINK = re.compile(
    f"(?:{LINK}[^{_LINK_END}]{{0,{MAX_MARKER_CHARS}}}"
    + "".join(f"|{LINK[:length]}" for length in range(1, len(LINK)))
    + r")\Z"
)


class Links:
    """Finds the links to container files in one text that arrives in fragments.

    >>> links = Links()
    >>> links.feed("See [it](sandbox:/mnt/"), links.feed("data/a.png)."), links.end()
    ([], [Marker(words='sandbox:/mnt/data/a.png', start=9, end=32)], [])
    """

    def __init__(self) -> None:
        self._length = 0
        self._open = ""

    def feed(self, text: str) -> list[Marker]:
        """Return the links that this fragment completes."""
        text = self._open + text
        offset = self._length - len(self._open)
        self._length = offset + len(text)
        unfinished = _PARTIAL_LINK.search(text)
        self._open = unfinished[0] if unfinished else ""
        return _find_links(text[: len(text) - len(self._open)], offset)

    def end(self) -> list[Marker]:
        """Return the link at the very end of the text, if there is one."""
        text, self._open = self._open, ""
        return _find_links(text, self._length - len(text))


def _find_links(text: str, offset: int) -> list[Marker]:
    if LINK not in text:
        return []
    links = (
        (match.start() + offset, match[0].rstrip(_END_PUNCTUATION))
        for match in _LINK.finditer(text)
    )
    return [Marker(link, start, start + len(link)) for start, link in links if link != LINK]
