"""The tool file_search of one response: which vector stores it searches, and its calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec
from msgspec import UnsetType

from antiphon.application.resources.vector_stores import (
    RESULTS,
    FindVectorStore,
    SearchVectorStores,
)
from antiphon.application.tools.calls import SingleItemCaller, ToolCaller
from antiphon.application.tools.citations import CitationSource
from antiphon.application.tools.hosted import ToolProvider
from antiphon.domain import deltas as d
from antiphon.domain import items as i
from antiphon.domain.content import Annotation
from antiphon.domain.decoding import read
from antiphon.domain.errors import EmbeddingsError, RequestError, StoreError
from antiphon.domain.file_filters import Filter, parse_filter
from antiphon.domain.file_search import queries_of, resolve_citation, results_of
from antiphon.domain.json import Json
from antiphon.domain.offers import ToolDefinition
from antiphon.domain.ranking import RankedPassage, check_weights
from antiphon.domain.tools import FILE_SEARCH, FileSearch, RequestTool
from antiphon.domain.vector_stores import RankingOptions

T = TypeVar("T")

MAX_STORES = 20
MAX_QUERIES = 10
MAX_QUERY_LENGTH = 4096
"""What of a call is searched for: its first queries, and as many characters of each."""

BAD_ARGUMENTS = "The arguments must be an object with 'queries', a list of one or more strings."
NOT_SEARCHED = "The files cannot be searched now."


class FileSearchProvider(ToolProvider):
    """Gives each response what searches for it."""

    def __init__(self, find: FindVectorStore, search: SearchVectorStores) -> None:
        self._find = find
        self._search = search

    def handles(self, tool: RequestTool) -> bool:
        return isinstance(tool, FileSearch)

    async def callers(
        self,
        asked: Sequence[ToolDefinition],
        conversation: Sequence[i.AnyItem],
        *,
        tenant: str,
    ) -> Mapping[str, ToolCaller]:
        tool, path = asked[-1].tool, asked[-1].path
        assert isinstance(tool, FileSearch)
        fits = parse_filter(_given(tool.filters), f"{path}.filters")
        options = _options(_given(tool.ranking_options), f"{path}.ranking_options")
        await self._check_stores(tenant, tool.vector_store_ids, f"{path}.vector_store_ids")
        searcher = FileSearchCaller(
            self._search,
            tenant,
            tool.vector_store_ids,
            results_of(conversation),
            fits=fits,
            options=options,
            most=_given(tool.max_num_results) or RESULTS,
        )
        return {FILE_SEARCH: searcher}

    async def _check_stores(self, tenant: str, store_ids: Sequence[str], path: str) -> None:
        if not 1 <= len(store_ids) <= MAX_STORES:
            raise RequestError(
                f"Name one to {MAX_STORES} vector stores.", param=path, code="invalid_value"
            )
        for position, store_id in enumerate(store_ids):
            await self._find.usable(tenant, store_id, f"{path}[{position}]")


def _given(value: T | None | UnsetType) -> T | None:
    return None if isinstance(value, UnsetType) else value


def _options(given: Json | None, path: str) -> RankingOptions | None:
    if given is None:
        return None
    options: RankingOptions = read(
        msgspec.json.Decoder(RankingOptions).decode, msgspec.json.encode(given), path
    )
    check_weights(options, path)
    return options


class FileSearchCaller(SingleItemCaller, CitationSource):
    """Runs the searches of one response; `results` are those of the searches before it."""

    step = "searching"

    def __init__(
        self,
        search: SearchVectorStores,
        tenant: str,
        store_ids: Sequence[str],
        results: Sequence[Sequence[Json]],
        *,
        fits: Filter | None,
        options: RankingOptions | None,
        most: int,
    ) -> None:
        self._search = search
        self._tenant = tenant
        self._store_ids = store_ids
        self._fits = fits
        self._options = options
        self._most = most
        self._results = [*results]
        self._opened: list[d.CallStart] = []

    def open_item(self, start: d.CallStart) -> d.Delta:
        self._opened.append(start)
        self._results.append(())
        return d.ToolStart("file_search_call", {"queries": ()})

    def refused(self, start: d.CallStart, arguments: str, why: str) -> Sequence[d.Delta]:  # noqa: ARG002
        return [_failed(queries_of(arguments) or (), why)]

    def cite(self, words: str, start: int, end: int, /) -> Annotation | None:  # noqa: ARG002
        return resolve_citation(self._results, words, start)

    async def end(self, start: d.CallStart, arguments: str) -> d.ToolEnd:
        queries = queries_of(arguments)
        if not queries:
            return _failed((), BAD_ARGUMENTS)
        asked = [query[:MAX_QUERY_LENGTH] for query in queries[:MAX_QUERIES]]
        try:
            found = await self._search(
                self._tenant,
                self._store_ids,
                asked,
                fits=self._fits,
                options=self._options,
                most=self._most,
            )
        except (EmbeddingsError, StoreError) as error:
            return _failed(queries, str(error) if type(error) is EmbeddingsError else NOT_SEARCHED)
        results = tuple(map(_result, found))
        self._results[self._number(start)] = results
        return d.ToolEnd("completed", {"queries": queries, "results": results})

    def _number(self, start: d.CallStart) -> int:
        """Return the number of a call among all searches of the conversation."""
        before = len(self._results) - len(self._opened)
        return before + next(at for at, each in enumerate(self._opened) if each is start)


def _failed(queries: Sequence[str], why: str) -> d.ToolEnd:
    return d.ToolEnd("failed", {"queries": tuple(queries), "results": ({"text": why},)})


def _result(found: RankedPassage) -> Json:
    passage = found.passage
    return {
        "file_id": passage.file_id,
        "filename": passage.filename,
        "score": found.score,
        "text": passage.text,
        "attributes": passage.attributes,
    }
