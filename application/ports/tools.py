"""Tool servers, and sessions with them."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from antiphon.domain.json import Json
from antiphon.domain.tools import McpTool


class ToolResult(Struct, frozen=True, kw_only=True):
    """What a call gave: its output, or the error that came in its place
    (docs/reference/api.md#mcp-servers)."""

    output: str | None = None
    error: Json | None = None


class ToolSession(Protocol):
    """One server's tools, for one response. Nothing is sent before the first use.

    Several calls may run at the same time; cancelling one affects no other. Each use ends within a
    time that the operator set.
    """

    async def tools(self) -> tuple[Json, ...]:
        """Return the tools as `mcp_list_tools` shows them; they are the same in every session.

        They are JSON. No two have one name, and each `input_schema` is that of an object.
        Raises: ToolServerError.
        """

    async def call(self, name: str, arguments: Json) -> ToolResult:
        """Call a tool, once: what went wrong is a result too, and nothing is tried again.

        The tools need not have been listed before. The result has either an output or an error,
        whatever the name and the arguments are; an error is an object with a `type`.
        """

    async def aclose(self) -> None:
        """End the session, used or not. Other sessions go on."""


class ToolServer(Protocol):
    """Tools that the operator set up: requests name them by `label`, without an address.

    It lives as long as this server. How long a use may take, and how much it may give, is limited
    by whoever calls it; an exception that is no ToolServerError is logged, and a failed use.
    """

    label: str
    """1 to 64 letters, digits, underscores and hyphens."""

    def session(self) -> ToolSession:
        """Return a session for one response; there may be many at the same time."""

    async def aclose(self) -> None:
        """Leave nothing running, used or not. All sessions are closed."""


class ToolServers(Protocol):
    """The servers whose tools this server calls."""

    def resolve(self, server: McpTool, path: str) -> McpTool | None:
        """Return the server as it is to be called, with all that the operator says of it; None for
        one that cannot be called here, which is without effect.

        Raises: RequestError for a field below `path` that no such server may have.
        """

    def session(self, server: McpTool) -> ToolSession:
        """Return a session with a server that was resolved."""

    async def aclose(self) -> None:
        """Leave nothing running. All sessions are closed."""
