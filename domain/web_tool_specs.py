"""The specs of the web tools: search, open a page, find text in a page
(docs/reference/api.md#web-search).

gpt-oss was trained on the same three tools under other names (adapters/formats/harmony/tools.py),
so their parameters and results are those that it knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from antiphon.domain.json import Json
from antiphon.domain.tools import ToolKind, ToolSpec

_CITATION_HINT = (
    "Each page that is shown begins with its number, the `cursor`, in brackets, and its lines are "
    "numbered L0, L1…; cite what you take from lines 9 to 11 of the page [6] as 【6†L9-L11】."
)


def _spec(
    kind: ToolKind, description: str, *, required: tuple[str, ...] = (), **properties: Json
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
