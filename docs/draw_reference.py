"""Draw the tables of docs/reference/ from the code: `make docs`.

A page holds `<!-- drawn: NAME PART -->`, a table and `<!-- end -->`; the table is replaced. What a
table says in words stands in draw_reference.toml, and must be there for each row.
"""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, UNSET, Struct, structs
from msgspec import inspect as mi

from antiphon.domain import content, items, tools
from antiphon.domain.batches import batch
from antiphon.domain.bounds import MAX_MEMBERS
from antiphon.domain.events import EVENT_TYPES, Event, ItemAdded, ItemDone
from antiphon.domain.lifecycle import OPENS, TRANSITIONS
from antiphon.domain.requests import decisions, moderations, skills
from antiphon.domain.requests import request as requests
from antiphon.domain.responses.cache_diagnostics import PromptComparison
from antiphon.domain.responses.metrics import (
    AgentMetrics,
    GuardMetrics,
    ResponseMetrics,
    ToolCallMetrics,
    TurnMetrics,
)
from antiphon.domain.responses.response import Response
from antiphon.domain.retrieval import embeddings, vector_stores
from antiphon.domain.retrieval.vector_stores import MAX_FLOAT
from antiphon.domain.vocabulary.steps import State
from antiphon.entrypoints.http.app import create_app
from antiphon.entrypoints.http.errors import STATUS
from antiphon.entrypoints.http.wire.bodies import BodyLimits
from antiphon.entrypoints.http.wire.dialects import DIALECTS, OPENAI

PAGES = Path(__file__).with_name("reference")
NOTES: Mapping[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
MARKED = re.compile(
    r"(?P<start><!-- drawn: (?P<table>[a-z-]+)(?: (?P<part>[^>]+?))? -->\n).*?(?=<!-- end -->)",
    re.DOTALL,
)

METRICS: Mapping[str, type[Struct]] = {
    "response": ResponseMetrics,
    "turn": TurnMetrics,
    "tool_call": ToolCallMetrics,
    "guard": GuardMetrics,
    "prompt": PromptComparison,
    "agent": AgentMetrics,
}

Row = Sequence[str]


def draw_page(text: str) -> str:
    """Return a page with its tables drawn anew."""
    return MARKED.sub(
        lambda found: found["start"] + _draw_table(found["table"], found["part"]), text
    )


def _draw_table(name: str, part: str | None) -> str:
    head, *rows = TABLES[name]() if part is None else TABLES[name](part)
    lines = [head, ["---"] * len(head), *rows]
    return "\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n"


# --- what is drawn --------------------------------------------------------------------------------


def draw_endpoints(tag: str) -> Iterator[Row]:
    """Yield the operations that bear a tag of the OpenAPI document."""
    yield "Endpoint", "What it does", "Query parameters"
    order = {"post": 0, "get": 1, "delete": 2}
    found = [
        (path, method, operation)
        for path, operations in _read_openapi()["paths"].items()
        for method, operation in operations.items()
        if tag in operation["tags"]
    ]
    for path, method, operation in sorted(found, key=lambda each: (each[0], order[each[1]])):
        query = [each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"]
        names = [name for name in query if f"{name}[]" not in query]
        yield f"`{method.upper()} {path}`", operation["summary"], _quote(names)


def draw_request_fields(group: str) -> Iterator[Row]:
    """Yield the fields of a request to create a response that a group of the notes names."""
    _check_notes(NOTES["fields"], set(_types_by_path(requests.CreateResponse)))
    yield "Field", "Type and limits", "Effect"
    types = _types_by_path(requests.CreateResponse)
    for path, note in NOTES["fields"][group].items():
        yield f"`{path}`", types[path], _mark_effect(path) + note


def draw_fields_without_effect() -> Iterator[Row]:
    yield "Field", "Values that ask for what happens anyway"
    for path, harmless in requests.IGNORED_FIELDS.items():
        yield f"`{path}`", _quote(msgspec.json.encode(each).decode() for each in harmless) or "none"


def draw_misplaced_fields() -> Iterator[Row]:
    yield "Field of Chat Completions", "Use instead"
    for wrong, right in requests.CHAT_COMPLETIONS_FIELDS.items():
        yield f"`{wrong}`", f"`{right}`"


def draw_include_values() -> Iterator[Row]:
    _check_notes({"": NOTES["include"]}, set(get_args(requests.INCLUDABLE)))
    yield "Value", "What it shows"
    yield from ((f"`{value}`", note) for value, note in NOTES["include"].items())


def draw_response_keys() -> Iterator[Row]:
    """Yield the keys of the response object; those that may be absent are told apart."""
    fields = {field.encode_name: field for field in structs.fields(Response)}
    _check_notes({"": NOTES["response"]}, set(fields))
    yield "Key", "Type", "Meaning"
    for name, note in NOTES["response"].items():
        field = fields[name]
        optional = "; absent when unused" if field.default is UNSET else ""
        yield f"`{name}`", _describe(field.type, null=True) + optional, note


def draw_metrics(part: str) -> Iterator[Row]:
    """Yield the keys of the record of a response, of a turn or of a tool call."""
    fields = {field.encode_name: field for field in structs.fields(METRICS[part])}
    _check_notes({"": NOTES["metrics"][part]}, set(fields))
    yield "Key", "Type", "Meaning"
    for name, note in NOTES["metrics"][part].items():
        yield f"`{name}`", _describe(fields[name].type), note


def draw_item_types() -> Iterator[Row]:
    _check_notes({"": NOTES["items"]}, set(items.ITEM_TYPES))
    yield "`type`", "Id", "Fields", "What it is"
    for name, note in NOTES["items"].items():
        kind = items.ITEM_TYPES[name]
        prefix = items.ID_PREFIXES.get(kind)
        yield (
            f"`{name}`",
            f"`{prefix}_`" if prefix else "none",
            _list_fields(kind, but=("id", "agent")),
            note,
        )


def draw_parts() -> Iterator[Row]:
    kinds = _kinds_of(content.Part)
    _check_notes({"": NOTES["parts"]}, set(kinds))
    yield "`type`", "Fields", "Where it may stand"
    yield from (
        (f"`{name}`", _list_fields(kinds[name]), note) for name, note in NOTES["parts"].items()
    )


def draw_annotations() -> Iterator[Row]:
    kinds = _kinds_of(content.Annotation)
    _check_notes({"": NOTES["annotations"]}, set(kinds))
    yield "`type`", "Fields", "What it cites"
    for name, note in NOTES["annotations"].items():
        yield f"`{name}`", _list_fields(kinds[name]), note


def draw_text_formats() -> Iterator[Row]:
    kinds = _kinds_of(requests.TextFormat)
    _check_notes({"": NOTES["formats"]}, set(kinds))
    yield "`type`", "Fields", "What it asks for"
    for name, note in NOTES["formats"].items():
        yield f"`{name}`", _list_fields(kinds[name], typed=True), note


def draw_tool_types() -> Iterator[Row]:
    _check_notes({"": NOTES["tools"]}, set(tools.TOOL_TYPES))
    yield "`type`", "Fields", "Who runs it"
    for name, note in NOTES["tools"].items():
        yield f"`{name}`", _list_fields(tools.TOOL_TYPES[name], typed=True), note


def draw_body(name: str) -> Iterator[Row]:
    """Yield the fields of the body of one of the smaller endpoints."""
    modules = (requests, vector_stores, embeddings, decisions, moderations, batch, skills)
    kind = next(getattr(module, name) for module in modules if hasattr(module, name))
    notes = NOTES["bodies"][name]
    _check_notes({"": notes}, set(_types_by_path(kind)))
    yield "Field", "Type and limits", "Meaning"
    required = {each.encode_name for each in structs.fields(kind) if _is_required(each)}
    for path, kind_of in _types_by_path(kind).items():
        yield f"`{path}`{'*' if path in required else ''}", kind_of, notes[path]


def draw_events(group: str) -> Iterator[Row]:
    """Yield the events that a group of the notes names."""
    _check_notes(NOTES["events"], set(EVENT_TYPES))
    yield "Event", "Fields", "When"
    for name, note in NOTES["events"][group].items():
        fields = _list_fields(EVENT_TYPES[name], but=Event.__struct_fields__, optional="?")
        yield f"`{name}`", fields or "none", note


def draw_item_events() -> Iterator[Row]:
    """Yield what may come between the two events that open and close an item."""
    yield "Item", "Events between `response.output_item.added` and `response.output_item.done`"
    for kind, first in OPENS.items():
        name = kind.__struct_config__.tag
        yield f"`{name}`", _quote(_events_after(first)) or "none"


def draw_statuses() -> Iterator[Row]:
    """Yield the HTTP statuses of errors raised on purpose."""
    _check_notes({"": NOTES["statuses"]}, {kind.__name__ for kind in STATUS})
    yield "Status", *(f"`type` ({name})" for name in DIALECTS), "When"
    reasons: dict[int, list[str]] = {}
    for kind, status in STATUS.items():
        if note := NOTES["statuses"][kind.__name__]:
            reasons.setdefault(status, []).append(note)
    for status, notes in sorted(reasons.items()):
        types = (f"`{dialect.error_type(status)}`" for dialect in DIALECTS.values())
        yield str(status), *types, "<br>".join(notes)


def draw_dialects() -> Iterator[Row]:
    """Yield what an event is called in the dialects that rename it."""
    yield tuple(f"Event in `{name}`" for name in DIALECTS)
    renamed = dict.fromkeys(name for each in DIALECTS.values() for name in each.renamed)
    for name in renamed:
        yield tuple(f"`{each.event_name(name)}`" for each in DIALECTS.values())


TABLES: Mapping[str, Callable[..., Iterator[Row]]] = {
    "endpoints": draw_endpoints,
    "request-fields": draw_request_fields,
    "without-effect": draw_fields_without_effect,
    "misplaced-fields": draw_misplaced_fields,
    "include": draw_include_values,
    "response": draw_response_keys,
    "metrics": draw_metrics,
    "items": draw_item_types,
    "parts": draw_parts,
    "annotations": draw_annotations,
    "formats": draw_text_formats,
    "tools": draw_tool_types,
    "body": draw_body,
    "events": draw_events,
    "item-events": draw_item_events,
    "statuses": draw_statuses,
    "dialects": draw_dialects,
}


# --- from code to words ---------------------------------------------------------------------------


NAMED: Mapping[type[Any], str] = {
    Response: "[response](api.md#the-response-object)",
    items.Item: "[item](api.md#items)",
    content.Part: "[content part](api.md#content-parts)",
    content.Annotation: "[annotation](api.md#annotations)",
    content.Logprob: "[logprob](api.md#logprobs)",
    requests.TextFormat: "[text format](api.md#text-formats)",
    tools.Tool: "[tool](api.md#tool-types)",
    vector_stores.Chunking: "[chunking strategy](api.md#chunking)",
}
"""Structs that have a section of their own."""


def _check_notes(notes: Mapping[str, Mapping[str, str]], known: set[str]) -> None:
    """Raises: ValueError where a row has no note, or a note no row."""
    noted = [name for group in notes.values() for name in group]
    wrong = sorted(known.symmetric_difference(noted)) + sorted(
        name for name in set(noted) if noted.count(name) > 1
    )
    if wrong:
        raise ValueError(f"draw_reference.toml must say once what these are: {', '.join(wrong)}")


@cache
def _read_openapi() -> dict[str, Any]:
    # Handlers are not called, so nothing needs to be behind them.
    nothing = SimpleNamespace(options=SimpleNamespace(dialect=OPENAI, limits=BodyLimits()))
    given: dict[str, Any] = {
        name: 0 if parameter.kind is parameter.KEYWORD_ONLY else nothing
        for name, parameter in inspect.signature(create_app).parameters.items()
    }
    app: Any = create_app(**given)
    document: dict[str, Any] = app.openapi_schema.to_schema()
    return document


def _kinds_of(base: type[Any]) -> dict[str, type[Any]]:
    """Return the kinds of a tagged union by their tags."""
    return {str(kind.__struct_config__.tag): kind for kind in base.__subclasses__()}


def _types_by_path(kind: type[Struct], prefix: str = "") -> dict[str, str]:
    """Return the type of each field by its path, with those of objects in it."""
    found: dict[str, str] = {}
    for field in structs.fields(kind):
        path = f"{prefix}{field.encode_name}"
        found[path] = _describe(field.type)
        for inner, steps in _inner_structs(mi.type_info(field.type)):
            found |= _types_by_path(inner, f"{path}{steps}.")
    return found


def _inner_structs(kind: mi.Type, steps: str = "") -> Iterator[tuple[type[Struct], str]]:
    if isinstance(kind, mi.Metadata):
        yield from _inner_structs(kind.type, steps)
    elif isinstance(kind, mi.UnionType):
        for each in kind.types:
            yield from _inner_structs(each, steps)
    elif isinstance(kind, mi.VarTupleType):
        yield from _inner_structs(kind.item_type, f"{steps}[]")
    elif isinstance(kind, mi.StructType) and _section_of(kind.cls) is None:
        yield kind.cls, steps


def _list_fields(
    kind: type[Any], *, but: Sequence[str] = (), typed: bool = False, optional: str = ""
) -> str:
    """Return the names of all fields, with a star after each that must be there."""
    told: list[str] = []
    for field in structs.fields(kind):
        if field.encode_name in but:
            continue
        mark = "*" if _is_required(field) and not optional else ""
        mark = optional if field.default is UNSET else mark
        kind_of = _describe(field.type) if typed else ""
        is_plain = kind_of in ("", "string", "object", "list of string", "any JSON", "boolean")
        limits = "" if is_plain else f" ({kind_of.replace(' (', ': ', 1).removesuffix(')')})"
        told.append(f"`{field.encode_name}`{mark}{limits}")
    return ", ".join(told)


def _is_required(field: structs.FieldInfo) -> bool:
    return field.default is NODEFAULT and field.default_factory is NODEFAULT


def _describe(kind: Any, *, null: bool = False) -> str:
    """Return a type in words; `null` tells whether it may be null, too."""
    info = mi.type_info(kind)
    told = _Types(dict(_find_literals(kind))).describe(info)
    may_be_null = isinstance(info, mi.UnionType) and info.includes_none
    return f"{told} or null" if null and may_be_null else told


def _find_literals(kind: Any) -> Iterator[tuple[frozenset[Any], Sequence[Any]]]:
    """Yield the values of each Literal in their own order, which msgspec does not keep."""
    if get_origin(kind) is Literal:
        yield frozenset(get_args(kind)), get_args(kind)
    for inner in () if get_origin(kind) is Literal else get_args(kind):
        yield from _find_literals(inner)


class _Types:
    """Describes types; `literals` are the values of each Literal in their order."""

    def __init__(self, literals: Mapping[frozenset[Any], Sequence[Any]]) -> None:
        self._literals = literals

    def describe(self, kind: mi.Type) -> str:
        match kind:
            case mi.Metadata():
                return self.describe(kind.type)
            case mi.UnionType():
                told = [self.describe(each) for each in kind.types if type(each) not in ABSENT]
                return " or ".join(dict.fromkeys(told))
            case mi.LiteralType() if len(kind.values) > MANY:
                return "string"
            case mi.LiteralType():
                return _quote(map(str, self._literals[frozenset(kind.values)]))
            case mi.VarTupleType():
                return _add_limits(
                    f"list of {self.describe(kind.item_type)}", _describe_size(kind, "entries")
                )
            case mi.DictType():
                return self._describe_map(kind)
            case mi.StrType():
                matching = f"matching `{kind.pattern}`" if kind.pattern else ""
                return _add_limits("string", _describe_size(kind, "characters"), matching)
            case mi.IntType():
                return _add_limits("integer", _describe_bounds(kind))
            case mi.FloatType():
                return _add_limits("number", _describe_bounds(kind))
            case mi.StructType():
                return _section_of(kind.cls) or "object"
        return PLAIN[type(kind)]

    def _describe_map(self, kind: mi.DictType) -> str:
        if isinstance(kind.value_type, mi.AnyType | mi.RawType):
            return "object"
        longest = getattr(kind.key_type, "max_length", None)
        longest = None if longest in USUAL_LENGTHS else longest
        keys = f"keys of up to {longest} characters" if longest else ""
        value = self.describe(kind.value_type)
        return _add_limits(f"map of string to {value}", _describe_size(kind, "entries"), keys)


PLAIN: Mapping[type[mi.Type], str] = {
    mi.BoolType: "boolean",
    mi.AnyType: "any JSON",
    mi.RawType: "object",
}
USUAL_LENGTHS = frozenset({1024, 4096, 65_536, MAX_MEMBERS, 2**30})
USUAL_RANGES = frozenset({(-(2**63), 2**63 - 1), (0, 2**31), (-MAX_FLOAT, MAX_FLOAT)})
"""The bounds of `domain.limits`, which the page names once (api.md#limits)."""

ABSENT = (mi.NoneType, mi.CustomType)
"""What stands for null and for a field that is not there."""


def _section_of(kind: type[Any]) -> str | None:
    return next((name for base, name in NAMED.items() if issubclass(kind, base)), None)


def _add_limits(what: str, *limits: str) -> str:
    given = "; ".join(limit for limit in limits if limit)
    return f"{what} ({given})" if given else what


def _describe_size(kind: Any, unit: str) -> str:
    least, most = kind.min_length, kind.max_length
    if not least and most in USUAL_LENGTHS:
        return ""
    if least is not None and most is not None:
        return f"{least} to {most:,} {unit}"
    if most is not None:
        return f"up to {most:,} {unit}"
    return "not empty" if least else ""


def _describe_bounds(kind: mi.IntType | mi.FloatType) -> str:
    if (kind.ge, kind.le) in USUAL_RANGES:
        return ""
    if kind.gt is not None:
        return f"more than {kind.gt:g}"
    if kind.ge is not None and kind.le is not None:
        return f"{_write_number(kind.ge)} to {_write_number(kind.le)}"
    return f"at least {_write_number(kind.ge)}" if kind.ge is not None else ""


def _write_number(bound: float) -> str:
    """Write a bound as people do.

    >>> _write_number(1000), _write_number(2**63 - 1), _write_number(-(2**63))
    ('1,000', '2^63 - 1', '-2^63')
    """
    size = abs(int(bound))
    if size < MACHINE:
        return f"{bound:,}"
    power = f"2^{(size + 1).bit_length() - 1}"
    return f"-{power}" if bound < 0 else power if size & (size - 1) == 0 else f"{power} - 1"


MACHINE = 2**31 - 1
"""From here on, bounds are those of machines."""

MANY = 7
"""A longer list of values has a table of its own."""


HAVE_EFFECT = {"service_tier", "moderation"}
"""Fields of which only some values have no effect, or only on some servers."""


def _mark_effect(path: str) -> str:
    return "*No effect.* " if path in requests.IGNORED_FIELDS.keys() - HAVE_EFFECT else ""


def _events_after(first: State) -> list[str]:
    """Return the events of an item that opens in this state, in the order of its diagram."""
    found: dict[str, None] = {}
    seen: set[State] = set()
    todo = [first]
    while todo:
        state = todo.pop(0)
        if state in seen:
            continue
        seen.add(state)
        for event, after in TRANSITIONS[state].items():
            if event not in (ItemAdded, ItemDone):
                found[str(event.__struct_config__.tag)] = None
                todo.append(after)
    return list(found)


def _quote(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    for path in sorted(PAGES.glob("*.md")):
        path.write_text(draw_page(path.read_text()))
