"""The text of pages as models see it: clean, and with link marks that a page cannot forge."""

from __future__ import annotations

import re
from collections.abc import Sequence

from antiphon.adapters.url_policy import read_url
from antiphon.application.ports import DomainFilter, WebResult
from antiphon.domain.errors import FetchRefused

MAX_TEXT_BYTES = 1024 * 1024
TITLE_LENGTH = 300
RESULT_LENGTH = 2000

# Similar characters replace those of the server's own link marks and citations.
_MARK_CHARS = str.maketrans("【】†", "〖〗‡")
_LINE_ENDS = re.compile("\r\n?|[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
# Control characters, surrogates, bidirectional and zero-width characters, and the Unicode tags
# that can hide text from people.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\u200b\u200e\u200f\u202a-\u202e"
    "\u2060-\u2069\ufeff\U000e0000-\U000e007f]"
)
_BLANK_LINES = re.compile(r"\n\s*\n\s*\n+")


def clean(text: str) -> str:
    """Return the text without invisible characters and anything that looks like a link mark.

    >>> clean("a\\r\\nb\\x00【1†c】")
    'a\\nb〖1‡c〗'
    """
    text = _INVISIBLE.sub("", _LINE_ENDS.sub("\n", text)).translate(_MARK_CHARS)
    return _BLANK_LINES.sub("\n\n", text).strip("\n")


def one_line(text: str, length: int = TITLE_LENGTH) -> str:
    """Return the clean text in one line of at most `length` characters."""
    line = " ".join(clean(text[: 10 * length]).split())
    return line if len(line) <= length else line[: length - 1] + "…"


def truncate(text: str) -> str:
    """Return the beginning of the text, up to `MAX_TEXT_BYTES`."""
    if len(text) * 4 <= MAX_TEXT_BYTES:
        return text
    return text.encode("utf-8", "replace")[:MAX_TEXT_BYTES].decode("utf-8", "ignore")


class PageLinks:
    """The links of a page in the order of its text, with one number for each URL."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(self._numbers)

    def mark(self, words: str, url: str) -> str:
        """Return the mark of a link with these clean words."""
        number = self._numbers.setdefault(url, len(self._numbers))
        return f"【{number}†{words}】"


def filter_results(
    results: Sequence[WebResult], *, limit: int, domains: DomainFilter
) -> list[WebResult]:
    """Return the first `limit` results with allowed http(s) URLs, without duplicates, clean."""
    by_url: dict[str, WebResult] = {}
    for result in results:
        if len(by_url) == limit:
            break
        try:
            read_url(result.url)
        except FetchRefused:
            continue
        if domains.allows(result.url):
            title = one_line(result.title) or one_line(result.url)
            text = one_line(result.text, RESULT_LENGTH)
            by_url.setdefault(result.url, WebResult(url=result.url, title=title, text=text))
    return list(by_url.values())
