"""A turn's tools, and what a search for calls makes of a text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from antiphon.adapters.formats.unmarked_calls import UnmarkedCalls
from antiphon.application.ports import Turn
from antiphon.domain import deltas as d
from antiphon.domain.json import Json
from antiphon.domain.tools import ToolSpec

WEATHER: Json = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 1},
        "unit": {"enum": ["C", "F"]},
    },
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [
    ToolSpec(name="get_weather", parameters=WEATHER),
    ToolSpec(name="now", parameters={"type": "object", "properties": {}}),
    ToolSpec(name="note", kind="custom"),
    ToolSpec(name="dsl", kind="custom", grammar=("regex", "a+")),
    ToolSpec(name="crm__find", namespace="crm", original_name="find"),
]

Said = list[Any]
"""A text, or a call's name with its arguments."""


def turn_of(**fields: Any) -> Turn:
    return Turn(**{"model": "m", "items": (), "tools": TOOLS, **fields})


def said(deltas: Iterable[d.Delta]) -> Said:
    """Return what deltas say, however they are cut: a text for each message, and the calls."""
    parts: Said = []
    is_open = False
    for delta in deltas:
        match delta:
            case d.TextDelta(text):
                if is_open and text:
                    parts[-1] += text
                elif text:
                    parts.append(text)
                is_open = is_open or bool(text)
            case d.CallStart():
                parts.append((delta.name, ""))
                is_open = False
            case d.ArgumentsDelta(text):
                parts[-1] = (parts[-1][0], parts[-1][1] + text)
            case _:
                is_open = False
    return parts


def read(pieces: str | Sequence[str], **fields: Any) -> Said:
    """Return what a message that comes in these pieces says after the search."""
    search = UnmarkedCalls(turn_of(**fields))
    texts = [pieces] if isinstance(pieces, str) else pieces
    deltas = [delta for text in texts for delta in search.feed([d.TextDelta(text)])]
    return said([*deltas, *search.end()])
