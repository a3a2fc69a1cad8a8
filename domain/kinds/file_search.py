"""File search: passages of the user's files, which answers cite.

Each passage has a marker, 【call:passage†file】. Calls are numbered from 0 across the whole
conversation, so a search is rendered the same in every later turn, and a citation is resolved by
its numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from antiphon.domain.bounds import Id, Long, Many, Text
from antiphon.domain.content import FileCitation
from antiphon.domain.json import Json
from antiphon.domain.kinds.function import open_unrun_call
from antiphon.domain.vocabulary.event import ItemEvent
from antiphon.domain.vocabulary.item import Item
from antiphon.domain.vocabulary.kind import (
    AS_SENT,
    JSON_ARGUMENTS,
    CallKind,
    IncludableField,
    ItemKind,
    Kind,
    Shown,
    ToolKind,
)
from antiphon.domain.vocabulary.shown import Call, Result, name_of_kind
from antiphon.domain.vocabulary.steps import ItemSteps
from antiphon.domain.vocabulary.tool import Tool, ToolSpec, parse_arguments

FILE_SEARCH: Literal["file_search"] = "file_search"
"""The kind of file search, and its name for models."""

NOTHING_FOUND = "Nothing was found."
NOT_RUN = "This search was not run."
NOT_AVAILABLE = "What was found is no longer at hand."

_MARKER = re.compile(r"(?P<call>\d{1,6}):(?P<passage>\d{1,6})†(?P<name>.*)")
MAX_NAME_CHARS = 200
"""How much of a file's name a marker shows."""

_FAKE_MARKER = re.compile(r"【(?=\d{1,6}:\d{1,6}†)")
_BRACKETS = str.maketrans("【】†\n", "[]| ")


class FileSearchCall(Item, frozen=True, kw_only=True, tag="file_search_call"):
    status: Text | None = None
    queries: Long[Text] | None = ()
    results: Long[Json] | None = None


class FileSearchInProgress(ItemEvent, frozen=True, tag="response.file_search_call.in_progress"):
    pass


class FileSearchSearching(ItemEvent, frozen=True, tag="response.file_search_call.searching"):
    pass


class FileSearchCompleted(ItemEvent, frozen=True, tag="response.file_search_call.completed"):
    pass


class FileSearch(Tool, frozen=True, kw_only=True, tag="file_search"):
    vector_store_ids: Many[Id]
    max_num_results: Annotated[int, Meta(ge=1, le=50)] | None | UnsetType = UNSET
    filters: Json | None | UnsetType = UNSET
    ranking_options: Json | None | UnsetType = UNSET


FILE_SEARCH_SPEC = ToolSpec(
    name=FILE_SEARCH,
    kind=FILE_SEARCH,
    description=(
        "Searches the user's files and returns the passages that fit the queries best. Before each "
        "is a marker, 【0:1†report.pdf】 for example. Cite the passages that an answer uses by "
        "their markers, as they are, right after what they say."
    ),
    parameters={
        "type": "object",
        "properties": {
            "queries": {
                "type": "array",
                "items": {"type": "string"},
                "minItems": 1,
                "maxItems": 10,
                "description": "What to search for: questions or words, each by itself.",
            }
        },
        "required": ["queries"],
        "additionalProperties": False,
    },
)


def results_of(items: Sequence[Item]) -> list[Sequence[Json]]:
    """Return the results of each file search."""
    return [item.results or () for item in items if isinstance(item, FileSearchCall)]


def resolve_citation(
    results: Sequence[Sequence[Json]], marker: str, start: int
) -> FileCitation | None:
    """Return the file that a marker cites, given the results of each search.

    `start` is the marker's offset in the text. Numbers can be wrong after a compaction, since the
    model is no longer shown the earlier searches. If a marker's numbers and file name disagree, the
    latest passage from a file of that name counts.
    """
    parts = _MARKER.fullmatch(marker)
    if parts is None:
        return None
    call, passage = int(parts["call"]), int(parts["passage"])
    by_number = results[call][passage : passage + 1] if call < len(results) else ()
    latest_first = [result for search in reversed(results) for result in search]
    for result in (*by_number, *latest_first):
        file_id, filename = result.get("file_id"), result.get("filename")
        # The results of earlier searches come from the client and may be invalid.
        if not isinstance(file_id, str) or not isinstance(filename, str):
            continue
        if file_id and _marker_name(result) == parts["name"]:
            return FileCitation(file_id=file_id, filename=filename, index=start)
    return None


def queries_of(arguments: str) -> tuple[str, ...] | None:
    """Return the queries of a call, None if its arguments are invalid.

    >>> queries_of('{"queries": ["a", "b"]}')
    ('a', 'b')
    """
    queries = (parse_arguments(arguments) or {}).get("queries")
    if isinstance(queries, list) and all(isinstance(each, str) for each in queries):
        return tuple(queries)
    return None


def arguments_of(queries: Sequence[str]) -> str:
    """Return the arguments of a call with these queries, as models write them."""
    return json.dumps({"queries": list(queries)}, ensure_ascii=False)


def render_call(call: FileSearchCall, number: int) -> str:
    if call.results is None:
        return NOT_RUN if call.status == "incomplete" else NOT_AVAILABLE
    if not call.results:
        return NOTHING_FOUND
    passages = enumerate(call.results)
    return "\n\n".join(_render_passage(result, number, position) for position, result in passages)


def _render_passage(result: Json, call: int, number: int) -> str:
    # A file's text must not pretend to be a passage of another file.
    text = _FAKE_MARKER.sub("[", str(result.get("text") or ""))
    if not result.get("file_id"):  # an error message
        return text
    return f"【{call}:{number}†{_marker_name(result)}】\n{text}"


def _marker_name(result: Json) -> str:
    return str(result.get("filename")).translate(_BRACKETS)[:MAX_NAME_CHARS]


CALL = ItemKind(
    item=FileSearchCall,
    prefix="fs",
    events=ItemSteps(
        opening_events=(FileSearchInProgress,),
        steps={"searching": FileSearchSearching},
        end_events={"completed": FileSearchCompleted},
    ),
    next="model",
    shown=Shown(
        call=lambda item, view: Call(
            kind=FILE_SEARCH,
            name=name_of_kind(FILE_SEARCH, view.tools),
            text=arguments_of(item.queries or ()),
        ),
        result=lambda item, view: Result(body=render_call(item, view.numbers[id(item)])),
    ),
    include={"file_search_call.results": IncludableField("results")},
)

TOOL = ToolKind(
    tool=FileSearch,
    client_specs=None,
    server_specs=lambda *_: (FILE_SEARCH_SPEC,),
    chosen=(FILE_SEARCH,),
    stand_in="file_search",
    echo=AS_SENT,
)
SEARCH = CallKind(
    name=FILE_SEARCH,
    tool_type="file_search",
    item=FileSearchCall,
    open=open_unrun_call,
    arguments=JSON_ARGUMENTS,
)

KIND = Kind(name="file_search", items=(CALL,), tools=(TOOL,), calls=(SEARCH,))
