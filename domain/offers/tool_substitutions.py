"""Substitute tools of a request as the operator has configured.

MCP server labels can stand for this server's own tools, and an operator's MCP server can stand for
a hosted tool. Both substitutions happen when tools and tool_choice are read, before the server
decides what it can run. The Response shows what the client wrote.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import UNSET, Struct, structs

from antiphon.domain import tools as t
from antiphon.domain.errors import RequestError
from antiphon.domain.json import Json
from antiphon.domain.kinds import TOOL_KINDS

LABELS: Mapping[str, t.AnyTool] = {
    "code_interpreter": t.CodeInterpreter(container={"type": "auto"}),
    "container": t.Shell(environment={"type": "container_auto"}),
    "web_search_preview": t.WebSearchPreview(),
}
"""This server's tools by the MCP labels that vLLM uses for them
(GPT_OSS_SYSTEM_TOOL_MCP_LABELS)."""

HOSTED: Mapping[str, tuple[type[t.Tool], ...]] = {
    name: tuple(kind.tool for kind in TOOL_KINDS.values() if kind.stand_in == name)
    for name in sorted({kind.stand_in for kind in TOOL_KINDS.values() if kind.stand_in})
}
"""The tool types that an MCP server may replace, by the name of the newest type."""


class ToolSubstitutions(Struct, frozen=True, kw_only=True):
    """The configured substitutions.

    `labels` are the enabled keys of LABELS. `servers` maps a key of HOSTED to the label of the
    operator's MCP server that replaces it.
    """

    labels: frozenset[str] = frozenset()
    servers: Mapping[str, str] = {}

    def tool(self, tool: t.RequestTool, path: str) -> t.RequestTool:
        """Return the substitute for a request's tool, or the tool itself.

        Raises: RequestError if the tool requires approval, which hosted tools cannot wait for.
        """
        if isinstance(tool, t.McpTool) and tool.server_label in self.labels:
            if tool.require_approval not in (UNSET, None, "never"):
                raise RequestError(
                    f"{tool.server_label!r} is a tool of this server, whose calls do not wait for "
                    "approval.",
                    param=f"{path}.require_approval",
                    code="invalid_value",
                )
            tool = LABELS[tool.server_label]
        label = self._servers_by_type.get(type(tool))
        return tool if label is None else t.McpTool(server_label=label)

    def choice(self, value: str | Json | None) -> str | Json | None:
        """Return the tool_choice with the substituted tools."""
        if not isinstance(value, dict):
            return value
        if value.get("type") == "allowed_tools" and isinstance(value.get("tools"), list):
            tools = [self.choice(each) for each in value["tools"]]
            return {**value, "tools": tools}
        return self._substitute_choice(value)

    def _substitute_choice(self, value: Json) -> Json:
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


def unused_fields(original: t.RequestTool, path: str) -> Iterator[str]:
    """Yield the paths of a replaced tool's fields, which have no effect on its substitute."""
    if isinstance(original, t.UnknownTool):
        return
    for field in structs.fields(original):
        value = getattr(original, field.name)
        is_used = field.name in ("server_label", "require_approval")
        if not is_used and value not in (UNSET, None, field.default):
            yield f"{path}.{field.encode_name}"


def _type_of(kind: type[Any]) -> str:
    return str(kind.__struct_config__.tag)
