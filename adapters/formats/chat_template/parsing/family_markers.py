"""The meaning of each marker of a family to the parser."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from functools import cached_property, lru_cache
from typing import TypeVar

from antiphon.adapters.formats.chat_template.families import Family
from antiphon.adapters.formats.chat_template.families.end_tokens import END_TOKENS
from antiphon.adapters.formats.chat_template.families.own import markers_of_family
from antiphon.adapters.formats.chat_template.parsing.text_buffer import DeltaType, MarkerFinder
from antiphon.domain import deltas as d

_NUMBER = re.compile(r"(?<![A-Za-z])((?:tool)?call|request)(s?)(?![A-Za-z])", re.IGNORECASE)

WORD_START = 3
"""So many letters of a marker tell whether a text may have it."""

T = TypeVar("T")
Search = tuple[MarkerFinder, Callable[[str], object]]
"""A finder of markers, and a search for text that cannot be passed on unread."""


class FamilyMarkers:
    """The markers of a family, sorted by what they do.

    `prose_changes` have the type of prose that a marker ends (None: any) and the type that it
    starts. `call_markers` stand around calls; of them, `section_openers` come before a call's own
    marker, and `section_end` after the last call. `foreign_ends` end a turn of other families.
    `respelled_openers` and `respelled_closers` are markers around calls with a plural in place of
    a singular, or the other way around.
    """

    def __init__(self, family: Family) -> None:
        known = {*markers_of_family(family), *END_TOKENS}
        # Models write the markers in the singular for the plural, and the other way around.
        openers = dict.fromkeys(_section_markers(family)[0], None) | dict(family.calls)
        self.respelled_openers = _respelled(openers, known)
        self.respelled_closers = _respelled(dict.fromkeys(_closers(family)), known)
        self.regions = family.calls
        self.bare_calls = family.bare_calls
        self.regions_after_names = {
            marker: region for marker, region in family.calls.items() if region.may_follow_name
        }
        self.prose_changes = _prose_changes(family)
        self.block_openers = frozenset(
            (*family.calls, *family.text_starts, *(opening for opening, _ in family.thinks))
        )
        self.citations: tuple[str, ...] = family.citations or ()
        self.text_ends = frozenset(family.text_ends)
        self.call_markers = frozenset(family.hidden_markers) - {
            *family.text_starts,
            *family.text_ends,
        }
        self.section_openers, self.section_end = _section_markers(family)
        self.call_openers = tuple(sorted({*self.regions, *self.section_openers}))
        self.header = (family.header or "").strip()
        own = (
            *self.prose_changes,
            *([self.header] if self.header else []),
            *family.text_ends,
            *self.citations,
            *family.calls,
            *family.hidden_markers,
            *family.end_markers,
            *self.respelled_openers,
            *self.respelled_closers,
        )
        self.foreign_ends = frozenset(END_TOKENS).difference(own)
        self.search = _make_search((*own, *END_TOKENS))
        self.finder = self.search[0]
        self._end_markers = (*family.end_markers, *END_TOKENS)

    @cached_property
    def ends(self) -> MarkerFinder:
        """Finds what ends a turn, of any family."""
        return _make_search(self._end_markers)[0]

    @cached_property
    def json_search(self) -> Search:
        """Finds what ends an answer in JSON. Any other marker in it is part of a string."""
        return _make_search((*self.text_ends, *self._end_markers))


@lru_cache
def sort_markers(family: Family) -> FamilyMarkers:
    """Return the markers of a family, which are sorted once."""
    return FamilyMarkers(family)


@lru_cache
def _make_search(markers: tuple[str, ...]) -> Search:
    """Return a finder of the markers, and a search for text that cannot be passed on unread.

    The search matches the first character of a marker anywhere, or whitespace at the end. Of a
    marker that begins with letters, it matches more: most texts have any letter.
    """
    finder = MarkerFinder(markers)
    words = sorted({marker[:WORD_START] for marker in markers if marker[:1].isalnum()})
    marks = "".join(each for each in finder.first_characters if not each.isalnum())
    starts = [*([f"[{re.escape(marks)}]"] if marks else []), *map(_start_pattern, words)]
    return finder, re.compile("|".join([*starts, r"\s\Z"])).search


def _start_pattern(word: str) -> str:
    """Return a pattern of a word, or of a part of it at the end of the text."""
    first, *rest = map(re.escape, word)
    return f"{first}(?:\\Z|{_start_pattern(word[1:])})" if rest else first


def _prose_changes(family: Family) -> Mapping[str, tuple[DeltaType | None, DeltaType]]:
    """Return, by marker, the type of prose that it ends (None: any) and the type that it starts."""
    changes: dict[str, tuple[DeltaType | None, DeltaType]] = {}
    pairs: list[tuple[tuple[str, str], DeltaType]] = [(p, d.ReasoningDelta) for p in family.thinks]
    if family.refusal:
        pairs.append((family.refusal, d.RefusalDelta))
    for (opening, closing), delta_type in pairs:
        changes[opening] = (None, delta_type)
        changes[closing] = (delta_type, d.TextDelta)
    for marker in family.text_starts:
        changes[marker] = (d.ReasoningDelta, d.TextDelta)
    return changes


def _section_markers(family: Family) -> tuple[frozenset[str], str]:
    """Return the hidden markers that come before a call's own, and the one that ends a section."""
    form = family.call_form
    if form is None:
        return frozenset(), ""
    start = f"{form.open}{form.begin}"
    before_call = min((start.find(marker) for marker in family.calls if marker in start), default=0)
    openers = (marker for marker in family.hidden_markers if marker in start[:before_call])
    return frozenset(openers), form.close.strip()


def _closers(family: Family) -> tuple[str, ...]:
    """Return the markers after a call, or after the last one."""
    ends = (region.end for region in family.calls.values() if region.end in family.hidden_markers)
    return (*ends, _section_markers(family)[1])


def _respelled(markers: Mapping[str, T], known: Collection[str]) -> Mapping[str, T]:
    """Return the markers in the other number, unless they mean something else, or a part does."""
    respelled = {
        _NUMBER.sub(_other_number, marker, count=1): markers[marker]
        for marker in markers
        if _NUMBER.search(marker)
    }
    return {
        marker: value
        for marker, value in respelled.items()
        if not any(marker in own or own in marker for own in known)
    }


def _other_number(word: re.Match[str]) -> str:
    noun, plural = word.groups()
    return noun if plural else f"{noun}{'S' if noun.isupper() else 's'}"
