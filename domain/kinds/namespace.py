"""Namespaces: groups of functions and custom tools whose calls carry the group's name."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from antiphon.domain.bounds import MAX_MEMBERS, Text
from antiphon.domain.kinds.custom import CustomTool, custom_spec
from antiphon.domain.kinds.function import FunctionTool, function_spec
from antiphon.domain.vocabulary.kind import AS_SENT, Kind, ToolKind
from antiphon.domain.vocabulary.tool import Tool, ToolName, ToolSpec


class NamespaceTool(Tool, frozen=True, kw_only=True, tag="namespace"):
    """A group of functions whose calls carry the group's name."""

    name: ToolName
    description: Text | None = None
    tools: Annotated[
        tuple[FunctionTool | CustomTool, ...], Meta(min_length=1, max_length=MAX_MEMBERS)
    ]


def _specs(tool: NamespaceTool, path: str) -> tuple[ToolSpec, ...]:
    return tuple(
        function_spec(inner, f"{path}.tools[{position}]", tool.name)
        if isinstance(inner, FunctionTool)
        else custom_spec(inner, f"{path}.tools[{position}]", tool.name)
        for position, inner in enumerate(tool.tools)
    )


TOOL = ToolKind(
    tool=NamespaceTool,
    client_specs=_specs,
    server_specs=None,
    chosen=(),
    stand_in=None,
    echo=AS_SENT,
)

KIND = Kind(name="namespace", items=(), tools=(TOOL,), calls=())
