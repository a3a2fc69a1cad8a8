"""The tools of a request, its MCP servers, and its choice of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import UNSET, Raw, Struct

from antiphon.domain.errors import RequestError, missing_parameter
from antiphon.domain.json import Json
from antiphon.domain.kinds.code_interpreter import CodeInterpreter
from antiphon.domain.kinds.function import FunctionTool
from antiphon.domain.kinds.mcp import McpTool
from antiphon.domain.requests.decoding import check_values, read
from antiphon.domain.tools import TOOL_TYPES, WebSearch
from antiphon.domain.vocabulary.tool import Tool
from antiphon.entrypoints.http.doors.messages.request import (
    CodeTool,
    CountedMessages,
    McpToolset,
    MessagesTool,
    SearchTool,
    SentMcpServer,
    ToolSelection,
)
from antiphon.entrypoints.http.doors.places import SentPlace
from antiphon.entrypoints.http.doors.server_tools import check_server_tool

API = "the Messages API"

_CLIENT = {".parameters": ".input_schema"}
_SEARCH = {".filters": ""}
_MCP = {
    ".server_label": ".name",
    ".server_url": ".url",
    ".authorization": ".authorization_token",
    ".allowed_tools": ".tool_configuration.allowed_tools",
}

_SEARCH_TYPE = re.compile(r"web_search_\d+")
_CODE_TYPE = re.compile(r"code_execution_\d+")
_CHOICES: Mapping[str, str] = {"auto": "auto", "any": "required", "none": "none"}


class _Head(Struct, frozen=True):
    type: str | None = None


_decode_head = msgspec.json.Decoder(_Head).decode
_decode_client = msgspec.json.Decoder(MessagesTool).decode
_decode_search = msgspec.json.Decoder(SearchTool).decode
_decode_code = msgspec.json.Decoder(CodeTool).decode
_decode_toolset = msgspec.json.Decoder(McpToolset).decode
_encode = msgspec.json.Encoder().encode


PlacedTool = tuple[FunctionTool, SentPlace]


class ReadTools:
    """The tools that a request offers, and the place of each."""

    def __init__(self, sent: CountedMessages) -> None:
        """Raises: RequestError."""
        self.raw: list[Raw] = []
        self.places: list[SentPlace] = []
        self.ignored: list[str] = []
        self.deferred: dict[str, PlacedTool] = {}
        """Those that the model is given once a message names them."""
        self._kinds: dict[str, str] = {}
        """The types of the tools that this server runs, by the names that this API has for them."""
        self._toolsets: dict[str, tuple[McpToolset, str]] = {}
        for index, raw in enumerate(sent.tools or ()):
            self._read(raw, f"tools[{index}]")
        servers = sent.mcp_servers or ()
        for index, server in enumerate(servers):
            self._add_server(server, f"mcp_servers[{index}]")
        names = {server.name for server in servers}
        for name, (_, path) in self._toolsets.items():
            if name not in names:
                raise RequestError(
                    f"Invalid '{path}.mcp_server_name': 'mcp_servers' has none of the name "
                    f"{name[:100]!r}.",
                    param=f"{path}.mcp_server_name",
                    code="invalid_value",
                )

    def choice_of(self, choice: ToolSelection | None) -> str | Json | None:
        """Return the choice of tools as Responses has it. Raises: RequestError."""
        if choice is None:
            return None
        if choice.type != "tool":
            return _CHOICES[choice.type]
        if choice.name is None:
            raise missing_parameter("tool_choice.name")
        if (kind := self._kinds.get(choice.name)) is not None:
            return {"type": kind}
        return {"type": "function", "name": choice.name}

    def _read(self, raw: Raw, path: str) -> None:
        check_values(raw, path)
        kind = read(_decode_head, raw, path).type
        if kind in (None, "custom"):
            tool: MessagesTool = read(_decode_client, raw, path)
            place = SentPlace(path, _CLIENT)
            if tool.defer_loading:
                self.deferred[tool.name] = _function_of(tool), place
            else:
                self._add(_function_of(tool), place)
        elif kind == "mcp_toolset":
            toolset: McpToolset = read(_decode_toolset, raw, path)
            self._toolsets[toolset.mcp_server_name] = toolset, path
        elif _SEARCH_TYPE.fullmatch(kind):
            search: SearchTool = read(_decode_search, raw, path)
            if search.max_uses is not None:
                self.ignored.append(f"{path}.max_uses")
            self._kinds[search.name] = "web_search"
            self._add(_search_of(search), SentPlace(path, _SEARCH))
        elif _CODE_TYPE.fullmatch(kind):
            code: CodeTool = read(_decode_code, raw, path)
            self._kinds[code.name] = "code_interpreter"
            self._add(CodeInterpreter(container={"type": "auto"}), SentPlace(path))
        else:
            if kind not in TOOL_TYPES:
                raise _unknown(kind, path)
            check_server_tool(raw, kind, path, api=API)
            self.raw.append(raw)
            self.places.append(SentPlace(path))

    def _add_server(self, server: SentMcpServer, path: str) -> None:
        choice = server.tool_configuration
        if choice is not None and choice.enabled is False:
            return
        allowed: Sequence[str] | None = None if choice is None else choice.allowed_tools
        toolset = self._toolsets.get(server.name)
        if toolset is not None:
            allowed = _allowed_by(*toolset)
        tool = McpTool(
            server_label=server.name,
            server_url=server.url,
            authorization=server.authorization_token or UNSET,
            allowed_tools=UNSET if allowed is None else tuple(allowed),
            require_approval="never",
        )
        self._add(tool, SentPlace(path, _MCP))

    def _add(self, tool: Tool, place: SentPlace) -> None:
        self.raw.append(Raw(_encode(tool)))
        self.places.append(place)


def read_definition(raw: Raw, path: str) -> PlacedTool:
    """Return a tool that the client runs, as a message defines it. Raises: RequestError."""
    check_values(raw, path)
    kind = read(_decode_head, raw, path).type
    if kind not in (None, "custom"):
        raise RequestError(
            f"Invalid '{path}.type': a message can only define tools that the client runs.",
            param=f"{path}.type",
            code="invalid_value",
        )
    return _function_of(read(_decode_client, raw, path)), SentPlace(path, _CLIENT)


def _function_of(tool: MessagesTool) -> FunctionTool:
    return FunctionTool(
        name=tool.name,
        description=tool.description,
        parameters=tool.input_schema,
        strict=tool.strict is True,  # unlike in Responses, it is not if nothing says so
    )


def _search_of(tool: SearchTool) -> WebSearch:
    filters: Json = {
        name: list(domains)
        for name in ("allowed_domains", "blocked_domains")
        if (domains := getattr(tool, name))
    }
    return WebSearch(filters=filters or UNSET, user_location=tool.user_location)


def _allowed_by(toolset: McpToolset, path: str) -> Sequence[str] | None:
    """Return the names of the tools that a toolset allows, None if it allows all."""
    configs = toolset.configs or {}
    default = toolset.default_config
    if default is not None and default.enabled is False:
        return [name for name, switch in configs.items() if switch.enabled]
    for name, switch in configs.items():
        if switch.enabled is False:
            raise RequestError(
                f"Invalid '{path}.configs': the tool {name[:100]!r} cannot be left out alone. Set "
                "'default_config.enabled' to false, and enable the others.",
                param=f"{path}.configs",
                code="invalid_value",
            )
    return None


def _unknown(kind: str, path: str) -> RequestError:
    return RequestError(
        f"Invalid '{path}.type': this server has no tool of the type {kind[:100]!r}. It has "
        "'web_search_20250305' and 'code_execution_20250825', also of later dates, and "
        "'mcp_toolset'. A tool that the client runs needs a 'name', a 'description' and an "
        "'input_schema', and no type.",
        param=f"{path}.type",
        code="invalid_value",
    )


def calls_once(choice: ToolSelection | None) -> bool:
    return choice is not None and choice.disable_parallel_tool_use is True
