"""Keep a conversation from injecting control tokens: its texts stay texts, even if they spell one.

A tokenizer turns markers like `<|im_start|>` into control tokens anywhere in a text, and a template
writes its own markers and the conversation into one text. So before rendering, a cut is inserted
after the first character of each marker that the conversation spells. The rendered prompt is split
at the cuts and its parts are encoded separately, so that none of them contains the marker. A prompt
without cuts is encoded as usual.
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
"""Letters that pass through every template filter. Guessing them only allows more cuts."""

LEADING_NEWLINE = "\n"
_is_word = re.compile(r"\w*").fullmatch
_is_between_bars = re.compile(r"<[|\uff5c].+[|\uff5c]>").fullmatch


class MarkerCutter:
    """Cuts `markers` in texts, and text at either end that could become part of one."""

    def __init__(self, markers: Iterable[str]) -> None:
        cuttable = sorted({marker for marker in markers if len(marker) > 1})
        self._marker_starts = _marker_start_pattern(cuttable)
        self._max_length = max(map(len, cuttable), default=0)
        # A marker may also form where two texts meet, or where a text meets the template's own.
        self._all_markers = "\0".join(cuttable)
        splits = [(marker[:n], marker[n:]) for marker in cuttable for n in range(1, len(marker))]
        # Letters alone are no sign of a marker: any text may start or end with them.
        self._prefixes = {prefix for prefix, _ in splits if not _is_word(prefix)}
        self._suffixes = {suffix for _, suffix in splits if not _is_word(suffix)}
        self._first_characters = _pattern_of(marker[0] for marker in cuttable)
        self._last_characters = _pattern_of(marker[-1] for marker in cuttable)

    def cut(self, value: Any) -> Any:
        """Return the value, a text or lists and mappings of texts, with its markers cut."""
        if isinstance(value, str):
            return self._cut_text(value)
        if isinstance(value, Mapping):
            return {self.cut(key): self.cut(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.cut(each) for each in value]
        return value

    def _cut_text(self, text: str) -> str:
        if _is_word(text):
            return text  # roles, types and field names, which templates compare
        is_inside = len(text) < self._max_length and text in self._all_markers
        cut_before = is_inside or self._starts_with_suffix(text)
        cut_after = is_inside or self._ends_with_prefix(text)
        return f"{CUT * cut_before}{self._marker_starts.sub(_add_cut, text)}{CUT * cut_after}"

    def _starts_with_suffix(self, text: str) -> bool:
        """Whether the text starts with the end of a marker."""
        matches = self._last_characters.finditer(text, 0, self._max_length)
        return any(text[: match.end()] in self._suffixes for match in matches)

    def _ends_with_prefix(self, text: str) -> bool:
        """Whether the text ends with the start of a marker."""
        matches = self._first_characters.finditer(text, max(0, len(text) - self._max_length))
        return any(text[match.start() :] in self._prefixes for match in matches)


def markers_of(tokenizer: Tokenizer, family: Family, template: str) -> set[str]:
    """Return the markers that control the model.

    Not every added token is a marker: some vocabularies add words, HTML tags or runs of spaces,
    which are ordinary text.
    """
    family_markers = {
        *(family.think or ()),
        *(family.refusal or ()),
        *family.calls,
        *family.hidden_markers,
        *family.end_markers,
        *(region.end for region in family.calls.values()),
    }
    markers = {
        marker for marker in family_markers if marker and tokenizer.token_id(marker) is not None
    }
    for text, is_special in tokenizer.added_tokens().items():
        in_template = text in template and not _is_word(text)
        if text.strip() and (is_special or in_template or _is_between_bars(text)):
            markers.add(text)
    return markers


class PartEncoder:
    """Encodes a text with cuts: each part separately, but as if it were inside one text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._encode = partial(tokenizer.encode, special=True)
        # Some tokenizers put a space before every text. A leading newline takes it and is dropped.
        adds_space = tokenizer.decode(self._encode("a") * 2) != "aa"
        self._leading_ids = self._encode(LEADING_NEWLINE) if adds_space else []

    def encode(self, text: str) -> list[int]:
        first, *rest = text.split(CUT)
        encoded = map(self._encode_after_cut, filter(None, rest))
        return [*self._encode(first), *chain.from_iterable(encoded)]

    def _encode_after_cut(self, part: str) -> list[int]:
        if not self._leading_ids:
            return self._encode(part)
        size, ids = len(self._leading_ids), self._encode(LEADING_NEWLINE + part)
        return ids[size:] if ids[:size] == self._leading_ids else self._encode(part)


def remove_cuts(text: str) -> str:
    return text.replace(CUT, "")


def _marker_start_pattern(markers: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern for the first character of every marker, also of one inside another."""
    # Grouped by two characters for speed: there may be a thousand markers, and many tags in a text.
    starts = []
    for first, rests in _group_by_first(markers):
        follow = [f"{second}(?:{_alternatives(rest)})" for second, rest in _group_by_first(rests)]
        starts.append(f"{first}(?={'|'.join(follow)})")
    return re.compile("|".join(starts) or "(?!)")


def _group_by_first(texts: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each first character, as a pattern, with the rests of its texts."""
    for first, group in groupby(texts, key=lambda text: text[0]):
        yield re.escape(first), [text[1:] for text in group]


def _alternatives(texts: Iterable[str]) -> str:
    return "|".join(map(re.escape, texts))


def _pattern_of(chars: Iterable[str]) -> re.Pattern[str]:
    return re.compile(_alternatives(sorted(set(chars))) or "(?!)")


def _add_cut(first: re.Match[str]) -> str:
    return first[0] + CUT
