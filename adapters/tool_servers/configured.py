"""The tool servers of the operator's configuration, by their labels.

Only tools that the operator allows are listed and called, tool lists are cached, and secrets are
redacted from errors. All requests share one cached list, because they all reach the server with the
same credentials. The lists of servers that requests name are not cached: their credentials differ,
and a conversation keeps its own list (docs/decisions/0040).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from antiphon.application.ports import Json, ToolResult, ToolServer, ToolServers, ToolSession
from antiphon.domain.errors import ToolServerError
from antiphon.domain.offers import mcp
from antiphon.domain.tools import REDACTED, McpTool

MIN_SECRET_LENGTH = 4
"""Shorter values reveal nothing, and they appear in ordinary text."""


class ConfiguredServer(Struct, frozen=True, kw_only=True):
    """A server with its policy in `terms`; errors must not contain any of `secrets`."""

    terms: mcp.McpServerPolicy
    server: ToolServer
    secrets: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"ConfiguredServer({self.terms.label!r})"


class ConfiguredServers(ToolServers):
    """The configured servers, and `others`: the servers that requests name by URL, if allowed."""

    def __init__(
        self,
        servers: Sequence[ConfiguredServer],
        others: ToolServers | None,
        *,
        keep_lists_s: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._servers = {server.terms.label: server for server in servers}
        self._tool_lists = _ToolListCache(keep_lists_s, now)
        self._others = others

    @property
    def labels(self) -> Sequence[str]:
        return list(self._servers)

    def resolve(self, server: McpTool, path: str) -> McpTool | None:
        configured = self._servers.get(server.server_label)
        if configured is not None:
            return mcp.apply_policy(configured.terms, server, path)
        return self._others.resolve(server, path) if self._others is not None else None

    def session(self, server: McpTool) -> ToolSession:
        configured = self._servers.get(server.server_label)
        if configured is not None:
            return _ConfiguredSession(configured, self._tool_lists)
        assert self._others is not None, "such a server does not resolve"
        return self._others.session(server)

    async def aclose(self) -> None:
        servers: list[ToolServer | ToolServers] = [each.server for each in self._servers.values()]
        servers += [self._others] if self._others is not None else []
        await asyncio.gather(*(server.aclose() for server in servers))


class _ToolListCache:
    """The tool lists of servers, by label, for `ttl_s` seconds. Failures are not cached."""

    def __init__(self, ttl_s: float, now: Callable[[], float]) -> None:
        self._ttl_s = ttl_s
        self._now = now
        self._entries: dict[str, tuple[float, tuple[Json, ...]]] = {}

    def get(self, label: str) -> tuple[Json, ...] | None:
        listed_at, tools = self._entries.get(label, (float("-inf"), ()))
        return tools if self._now() - listed_at < self._ttl_s else None

    def put(self, label: str, tools: tuple[Json, ...]) -> None:
        self._entries[label] = (self._now(), tools)


class _ConfiguredSession(ToolSession):
    def __init__(self, configured: ConfiguredServer, tool_lists: _ToolListCache) -> None:
        self._configured = configured
        self._policy = configured.terms
        self._tool_lists = tool_lists
        self._session: ToolSession | None = None

    async def tools(self) -> tuple[Json, ...]:
        tools = self._tool_lists.get(self._policy.label)
        if tools is None:
            tools = await self._list_tools()
            self._tool_lists.put(self._policy.label, tools)
        return tools

    async def call(self, name: str, arguments: Json) -> ToolResult:
        # A client can claim that a tool was listed, or approve its call.
        if not self._policy.allow(name):
            message = f"The server {self._policy.label!r} has no tool {name!r}."
            return ToolResult(error={"type": "mcp_tool_execution_error", "content": message})
        result = await self._open_session().call(name, arguments)
        if result.error is None:
            return result
        return ToolResult(error=self._redact(result.error))

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.aclose()

    async def _list_tools(self) -> tuple[Json, ...]:
        try:
            tools = await self._open_session().tools()
        except ToolServerError as error:
            raise ToolServerError(self._redact(str(error))) from None
        return tuple(tool for tool in tools if self._policy.allow(tool.get("name")))

    def _open_session(self) -> ToolSession:
        if self._session is None:
            self._session = self._configured.server.session()
        return self._session

    def _redact(self, value: Any) -> Any:
        return redact(self._configured.secrets, value)


def redact(secrets: Sequence[str], value: Any) -> Any:
    """Return a JSON value with the secrets in its strings replaced.

    >>> redact(["s3cret"], {"content": ["no such key: s3cret"]})
    {'content': ['no such key: <redacted>']}
    """
    match value:
        case str():
            for secret in secrets:
                if len(secret) >= MIN_SECRET_LENGTH:
                    value = value.replace(secret, REDACTED)
            return value
        case list() | tuple():
            return [redact(secrets, each) for each in value]
        case dict():
            return {name: redact(secrets, each) for name, each in value.items()}
        case _:
            return value
