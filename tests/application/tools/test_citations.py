"""Each marker in a message is followed by its annotation; the text does not change."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import pytest

from antiphon.adapters.stores.memory.store import MemoryStore
from antiphon.application.ports import Json, ModelTurn
from antiphon.application.tools.approvals import ApprovalAnswers
from antiphon.application.tools.calls import SingleItemCaller, ToolCalls
from antiphon.application.tools.citations import CitationSource, CitingTurn
from antiphon.application.tools.mcp import OpenMcpSessions
from antiphon.domain import deltas as d
from antiphon.domain.content import Annotation, FileCitation, UrlCitation
from antiphon.domain.responses.usage import TurnUsage

END = d.TurnEnd("stop", TurnUsage())


class Written(ModelTurn):
    """A turn of the model, batch by batch."""

    def __init__(self, *batches: Sequence[d.Delta]) -> None:
        self._batches = batches

    async def __aiter__(self) -> AsyncGenerator[list[d.Delta]]:
        for batch in self._batches:
            yield [*batch]

    async def aclose(self) -> None:
        pass

    def messages(self) -> tuple[list[Json], list[Json]]:
        return [], []


def cite_page(words: str, start: int, end: int) -> Annotation | None:
    if not words.startswith("p"):
        return None
    return UrlCitation(start_index=start, end_index=end, url=f"https://{words}", title=words)


def cite_file(words: str, start: int, end: int) -> Annotation | None:
    return FileCitation(file_id=words, index=start) if words.startswith("f") else None


async def add_citations(*batches: Sequence[d.Delta]) -> list[d.Delta]:
    turn = CitingTurn(Written(*batches), [cite_page, cite_file])
    async with aclosing(aiter(turn)) as output:
        return [delta async for batch in output for delta in batch]


def page(words: str, start: int) -> d.AnnotationDelta:
    annotation = cite_page(words, start, start + len(words) + 2)
    assert annotation
    return d.AnnotationDelta(annotation)


def text(words: str, phase: str | None = None) -> d.TextDelta:
    return d.TextDelta(words, phase=phase)


async def test_an_annotation_follows_its_marker() -> None:
    written = [text("Dry 【p"), text("1】"), text(" and 【f2】 warm")]
    assert await add_citations(written, [END]) == [
        text("Dry 【p"),
        text("1】"),
        page("p1", 4),
        text(" and 【f2】 warm"),
        d.AnnotationDelta(FileCitation(file_id="f2", index=13)),
        END,
    ]


async def test_unknown_markers_stay_text() -> None:
    written = [text("【x】 and 【】 and 【p"), END]
    assert await add_citations(written) == written


@pytest.mark.parametrize(
    "between",
    [
        d.ItemEnd(),
        d.RefusalDelta("no"),
        d.ReasoningDelta("【p2】"),
        d.CallStart("f"),
        text("", phase="final_answer"),
    ],
    ids=lambda delta: type(delta).__name__,
)
async def test_positions_count_from_the_beginning_of_a_part(between: d.Delta) -> None:
    last = text("a【p1】", phase="final_answer")
    written = [text("before 【p", phase="commentary"), between, last]
    assert await add_citations(written) == [*written, page("p1", 1)]


async def test_a_part_continues_after_an_annotation_and_a_batch() -> None:
    annotation = page("p0", 0)
    assert await add_citations([text("ab"), annotation], [text("【p1】")]) == [
        text("ab"),
        annotation,
        text("【p1】"),
        page("p1", 2),
    ]


class Citing(SingleItemCaller, CitationSource):
    """A caller whose calls may be cited."""

    step = "calling"

    def open_item(self, start: d.CallStart) -> d.Delta:
        return start

    async def run(self, start: d.CallStart, arguments: str) -> d.ToolEnd:
        return d.ToolEnd()

    def cite(self, words: str, start: int, end: int) -> Annotation | None:
        return cite_page(words, start, end)


def test_each_caller_that_cites_is_asked_only_once() -> None:
    citing = Citing()
    sessions = OpenMcpSessions(None, ApprovalAnswers(MemoryStore()))("us", "resp_1", [])
    assert ToolCalls({"mcp": sessions, "a": citing, "b": citing}, None).cite_functions == [
        citing.cite
    ]
    assert ToolCalls({"mcp": sessions}, None).cite_functions == []


async def test_any_split_of_the_text_gives_the_same_annotations() -> None:
    message = "One 【p1】【p22】, two 【f3】 and 【other】 and 【p4】"
    whole = await add_citations([text(message)])
    for size in range(1, 9):
        pieces = [[text(message[at : at + size])] for at in range(0, len(message), size)]
        deltas = await add_citations(*pieces)
        assert [each for each in deltas if isinstance(each, d.AnnotationDelta)] == whole[1:]
