"""The calls that a script's parts make, as names and arguments that a model writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.adapters.formats.tools import CODE, scripted_name
from antiphon.domain.json import Json
from antiphon.domain.kinds.custom import INPUT
from antiphon.domain.kinds.function import model_tool_name
from antiphon.domain.kinds.mcp import mcp_model_name
from antiphon.domain.tools import PYTHON, ToolSpec
from antiphon.domain.vocabulary.shown import name_of_kind


def call_of(part: Mapping[str, Any], tools: Sequence[ToolSpec]) -> tuple[str, Json | str] | None:
    """Return the name and arguments of the call that a part makes, or None if it makes none.

    Arguments are a text where the script wants them written as they are.

    >>> call_of({"custom": "note", "input": "milk"}, [])
    ('note', {'input': 'milk'})
    """
    match part:
        case {"call": name}:
            return scripted_name(tools, name), part.get("args", {})
        case {"custom": name}:
            return name, {INPUT: part.get("input", "")}
        case {"mcp": name}:
            return _mcp_name(name, part.get("server"), tools), part.get("args", {})
        case {"python": code}:
            return name_of_kind(PYTHON, tools), {CODE: code}
    return None


def _mcp_name(name: str, server: str | None, tools: Sequence[ToolSpec]) -> str:
    full_name = mcp_model_name(tools, name, server) or model_tool_name(tools, name, server)
    return full_name if any(tool.name == full_name for tool in tools) else name
