"""Tool servers, and sessions with them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from antiphon.domain.json import Json
from antiphon.domain.tools import McpTool


class ToolResult(Struct, frozen=True, kw_only=True):
    """The result of a call: its output or its error (docs/reference/api.md#mcp-servers)."""

    output: str | None = None
    error: Json | None = None


class ToolSession(Protocol):
    """One server's tools, for one response. It sends nothing before its first use.

    Several calls may run concurrently; cancelling one affects no other. Each method ends within a
    time that the operator sets.
    """

    @abstractmethod
    async def tools(self) -> tuple[Json, ...]:
        """Return the tools as `mcp_list_tools` shows them; they are the same in every session.

        They are JSON with unique names, and each `input_schema` describes an object. A null field
        counts as left out.
        Raises: ToolServerError.
        """

    async def instructions(self) -> str:
        """Return what models should know about all the tools that were listed before.

        Nothing by default. Models read its beginning together with the tools.
        Raises: ToolServerError.
        """
        return ""

    @abstractmethod
    async def call(self, name: str, arguments: Json) -> ToolResult:
        """Call a tool once, without retries. A failure is a result too.

        The tools need not have been listed before. The result has either an output or an error, for
        any name and arguments; an error is an object with a `type`.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """End the session, used or not. Other sessions continue."""


class ToolServer(Protocol):
    """The operator's own tools: requests name them by `label`, without an address.

    It lives as long as this server. Its caller limits the time of a call and the size of its
    result. An exception that is not a ToolServerError is logged and fails the call.
    """

    label: str
    """1 to 64 letters, digits, underscores and hyphens."""

    require_approval: str | Json = "never"
    """The calls that need an approval, whatever a request says: "always", "never" or rules by name
    (docs/reference/api.md#mcp-servers)."""

    @abstractmethod
    def session(self) -> ToolSession:
        """Return a session for one response; many may be open at the same time."""

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever the tools may have changed: they are then listed anew.

        It is set once, before any session. Does nothing by default.
        """

    async def aclose(self) -> None:
        """Stop everything that runs. Does nothing by default.

        All sessions are closed before; there may have been none.
        """
        return


class ToolServers(Protocol):
    """The MCP servers and ToolServers whose tools this server calls."""

    @property
    @abstractmethod
    def labels(self) -> Sequence[str]:
        """The labels that a request may name without a URL; every key may know them."""

    @abstractmethod
    def resolve(self, server: McpTool, path: str) -> McpTool | None:
        """Return the server with the operator's settings for it, or None if it cannot be called
        here and so has no effect.

        Raises: RequestError for a field below `path` that this kind of server may not have.
        """

    @abstractmethod
    def session(self, server: McpTool) -> ToolSession:
        """Return a session with a server that `resolve` returned."""

    @abstractmethod
    async def aclose(self) -> None:
        """Stop everything that runs. All sessions are closed before."""
