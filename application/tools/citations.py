"""Turn the citations that the model writes into annotations (docs/reference/api.md#annotations).

The text stays as the model wrote it, with its markers: the next prompt repeats it, and an
annotation has the position of its marker.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing

from antiphon.application.model.wrapping import TurnWrapper
from antiphon.application.ports import ModelTurn
from antiphon.domain import deltas as d
from antiphon.domain.content import Annotation
from antiphon.domain.retrieval.citations import Links, Marker, Markers

Cite = Callable[[str, int, int], Annotation | None]
"""(a marker's words, its start, its end in the text) -> the annotation; None if the words cite
nothing known here."""


class CitationSource(ABC):
    """A caller with results that the model may cite."""

    @abstractmethod
    def cite(self, words: str, start: int, end: int, /) -> Annotation | None:
        """See Cite."""


class CitingTurn(TurnWrapper):
    """A turn whose messages have an annotation after each marker that a cite function knows."""

    def __init__(self, inner: ModelTurn, cite_functions: Sequence[Cite]) -> None:
        super().__init__(inner)
        self._cites = cite_functions
        self._markers = Markers()
        self._links = Links()
        self._phase: tuple[str | None] | None = None
        """The phase of the open text part, or None if no text part is open."""

    async def __aiter__(self) -> AsyncGenerator[list[d.Delta]]:
        async with aclosing(aiter(self._inner)) as batches:
            async for batch in batches:
                yield [cited for delta in batch for cited in self._add_citations(delta)]

    def _add_citations(self, delta: d.Delta) -> Iterator[d.Delta]:
        if not isinstance(delta, d.TextDelta):
            if not isinstance(delta, d.AnnotationDelta):
                yield from self._annotate(self._links.end())
                self._start_part(None)
            yield delta
            return
        if self._phase != (delta.phase,):  # another part begins
            yield from self._annotate(self._links.end())
            self._start_part((delta.phase,))
        yield delta
        markers = [*self._markers.feed(delta.text), *self._links.feed(delta.text)]
        yield from self._annotate(sorted(markers, key=lambda marker: marker.start))

    def _start_part(self, phase: tuple[str | None] | None) -> None:
        self._markers, self._links, self._phase = Markers(), Links(), phase

    def _annotate(self, markers: Sequence[Marker]) -> Iterator[d.Delta]:
        for marker in markers:
            citations = (cite(marker.words, marker.start, marker.end) for cite in self._cites)
            if annotation := next(filter(None, citations), None):
                yield d.AnnotationDelta(annotation)
