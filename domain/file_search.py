"""What a model is told of a file search, and how it cites what it found.

A passage has a marker, 【call:passage†file】, counted from 0 over the file searches of the whole
conversation: what is shown of a search stays the same in every later turn, and what a model cites
is found by its numbers.
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
NOT_AT_HAND = "What was found is no longer at hand."

_MARKER = re.compile(r"(?P<call>\d{1,6}):(?P<passage>\d{1,6})†(?P<name>.*)")
LONGEST_NAME = 200
"""Characters of a file's name in a marker."""

_FAKE = re.compile(r"【(?=\d{1,6}:\d{1,6}†)")
_BRACKETS = str.maketrans("【】†\n", "[]| ")


def render_results(items: Sequence[Item]) -> Mapping[int, str]:
    """Return what the model is shown of the results of each file search, by `id()` of its item."""
    calls = [item for item in items if isinstance(item, FileSearchCall)]
    return {id(call): _shown(call, number) for number, call in enumerate(calls)}


def results_of(items: Sequence[Item]) -> list[Sequence[Json]]:
    """Return the results of each file search."""
    return [item.results or () for item in items if isinstance(item, FileSearchCall)]


def resolve_citation(
    results: Sequence[Sequence[Json]], marker: str, start: int
) -> FileCitation | None:
    """Return what a marker cites, of the results of each search; `start` is its place.

    What was compacted is no longer counted in what the model is shown: where the numbers name
    another file than the marker does, the latest passage of a file of that name is meant.
    """
    parts = _MARKER.fullmatch(marker)
    if parts is None:
        return None
    call, passage = int(parts["call"]), int(parts["passage"])
    numbered = results[call][passage : passage + 1] if call < len(results) else ()
    latest = [each for found in reversed(results) for each in found]
    for each in (*numbered, *latest):
        file_id, filename = each.get("file_id"), each.get("filename")
        # What earlier searches found is what a client says it was.
        if not isinstance(file_id, str) or not isinstance(filename, str):
            continue
        if file_id and _name(each) == parts["name"]:
            return FileCitation(file_id=file_id, filename=filename, index=start)
    return None


def queries_of(arguments: str) -> tuple[str, ...] | None:
    """Return the queries of a call, None if its arguments are none.

    >>> queries_of('{"queries": ["a", "b"]}')
    ('a', 'b')
    """
    queries = (parse_arguments(arguments) or {}).get("queries")
    if isinstance(queries, list) and all(isinstance(each, str) for each in queries):
        return tuple(queries)
    return None


def arguments_of(queries: Sequence[str]) -> str:
    """Return the arguments of a call as models write them."""
    return json.dumps({"queries": list(queries)}, ensure_ascii=False)


def _shown(call: FileSearchCall, number: int) -> str:
    if call.results is None:
        return NOT_RUN if call.status == "incomplete" else NOT_AT_HAND
    if not call.results:
        return NOTHING_FOUND
    return "\n\n".join(_passage(each, number, at) for at, each in enumerate(call.results))


def _passage(result: Json, call: int, number: int) -> str:
    # No text of a file can pretend to be that of another one.
    text = _FAKE.sub("[", str(result.get("text") or ""))
    if not result.get("file_id"):  # what went wrong
        return text
    return f"【{call}:{number}†{_name(result)}】\n{text}"


def _name(result: Json) -> str:
    return str(result.get("filename")).translate(_BRACKETS)[:LONGEST_NAME]
