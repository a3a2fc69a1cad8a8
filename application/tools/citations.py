"""Citations in what the model writes become annotations of its messages
(docs/reference/api.md#annotations).

The text stays as the model wrote it, markers included: the next prompt repeats it, and an
annotation's place is that of its marker.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Protocol, runtime_checkable

from antiphon.application.model.wrapping import TurnWrapper
from antiphon.application.ports import ModelTurn
from antiphon.domain import deltas as d
from antiphon.domain.citations import Links, Marker, Markers
from antiphon.domain.content import Annotation

Cite = Callable[[str, int, int], Annotation | None]
"""(words of a marker, its start and end in the text) -> what it cites; None if it cites nothing
that is known here."""


@runtime_checkable
class CitationSource(Protocol):
    """A caller whose results the model may cite."""

    def cite(self, words: str, start: int, end: int, /) -> Annotation | None:
        """See Cite."""


class CitingTurn(TurnWrapper):
    """A turn whose messages have an annotation after each marker that one of `cites` knows."""

    def __init__(self, inner: ModelTurn, cites: Sequence[Cite]) -> None:
        super().__init__(inner)
        self._cites = cites
        self._markers = Markers()
        self._links = Links()
        self._phase: tuple[str | None] | None = None
        """Of the text that is open, if one is."""

    async def __aiter__(self) -> AsyncGenerator[list[d.Delta]]:
        async with aclosing(aiter(self._inner)) as batches:
            async for deltas in batches:
                yield [each for delta in deltas for each in self._with_citations(delta)]

    def _with_citations(self, delta: d.Delta) -> Iterator[d.Delta]:
        if not isinstance(delta, d.TextDelta):
            if not isinstance(delta, d.AnnotationDelta):
                yield from self._annotations(self._links.end())
                self._begin(None)
            yield delta
            return
        if self._phase != (delta.phase,):  # another part begins
            yield from self._annotations(self._links.end())
            self._begin((delta.phase,))
        yield delta
        found = [*self._markers.feed(delta.text), *self._links.feed(delta.text)]
        yield from self._annotations(sorted(found, key=lambda marker: marker.start))

    def _begin(self, phase: tuple[str | None] | None) -> None:
        self._markers, self._links, self._phase = Markers(), Links(), phase

    def _annotations(self, found: Sequence[Marker]) -> Iterator[d.Delta]:
        for marker in found:
            cited = (cite(marker.words, marker.start, marker.end) for cite in self._cites)
            if annotation := next(filter(None, cited), None):
                yield d.AnnotationDelta(annotation)
