"""Texts of a conversation stay texts, even where they spell a control token.

A tokenizer takes markers like `<|im_start|>` out of a text wherever they stand, and a template
writes its own markers and the conversation into one text. So before it does, a cut is put into each
marker that the conversation spells, behind its first character. The prompt is taken apart there,
and its parts are encoded apart: none of them holds the marker. Where nothing spells a marker,
nothing is cut, and the prompt is encoded as ever.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, groupby
from typing import Any

from antiphon.adapters.formats.chat_template.families import Family
from antiphon.adapters.formats.chat_template.tokenizer import Tokenizer

CUT = f"cut-{secrets.token_hex(8)}-"
"""Letters that every filter of a template lets pass. Who guesses them can only cut, never join."""

LEAD = "\n"
IS_WORD = re.compile(r"\w*").fullmatch
IS_BARRED = re.compile(r"<[|\uff5c].+[|\uff5c]>").fullmatch


class MarkerCutter:
    """Cuts these markers wherever they are spelled, and what could be a part of one."""

    def __init__(self, markers: Iterable[str]) -> None:
        known = sorted({marker for marker in markers if len(marker) > 1})
        self._spelled = _firsts(known)
        self._longest = max(map(len, known), default=0)
        # A marker may also come about where two texts meet, or a text and what the template writes.
        self._inner = "\0".join(known)
        self._beginnings = {part for m in known for n in range(1, len(m)) if _tells(part := m[:n])}
        self._endings = {part for m in known for n in range(1, len(m)) if _tells(part := m[n:])}
        self._first = _any_of(marker[0] for marker in known)
        self._last = _any_of(marker[-1] for marker in known)

    def cut(self, value: Any) -> Any:
        """Return texts, lists and mappings of them with their markers cut."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Mapping):
            return {self.cut(key): self.cut(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.cut(each) for each in value]
        return value

    def _text(self, text: str) -> str:
        if IS_WORD(text):
            return text  # what templates look at: roles, types, the names of fields
        inside = len(text) < self._longest and text in self._inner
        begins = inside or self._begins(text)
        ends = inside or self._ends(text)
        return f"{CUT * begins}{self._spelled.sub(_and_cut, text)}{CUT * ends}"

    def _begins(self, text: str) -> bool:
        """Whether it begins with the end of a marker."""
        found = self._last.finditer(text, 0, self._longest)
        return any(text[: last.end()] in self._endings for last in found)

    def _ends(self, text: str) -> bool:
        """Whether it ends with the beginning of a marker."""
        found = self._first.finditer(text, max(0, len(text) - self._longest))
        return any(text[first.start() :] in self._beginnings for first in found)


def markers_of(tokenizer: Tokenizer, family: Family, template: str) -> set[str]:
    """Return the markers that control the model: not every added token is one. Some vocabularies
    have words, tags of HTML or runs of spaces among them, of which texts are made.
    """
    own = {*(family.think or ()), *(family.refusal or ()), *family.calls}
    own |= {*family.dropped, *family.ends, *(region.end for region in family.calls.values())}
    known = {marker for marker in own if marker and tokenizer.token_id(marker) is not None}
    for text, special in tokenizer.added().items():
        named = text in template and not IS_WORD(text)
        if text.strip() and (special or named or IS_BARRED(text)):
            known.add(text)
    return known


class PartEncoder:
    """Encodes texts with cuts: what stands between cuts apart, as if it stood in one text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._encode = partial(tokenizer.encode, special=True)
        # Some put a space before all that they are given: a newline goes first, and is dropped.
        adds = tokenizer.decode(self._encode("a") * 2) != "aa"
        self._lead = self._encode(LEAD) if adds else []

    def encode(self, text: str) -> list[int]:
        first, *rest = text.split(CUT)
        return [*self._encode(first), *chain.from_iterable(map(self._after, filter(None, rest)))]

    def _after(self, part: str) -> list[int]:
        if not self._lead:
            return self._encode(part)
        size, ids = len(self._lead), self._encode(LEAD + part)
        return ids[size:] if ids[:size] == self._lead else self._encode(part)


def remove_cuts(text: str) -> str:
    return text.replace(CUT, "")


def _firsts(markers: Iterable[str]) -> re.Pattern[str]:
    """Return what finds the first character of every marker, of those inside others too."""
    # By their first two characters: there may be a thousand markers, and many a tag in a text.
    starts = []
    for first, rests in _by_first(markers):
        follow = [f"{second}(?:{_either(rest)})" for second, rest in _by_first(rests)]
        starts.append(f"{first}(?={'|'.join(follow)})")
    return re.compile("|".join(starts) or "(?!)")


def _by_first(texts: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each first character, as a pattern, with what follows it."""
    for first, group in groupby(texts, key=lambda text: text[0]):
        yield re.escape(first), [text[1:] for text in group]


def _either(texts: Iterable[str]) -> str:
    return "|".join(map(re.escape, texts))


def _any_of(chars: Iterable[str]) -> re.Pattern[str]:
    return re.compile(_either(sorted(set(chars))) or "(?!)")


def _and_cut(first: re.Match[str]) -> str:
    return first[0] + CUT


def _tells(part: str) -> bool:
    """Whether it is more than letters: any text may begin and end with those."""
    return not IS_WORD(part)
