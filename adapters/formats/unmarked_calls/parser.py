"""A format's parser, with a search for unmarked calls in the text that it leaves."""

from __future__ import annotations

from collections.abc import Collection

from antiphon.adapters.formats.unmarked_calls.search import UnmarkedCalls, search_of
from antiphon.application.ports import Parser, Step, Turn
from antiphon.domain import deltas as d
from antiphon.domain.vocabulary.repairs import Repair


def with_unmarked_calls(parser: Parser, turn: Turn) -> Parser:
    """Return a parser that also finds unmarked calls, if the turn's text may hold any."""
    search = search_of(turn)
    return parser if search is None else UnmarkedCallParser(parser, search)


class UnmarkedCallParser(Parser):
    """Passes on what `parser` reads; calls in its text become calls."""

    def __init__(self, parser: Parser, search: UnmarkedCalls) -> None:
        self._parser = parser
        self._search = search

    @property
    def reasoning_tokens(self) -> int:  # type: ignore[override]  # the parser counts them
        return self._parser.reasoning_tokens

    @property
    def is_well_formed(self) -> bool:  # type: ignore[override]  # computed from both
        return self._parser.is_well_formed and not self._search.has_dropped_calls

    @property
    def repairs(self) -> Collection[Repair]:  # type: ignore[override]  # the parser makes them
        return self._parser.repairs

    @property
    def unmarked_calls(self) -> int:  # type: ignore[override]  # the search counts them
        return self._search.count

    def feed(self, step: Step) -> list[d.Delta]:
        return self._search.feed(self._parser.feed(step))

    def end(self) -> list[d.Delta]:
        return [*self._search.feed(self._parser.end()), *self._search.end()]
