"""The meaning of each marker of a family to the parser."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache

from antiphon.adapters.formats.chat_template.families import Family
from antiphon.adapters.formats.chat_template.families.end_tokens import END_TOKENS
from antiphon.adapters.formats.chat_template.parsing.text_buffer import DeltaType, MarkerFinder
from antiphon.domain import deltas as d

Search = tuple[MarkerFinder, Callable[[str], object]]
"""A finder of markers, and a search for text that cannot be passed on unread."""


class FamilyMarkers:
    """The markers of a family, sorted by what they do.

    `prose_changes` have the type of prose that a marker ends (None: any) and the type that it
    starts. `call_markers` stand around calls; of them, `section_openers` come before a call's own
    marker, and `section_end` after the last call. `foreign_ends` end a turn of other families.
    """

    def __init__(self, family: Family) -> None:
        self.regions = family.calls
        self.bare_calls = family.bare_calls
        self.regions_after_names = {
            marker: region for marker, region in family.calls.items() if region.may_follow_name
        }
        self.prose_changes = _prose_changes(family)
        self.text_ends = frozenset(family.text_ends)
        self.call_markers = frozenset(family.hidden_markers) - {
            *family.text_starts,
            *family.text_ends,
        }
        self.section_openers, self.section_end = _section_markers(family)
        own = (
            *self.prose_changes,
            *family.text_ends,
            *family.calls,
            *family.hidden_markers,
            *family.end_markers,
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

    The search matches the first character of a marker anywhere, or whitespace at the end.
    """
    finder = MarkerFinder(markers)
    first_characters = f"[{re.escape(finder.first_characters)}]|" if finder.first_characters else ""
    return finder, re.compile(rf"{first_characters}\s\Z").search


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
