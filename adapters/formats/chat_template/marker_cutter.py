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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, groupby
from typing import Any

from msgspec import Struct

from antiphon.adapters.formats.chat_template.families import Family
from antiphon.adapters.formats.chat_template.tokenizer import Tokenizer
from antiphon.adapters.formats.portions import split_into_portions

CUT = f"cut-{secrets.token_hex(8)}-"
"""Letters that pass through every template filter. Guessing them only allows more cuts."""

LEADING_NEWLINE = "\n"
PART_CHARS = 100
"""A part costs as much as so many characters, however short it is."""

MAX_UNLOCKED_CHARS = 128 * 1024
MAX_LOCKED_CHARS = 8 * 1024
"""In a batch: some 3 ms while the interpreter's lock is held, here to make the list of tokens."""

CHECKED_CHARS = 100
"""On each side of a cut. Tokens this long exist, but no text has one at the end of a word."""

_is_word = re.compile(r"\w*").fullmatch
_is_between_bars = re.compile(r"<[|\uff5c].+[|\uff5c]>").fullmatch


class Batch(Struct, frozen=True):
    """Texts to encode at a time; if `starts_text`, the first of them is the start of a text."""

    texts: Sequence[str]
    starts_text: bool


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
        self._first_characters = pattern_of({marker[0] for marker in cuttable})
        self._last_characters = pattern_of({marker[-1] for marker in cuttable})

    def cut(self, value: Any) -> Any:
        """Return the value, a text or lists and mappings of texts, with its markers cut."""
        # A long conversation has thousands of texts: what most of them are comes first.
        kind = type(value)
        if kind is str:
            return value if value.isidentifier() else self._cut_text(value)
        if kind is dict:
            return {
                key if key.isidentifier() else self._cut_text(key): self.cut(each)
                for key, each in value.items()
            }
        if kind is list or kind is tuple:
            return [self.cut(each) for each in value]
        if isinstance(value, Mapping):
            return self.cut(dict(value))
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
        *family.think_markers,
        *(family.refusal or ()),
        *(family.text or ()),
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
        self._tokenizer = tokenizer
        self._encode = partial(tokenizer.encode, special=True)
        # Some tokenizers put a space before every text. A leading newline takes it and is dropped.
        adds_space = tokenizer.decode(self._encode("a") * 2) != "aa"
        self._leading_ids = self._encode(LEADING_NEWLINE) if adds_space else []

    def encode(self, text: str) -> list[int]:
        return [token for batch in self.batches(text) for token in self.encode_batch(batch)]

    def batches(self, text: str) -> Iterator[Batch]:
        """Yield what to encode at a time; the tokens of all batches are those of the text."""
        max_chars = MAX_UNLOCKED_CHARS if self._tokenizer.encodes_without_lock else MAX_LOCKED_CHARS
        first, *rest = text.split(CUT)
        batch: list[str] = []
        size, starts_text = 0, True
        for portion in chain.from_iterable(
            split_into_portions(part, max_chars, self._is_safe)
            for part in chain([first], filter(None, rest))
        ):
            if batch and size + len(portion) > max_chars:
                yield Batch(batch, starts_text)
                batch, size, starts_text = [], 0, False
            batch.append(portion)
            size += len(portion) + PART_CHARS
        yield Batch(batch, starts_text)

    def encode_batch(self, batch: Batch) -> list[int]:
        """Return the tokens of a batch."""
        texts, first = list(batch.texts), []
        if batch.starts_text:
            first, texts = self._tokenizer.encode_all(texts[:1]), texts[1:]
        return list(chain.from_iterable([*first, *self._encode_after_cuts(texts)]))

    def _encode_after_cuts(self, parts: Sequence[str]) -> list[list[int]]:
        if not self._leading_ids or not parts:
            return self._tokenizer.encode_all(parts) if parts else []
        leading = self._leading_ids
        encoded = self._tokenizer.encode_all([LEADING_NEWLINE + part for part in parts])
        return [
            ids[len(leading) :] if ids[: len(leading)] == leading else self._encode(part)
            for part, ids in zip(parts, encoded, strict=True)
        ]

    def _is_safe(self, text: str, place: int) -> bool:
        """Whether a cut at this place changes none of the tokens around it."""
        before = text[max(0, place - CHECKED_CHARS) : place]
        after = text[place : place + CHECKED_CHARS]
        first, both = self._tokenizer.encode_all([before, before + after])
        return [*first, *chain.from_iterable(self._encode_after_cuts([after]))] == both


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


def pattern_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern for each of the texts, which matches nothing if there are none."""
    return re.compile(_alternatives(texts) or "(?!)")


def _add_cut(first: re.Match[str]) -> str:
    return first[0] + CUT
