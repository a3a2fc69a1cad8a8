"""The tools of a request, and the normal form of tool_choice (docs/reference/api.md#tools)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from antiphon.domain.json import Json
from antiphon.domain.kinds import TOOL_KINDS
from antiphon.domain.kinds.apply_patch import ApplyPatch
from antiphon.domain.kinds.code_interpreter import PYTHON, CodeInterpreter
from antiphon.domain.kinds.computer import Computer, ComputerUse, ComputerUsePreview
from antiphon.domain.kinds.custom import CustomTool
from antiphon.domain.kinds.file_search import FILE_SEARCH, FileSearch
from antiphon.domain.kinds.function import FunctionTool
from antiphon.domain.kinds.image_generation import IMAGE_GENERATION, ImageGeneration
from antiphon.domain.kinds.local_shell import LocalShell
from antiphon.domain.kinds.mcp import MCP_KINDS, McpTool
from antiphon.domain.kinds.multi_agent import MULTI_AGENT, MultiAgent
from antiphon.domain.kinds.namespace import NamespaceTool
from antiphon.domain.kinds.program import ProgrammaticToolCalling
from antiphon.domain.kinds.shell import CONTAINER, Shell
from antiphon.domain.kinds.tool_search import ToolSearch
from antiphon.domain.kinds.web_search import (
    WEB_KINDS,
    AnyWebSearch,
    WebSearch,
    WebSearch2025,
    WebSearchPreview,
    WebSearchPreview2025,
)
from antiphon.domain.vocabulary.tool import (
    FUNCTIONS,
    NAMED_KINDS,
    NAMESPACE_MARK,
    REDACTED,
    Tool,
    ToolSpec,
    flat_name,
    parse_arguments,
    qualified_name,
)


class UnknownTool(Struct, frozen=True, kw_only=True):
    """A tool of an unknown type: echoed unchanged, but not offered to the model
    (docs/decisions/0018)."""

    raw: Json


TOOL_TYPES: Mapping[str, type[Tool]] = {name: kind.tool for name, kind in TOOL_KINDS.items()}
"""The tool types by their `type` in JSON."""

if TYPE_CHECKING:
    AnyTool = Tool
else:
    AnyTool = reduce(or_, TOOL_TYPES.values())
"""Any tool of a known type, as msgspec decodes it."""

RequestTool = AnyTool | UnknownTool

WEB_SEARCHES: Mapping[str, type[Tool]] = {
    name: kind for name, kind in TOOL_TYPES.items() if issubclass(kind, AnyWebSearch)
}
"""The tool types that search the web."""


TURNED_ON_BY: Mapping[str, str] = {
    "code_interpreter": "code_interpreter",
    "image_generation": "images.url",
    "programmatic_tool_calling": "programs",
    "web_search": "web_search",
}
"""The settings with which operators turn hosted tools on, by the type of the tool or `stand_in` of
its kind."""


def not_run_here(tool_type: str) -> str:
    """Return why a tool of this type is not run, and what its operator can do about it.

    >>> not_run_here("web_search_preview")
    "this server does not run the tool 'web_search_preview' (the setting web_search turns it on)"
    """
    kind = TOOL_KINDS.get(tool_type)
    setting = TURNED_ON_BY.get((kind.stand_in if kind is not None else None) or tool_type)
    advice = f" (the setting {setting} turns it on)" if setting else ""
    return f"this server does not run the tool {tool_type!r}{advice}"


class ToolChoice(Struct, frozen=True, kw_only=True):
    """The normal form of tool_choice; `names` restricts the tools, None allows all of them."""

    mode: Literal["none", "auto", "required"] = "auto"
    names: frozenset[str] | None = None

    def allows(self, name: str) -> bool:
        return self.mode != "none" and (self.names is None or name in self.names)


def redact_secrets(tool: Json) -> Json:
    """Return a tool's JSON without its secrets, to show or store.

    >>> tool = {"type": "mcp", "server_label": "s", "authorization": "x", "headers": {"k": "v"}}
    >>> redact_secrets(tool)
    {'type': 'mcp', 'server_label': 's', 'headers': {'k': '<redacted>'}}
    """
    kind = TOOL_KINDS.get(str(tool.get("type")))
    return tool if kind is None or kind.echo.redact is None else kind.echo.redact(tool)
