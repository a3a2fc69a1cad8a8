"""Render the results of a file search for a model, and resolve its citations of them.

Each passage has a marker, 【call:passage†file】. Calls are numbered from 0 across the whole
conversation, so a search is rendered the same in every later turn, and a citation is resolved by
its numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from antiphon.domain.content import FileCitation
from antiphon.domain.items import FileSearchCall, Item
from antiphon.domain.json import Json
from antiphon.domain.tools import parse_arguments

NOTHING_FOUND = "Nothing was found."
NOT_RUN = "This search was not run."
NOT_AVAILABLE = "What was found is no longer at hand."

_MARKER = re.compile(r"(?P<call>\d{1,6}):(?P<passage>\d{1,6})†(?P<name>.*)")
MAX_NAME_CHARS = 200
"""How much of a file's name a marker shows."""

_FAKE_MARKER = re.compile(r"【(?=\d{1,6}:\d{1,6}†)")
_BRACKETS = str.maketrans("【】†\n", "[]| ")


def render_results(items: Sequence[Item]) -> Mapping[int, str]:
    """Return the text that the model is shown for each file search, by the `id()` of its item."""
    calls = [item for item in items if isinstance(item, FileSearchCall)]
    return {id(call): _render_call(call, number) for number, call in enumerate(calls)}


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


def _render_call(call: FileSearchCall, number: int) -> str:
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
