"""The file_search tool of one response: the vector stores that it searches, and its calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from antiphon.application.resources.vector_stores import (
    DEFAULT_RESULTS,
    FindVectorStore,
    SearchVectorStores,
)
from antiphon.application.tools.calls import SingleItemCaller, ToolCaller
from antiphon.application.tools.citations import CitationSource
from antiphon.application.tools.hosted import ToolProvider
from antiphon.domain import deltas as d
from antiphon.domain import items as i
from antiphon.domain.content import Annotation
from antiphon.domain.errors import EmbeddingsError, RequestError, StoreError
from antiphon.domain.json import Json
from antiphon.domain.kinds.file_search import queries_of, resolve_citation, results_of
from antiphon.domain.offers.offer import ToolDefinition
from antiphon.domain.requests.decoding import read
from antiphon.domain.retrieval.file_filters import Filter, parse_filter
from antiphon.domain.retrieval.ranking import RankedPassage, check_weights
from antiphon.domain.retrieval.vector_stores import RankingOptions
from antiphon.domain.tools import FILE_SEARCH, FileSearch, RequestTool
from antiphon.domain.vocabulary.tool import none_if_unset

MAX_STORES = 20
MAX_QUERIES = 10
MAX_QUERY_LENGTH = 4096
"""A call searches for its first `MAX_QUERIES` queries, and the first characters of each."""

INVALID_ARGUMENTS = "The arguments must be an object with 'queries', a list of one or more strings."
SEARCH_UNAVAILABLE = "File search is currently unavailable."


class FileSearchProvider(ToolProvider):
    """Provides each response with the caller for its searches."""

    tool_types = ("file_search",)

    def __init__(self, find: FindVectorStore, search: SearchVectorStores) -> None:
        self._find = find
        self._search = search

    def handles(self, tool: RequestTool) -> bool:
        return isinstance(tool, FileSearch)

    async def callers(
        self,
        tools: Sequence[ToolDefinition],
        conversation: Sequence[i.AnyItem],
        *,
        tenant: str,
    ) -> Mapping[str, ToolCaller]:
        tool, path = tools[-1].tool, tools[-1].path
        assert isinstance(tool, FileSearch)
        file_filter = parse_filter(none_if_unset(tool.filters), f"{path}.filters")
        options = _parse_options(none_if_unset(tool.ranking_options), f"{path}.ranking_options")
        await self._check_stores(tenant, tool.vector_store_ids, f"{path}.vector_store_ids")
        caller = FileSearchCaller(
            self._search,
            tenant,
            tool.vector_store_ids,
            results_of(conversation),
            file_filter=file_filter,
            options=options,
            limit=none_if_unset(tool.max_num_results) or DEFAULT_RESULTS,
        )
        return {FILE_SEARCH: caller}

    async def _check_stores(self, tenant: str, store_ids: Sequence[str], path: str) -> None:
        if not 1 <= len(store_ids) <= MAX_STORES:
            raise RequestError(
                f"Name one to {MAX_STORES} vector stores.", param=path, code="invalid_value"
            )
        for position, store_id in enumerate(store_ids):
            await self._find.get_usable(tenant, store_id, f"{path}[{position}]")


def _parse_options(value: Json | None, path: str) -> RankingOptions | None:
    if value is None:
        return None
    options: RankingOptions = read(
        msgspec.json.Decoder(RankingOptions).decode, msgspec.json.encode(value), path
    )
    check_weights(options, path)
    return options


class FileSearchCaller(SingleItemCaller, CitationSource):
    """Runs the searches of one response; `earlier_results` are those of earlier searches."""

    step = "searching"

    def __init__(
        self,
        search: SearchVectorStores,
        tenant: str,
        store_ids: Sequence[str],
        earlier_results: Sequence[Sequence[Json]],
        *,
        file_filter: Filter | None,
        options: RankingOptions | None,
        limit: int,
    ) -> None:
        self._search = search
        self._tenant = tenant
        self._store_ids = store_ids
        self._filter = file_filter
        self._options = options
        self._limit = limit
        self._results = [*earlier_results]
        self._starts: list[d.CallStart] = []

    def open_item(self, start: d.CallStart) -> d.Delta:
        self._starts.append(start)
        self._results.append(())
        return d.ToolStart("file_search_call", {"queries": ()})

    def restore(self, start: d.CallStart, arguments: str, output: Sequence[d.Delta]) -> None:  # noqa: ARG002
        for delta in output:
            if isinstance(delta, d.ToolEnd) and delta.status == "completed":
                self._results[self._search_number(start)] = tuple(delta.fields["results"])

    async def may_repeat(self, start: d.CallStart, arguments: str) -> bool:  # noqa: ARG002
        return True

    def refuse(self, start: d.CallStart, arguments: str, reason: str) -> Sequence[d.Delta]:  # noqa: ARG002
        return [_to_failure(queries_of(arguments) or (), reason)]

    def cite(self, words: str, start: int, end: int, /) -> Annotation | None:  # noqa: ARG002
        return resolve_citation(self._results, words, start)

    async def run(self, start: d.CallStart, arguments: str) -> d.ToolEnd:
        queries = queries_of(arguments)
        if not queries:
            return _to_failure((), INVALID_ARGUMENTS)
        try:
            passages = await self._search(
                self._tenant,
                self._store_ids,
                [query[:MAX_QUERY_LENGTH] for query in queries[:MAX_QUERIES]],
                file_filter=self._filter,
                options=self._options,
                limit=self._limit,
            )
        except (EmbeddingsError, StoreError) as error:
            is_explained = isinstance(error, EmbeddingsError)
            return _to_failure(queries, str(error) if is_explained else SEARCH_UNAVAILABLE)
        results = tuple(map(_to_result, passages))
        self._results[self._search_number(start)] = results
        return d.ToolEnd("completed", {"queries": queries, "results": results})

    def _search_number(self, start: d.CallStart) -> int:
        """Return the number of a call among all searches of the conversation."""
        earlier = len(self._results) - len(self._starts)
        return earlier + next(n for n, each in enumerate(self._starts) if each is start)


def _to_failure(queries: Sequence[str], reason: str) -> d.ToolEnd:
    return d.ToolEnd("failed", {"queries": tuple(queries), "results": ({"text": reason},)})


def _to_result(ranked: RankedPassage) -> Json:
    passage = ranked.passage
    return {
        "file_id": passage.file_id,
        "filename": passage.filename,
        "score": ranked.score,
        "text": passage.text,
        "attributes": passage.attributes,
    }
