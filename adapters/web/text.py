"""The text of pages as models see it: clean, with links that nobody but us can have written."""

from __future__ import annotations

import re
from collections.abc import Sequence

from antiphon.adapters.fetching import read_url
from antiphon.application.ports import DomainFilter, WebResult
from antiphon.domain.errors import FetchRefused

MAX_TEXT_BYTES = 1024 * 1024
TITLE_LENGTH = 300
FOUND_LENGTH = 2000

# What would look like a link or a citation of ours; the next of their kind take their places.
_OURS = str.maketrans("【】†", "〖〗‡")
_LINE_ENDS = re.compile("\r\n?|[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
# Neither seen nor needed: control characters, halves of characters, what turns the order of
# writing, what has no width, and the tags in which text can be hidden from people.
_UNSEEN = re.compile(
    "[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\u200b\u200e\u200f\u202a-\u202e"
    "\u2060-\u2069\ufeff\U000e0000-\U000e007f]"
)
_GAPS = re.compile(r"\n\s*\n\s*\n+")


def clean(text: str) -> str:
    """Return the text without what is unseen, and without anything like a link of ours.

    >>> clean("a\\r\\nb\\x00【1†c】")
    'a\\nb〖1‡c〗'
    """
    text = _UNSEEN.sub("", _LINE_ENDS.sub("\n", text)).translate(_OURS)
    return _GAPS.sub("\n\n", text).strip("\n")


def one_line(text: str, length: int = TITLE_LENGTH) -> str:
    """Return the text, clean, in one line and not too long."""
    line = " ".join(clean(text[: 10 * length]).split())
    return line if len(line) <= length else line[: length - 1] + "…"


def cut(text: str) -> str:
    """Return as much of the text as a page may have."""
    if len(text) * 4 <= MAX_TEXT_BYTES:
        return text
    return text.encode("utf-8", "replace")[:MAX_TEXT_BYTES].decode("utf-8", "ignore")


class PageLinks:
    """The links of a page, in the order of its text; each address has one number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(self._numbers)

    def mark(self, words: str, url: str) -> str:
        """Return what stands in the text for a link with these (clean) words."""
        number = self._numbers.setdefault(url, len(self._numbers))
        return f"【{number}†{words}】"


def shown(found: Sequence[WebResult], *, limit: int, domains: DomainFilter) -> list[WebResult]:
    """Return the first `limit` that may be shown: pages of http(s), of these domains, each once."""
    kept: dict[str, WebResult] = {}
    for each in found:
        if len(kept) == limit:
            break
        try:
            read_url(each.url)
        except FetchRefused:
            continue
        if domains.allows(each.url):
            title = one_line(each.title) or one_line(each.url)
            text = one_line(each.text, FOUND_LENGTH)
            kept.setdefault(each.url, WebResult(url=each.url, title=title, text=text))
    return list(kept.values())
