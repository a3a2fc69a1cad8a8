"""The tools of a request, and the normal form of tool_choice (docs/reference/api.md#tools)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from antiphon.domain.json import Json
from antiphon.domain.kinds import TOOL_KINDS
from antiphon.domain.kinds.apply_patch import ApplyPatch as ApplyPatch
from antiphon.domain.kinds.code_interpreter import PYTHON as PYTHON
from antiphon.domain.kinds.code_interpreter import CodeInterpreter as CodeInterpreter
from antiphon.domain.kinds.computer import Computer as Computer
from antiphon.domain.kinds.computer import ComputerUse as ComputerUse
from antiphon.domain.kinds.computer import ComputerUsePreview as ComputerUsePreview
from antiphon.domain.kinds.custom import CustomTool as CustomTool
from antiphon.domain.kinds.file_search import FILE_SEARCH as FILE_SEARCH
from antiphon.domain.kinds.file_search import FileSearch as FileSearch
from antiphon.domain.kinds.function import FunctionTool as FunctionTool
from antiphon.domain.kinds.image_generation import ImageGeneration as ImageGeneration
from antiphon.domain.kinds.local_shell import LocalShell as LocalShell
from antiphon.domain.kinds.mcp import MCP_KINDS as MCP_KINDS
from antiphon.domain.kinds.mcp import McpTool as McpTool
from antiphon.domain.kinds.namespace import NamespaceTool as NamespaceTool
from antiphon.domain.kinds.program import ProgrammaticToolCalling as ProgrammaticToolCalling
from antiphon.domain.kinds.shell import CONTAINER as CONTAINER
from antiphon.domain.kinds.shell import Shell as Shell
from antiphon.domain.kinds.tool_search import ToolSearch as ToolSearch
from antiphon.domain.kinds.web_search import WEB_KINDS as WEB_KINDS
from antiphon.domain.kinds.web_search import AnyWebSearch as AnyWebSearch
from antiphon.domain.kinds.web_search import WebSearch as WebSearch
from antiphon.domain.kinds.web_search import WebSearch2025 as WebSearch2025
from antiphon.domain.kinds.web_search import WebSearchPreview as WebSearchPreview
from antiphon.domain.kinds.web_search import WebSearchPreview2025 as WebSearchPreview2025
from antiphon.domain.vocabulary.tool import FUNCTIONS as FUNCTIONS
from antiphon.domain.vocabulary.tool import NAMED_KINDS as NAMED_KINDS
from antiphon.domain.vocabulary.tool import NAMESPACE_MARK as NAMESPACE_MARK
from antiphon.domain.vocabulary.tool import REDACTED as REDACTED
from antiphon.domain.vocabulary.tool import Tool as Tool
from antiphon.domain.vocabulary.tool import ToolSpec as ToolSpec
from antiphon.domain.vocabulary.tool import flat_name as flat_name
from antiphon.domain.vocabulary.tool import parse_arguments as parse_arguments
from antiphon.domain.vocabulary.tool import qualified_name as qualified_name


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
    return tool if kind is None or kind.redact is None else kind.redact(tool)
