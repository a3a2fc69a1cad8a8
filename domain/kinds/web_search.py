"""Web search: search, open a page, find text in a page (docs/reference/api.md#web-search).

gpt-oss was trained on the same three tools under other names (adapters/formats/harmony/tools.py),
so their parameters and results are those that it knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from msgspec import UNSET, UnsetType

from antiphon.domain.bounds import Long, Many, Name, Text
from antiphon.domain.json import Json
from antiphon.domain.kinds.function import open_unrun_call
from antiphon.domain.vocabulary.event import ItemEvent
from antiphon.domain.vocabulary.item import Item
from antiphon.domain.vocabulary.kind import (
    JSON_ARGUMENTS,
    CallKind,
    Echo,
    IncludableField,
    ItemKind,
    Kind,
    Shown,
    ToolKind,
)
from antiphon.domain.vocabulary.shown import Call, Result, View, name_of_kind, to_json_text
from antiphon.domain.vocabulary.steps import ItemSteps
from antiphon.domain.vocabulary.tool import Tool, ToolSpec

WEB_KINDS = ("web_search", "open_page", "find_in_page")
"""The kinds of the tools that web search consists of for a model."""


class WebSearchCall(Item, frozen=True, kw_only=True, tag="web_search_call"):
    status: Text | None = None
    action: Json | None = None
    results: Long[Json] | None | UnsetType = UNSET


class WebSearchInProgress(ItemEvent, frozen=True, tag="response.web_search_call.in_progress"):
    pass


class WebSearchSearching(ItemEvent, frozen=True, tag="response.web_search_call.searching"):
    pass


class WebSearchCompleted(ItemEvent, frozen=True, tag="response.web_search_call.completed"):
    pass


class AnyWebSearch(Tool, frozen=True, kw_only=True):
    """Base class of the web search tools, which differ only in their name."""

    filters: Json | None | UnsetType = UNSET
    search_context_size: Literal["low", "medium", "high"] | None = "medium"
    user_location: Json | None = None
    external_web_access: bool | None | UnsetType = UNSET
    search_content_types: Many[Name] | None | UnsetType = UNSET


class WebSearch(AnyWebSearch, frozen=True, kw_only=True, tag="web_search"):
    pass


class WebSearch2025(AnyWebSearch, frozen=True, kw_only=True, tag="web_search_2025_08_26"):
    pass


class WebSearchPreview(AnyWebSearch, frozen=True, kw_only=True, tag="web_search_preview"):
    pass


class WebSearchPreview2025(
    AnyWebSearch, frozen=True, kw_only=True, tag="web_search_preview_2025_03_11"
):
    pass


_CITATION_HINT = (
    "Each page that is shown begins with its number, the `cursor`, in brackets, and its lines are "
    "numbered L0, L1…; cite what you take from lines 9 to 11 of the page [6] as 【6†L9-L11】."
)


def _spec(
    kind: str, description: str, *, required: tuple[str, ...] = (), **properties: Json
) -> Any:
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return ToolSpec(name=kind, kind=kind, description=description, parameters=parameters)


_NUMBER: Json = {"type": "integer"}

SPECS: Mapping[str, ToolSpec] = {
    "web_search": _spec(
        "web_search",
        "Searches the web and shows a page of links, written as 【id†title†host】. "
        + _CITATION_HINT,
        required=("query",),
        query={"type": "string", "minLength": 1},
        topn={**_NUMBER, "description": "How many pages to find; 10 by default."},
    ),
    "open_page": _spec(
        "open_page",
        "Opens a page of the web, or shows another part of one that is open. " + _CITATION_HINT,
        id={
            "type": ["integer", "string"],
            "description": "The id of a link on the page `cursor`, or a URL. Without it, `cursor` "
            "itself is shown, from line `loc` on.",
        },
        cursor={**_NUMBER, "description": "The number of a page; by default the latest."},
        loc={**_NUMBER, "description": "The first line to show."},
        num_lines={**_NUMBER, "description": "How many lines to show."},
    ),
    "find_in_page": _spec(
        "find_in_page",
        "Finds all places of a page where a text stands, whatever the case of its letters.",
        required=("pattern",),
        pattern={"type": "string", "minLength": 1},
        cursor={**_NUMBER, "description": "The number of the page; by default the latest."},
    ),
}
"""The specs by kind of tool."""


def browser_call_of(call: WebSearchCall) -> tuple[str, str, str | None]:
    """Return the kind of browser tool that was called, its arguments, and the output shown.

    An item from another server, or one that lost its results, lacks these. The arguments then come
    from its action, and the output lists the action's sources or is None.
    """
    action = call.action or {}
    kind = _KIND_OF_ACTION.get(str(action.get("type")), "web_search")
    result = call.results[0] if call.results else {}
    arguments, text = result.get("arguments"), result.get("text")
    if not isinstance(arguments, str):
        values = {"query": action.get("query"), "id": action.get("url"), **action}
        parameters = _BROWSER_PARAMETERS[kind]
        arguments = to_json_text({name: values.get(name) for name in parameters})
    if not isinstance(text, str):
        text = to_json_text(action["sources"]) if action.get("sources") else None
    return kind, arguments, text


_KIND_OF_ACTION = {"open_page": "open_page", "find_in_page": "find_in_page"}

_BROWSER_PARAMETERS = {"web_search": ("query",), "open_page": ("id",), "find_in_page": ("pattern",)}


def _shown_call(item: WebSearchCall, view: View) -> Call:
    kind, arguments, _ = browser_call_of(item)
    return Call(kind=kind, name=name_of_kind(kind, view.tools), text=arguments)


def _result(item: WebSearchCall, _: View) -> Result:
    return Result(body=browser_call_of(item)[2] or None, status=item.status or "completed")


def _ignored_paths(tool: AnyWebSearch, path: str) -> Iterator[str]:
    if set(tool.search_content_types or ()) - {"text"}:
        yield f"{path}.search_content_types"


CALL = ItemKind(
    item=WebSearchCall,
    prefix="ws",
    events=ItemSteps(
        opening_events=(WebSearchInProgress,),
        steps={"searching": WebSearchSearching},
        end_events={"completed": WebSearchCompleted},
    ),
    next="model",
    shown=Shown(call=_shown_call, result=_result),
    include={
        "web_search_call.action.sources": IncludableField("action", "sources"),
        "web_search_call.results": IncludableField("results"),
    },
)

TOOLS = tuple(
    ToolKind(
        tool=tool,
        client_specs=None,
        server_specs=lambda *_: tuple(SPECS.values()),
        chosen=WEB_KINDS,
        stand_in="web_search",
        echo=Echo(ignored=_ignored_paths),
    )
    for tool in (WebSearch, WebSearch2025, WebSearchPreview, WebSearchPreview2025)
)

CALLS = tuple(
    CallKind(
        name=name,
        tool_type="web_search",
        item=WebSearchCall,
        open=open_unrun_call,
        arguments=JSON_ARGUMENTS,
    )
    for name in WEB_KINDS
)

KIND = Kind(name="web_search", items=(CALL,), tools=TOOLS, calls=CALLS)
