"""What in a request stands for something else, because the operator said so: labels of MCP servers
for tools of this server, and an operator's own MCP server for a hosted tool.

Both are one substitution, made where tools and tool_choice are read, before anybody asks what can
be run. What the client wrote is what the Response shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import UNSET, Struct, structs

from antiphon.domain import tools as t
from antiphon.domain.errors import RequestError
from antiphon.domain.json import Json

LABELS: Mapping[str, t.AnyTool] = {
    "code_interpreter": t.CodeInterpreter(container={"type": "auto"}),
    "container": t.Shell(environment={"type": "container_auto"}),
    "web_search_preview": t.WebSearchPreview(),
}
"""Tools by the labels that clients of vLLM know them by (GPT_OSS_SYSTEM_TOOL_MCP_LABELS)."""

HOSTED: Mapping[str, tuple[type[t.Tool], ...]] = {
    "web_search": (t.WebSearch, t.WebSearch2025, t.WebSearchPreview, t.WebSearchPreview2025),
    "code_interpreter": (t.CodeInterpreter,),
    "file_search": (t.FileSearch,),
    "image_generation": (t.ImageGeneration,),
}
"""Types of tools, by the name of the newest, that an MCP server may stand in for."""


class ToolSubstitutions(Struct, frozen=True, kw_only=True):
    """`labels` are those of LABELS that count, `servers` the labels of the operator's servers, by
    the name of HOSTED that they stand in for.
    """

    labels: frozenset[str] = frozenset()
    servers: Mapping[str, str] = {}

    def tool(self, asked: t.RequestTool, path: str) -> t.RequestTool:
        """Return the tool that `asked` stands for, itself if it stands for none.

        Raises: RequestError where it asks for approval, which hosted tools cannot wait for.
        """
        tool = asked
        if isinstance(tool, t.McpTool) and tool.server_label in self.labels:
            if tool.require_approval not in (UNSET, None, "never"):
                raise RequestError(
                    f"{tool.server_label!r} is a tool of this server here, whose calls wait for "
                    "nobody's approval.",
                    param=f"{path}.require_approval",
                    code="invalid_value",
                )
            tool = LABELS[tool.server_label]
        label = self._servers_by_type.get(type(tool))
        return tool if label is None else t.McpTool(server_label=label)

    def choice(self, value: str | Json | None) -> str | Json | None:
        """Return a tool_choice that names tools as `tool` returns them."""
        if not isinstance(value, dict):
            return value
        if value.get("type") == "allowed_tools" and isinstance(value.get("tools"), list):
            tools = [self.choice(each) for each in value["tools"]]
            return {**value, "tools": tools}
        return self._chosen(value)

    def _chosen(self, value: Json) -> Json:
        kind, label = value.get("type"), value.get("server_label")
        if kind == "mcp" and isinstance(label, str) and label in self.labels:
            kind = _type_of(type(LABELS[label]))
            value = {"type": kind}
        kinds = {_type_of(each): label for each, label in self._servers_by_type.items()}
        if isinstance(kind, str) and kind in kinds:
            return {"type": "mcp", "server_label": kinds[kind]}
        return value

    @property
    def _servers_by_type(self) -> Mapping[type[Any], str]:
        return {kind: label for name, label in self.servers.items() for kind in HOSTED[name]}


NO_SUBSTITUTIONS = ToolSubstitutions()


def unused_fields(asked: t.RequestTool, path: str) -> Iterator[str]:
    """Yield the paths of what a tool says that stands for another, which hears nothing of it."""
    if isinstance(asked, t.UnknownTool):
        return
    for field in structs.fields(asked):
        value = getattr(asked, field.name)
        heeded = field.name in ("server_label", "require_approval")
        if not heeded and value not in (UNSET, None, field.default):
            yield f"{path}.{field.encode_name}"


def _type_of(kind: type[Any]) -> str:
    return str(kind.__struct_config__.tag)
