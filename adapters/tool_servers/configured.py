"""The tool servers of the operator's configuration, by their labels.

Only tools that the operator allows are listed and called, tool lists are cached, and secrets are
redacted from errors. All requests share one cached list, because they all reach the server with the
same credentials. Lists are not cached where requests bring the credentials, as they do for servers
that they name: a conversation keeps its own list (docs/decisions/0040).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from antiphon.application.ports import Json, ToolResult, ToolServer, ToolServers, ToolSession
from antiphon.domain.errors import ToolServerError
from antiphon.domain.offers import mcp
from antiphon.domain.tools import REDACTED, McpTool

MIN_SECRET_LENGTH = 4
"""Shorter values reveal nothing, and they appear in ordinary text."""


class ConfiguredServer(Struct, frozen=True, kw_only=True):
    """A server with its policy in `terms`; errors must not contain any of `secrets`, nor of those
    that `current_secrets` returns. `open_with` opens a session with a token of the request's; it is
    None if the token is the operator's."""

    terms: mcp.McpServerPolicy
    server: ToolServer
    open_with: Callable[[str], ToolSession] | None = None
    secrets: tuple[str, ...] = ()
    current_secrets: Callable[[], Sequence[str]] = tuple

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
        self._listings = _ListingCache(keep_lists_s, now)
        for label, configured in self._servers.items():
            configured.server.watch(partial(self._listings.drop, label))
        self._others = others

    @property
    def labels(self) -> Sequence[str]:
        return list(self._servers)

    def wants_token(self, label: str) -> bool:
        """Whether requests bring the token for this server."""
        return self._servers[label].open_with is not None

    def resolve(self, server: McpTool, path: str) -> McpTool | None:
        configured = self._servers.get(server.server_label)
        if configured is not None:
            return mcp.apply_policy(configured.terms, server, path)
        return self._others.resolve(server, path) if self._others is not None else None

    def session(self, server: McpTool) -> ToolSession:
        configured = self._servers.get(server.server_label)
        if configured is not None:
            token = server.authorization if configured.open_with is not None else None
            return _ConfiguredSession(configured, self._listings, token or None)
        assert self._others is not None, "such a server does not resolve"
        return self._others.session(server)

    async def aclose(self) -> None:
        servers: list[ToolServer | ToolServers] = [each.server for each in self._servers.values()]
        servers += [self._others] if self._others is not None else []
        await asyncio.gather(*(server.aclose() for server in servers))


class _ListingCache:
    """The listings of servers, by label, for `ttl_s` seconds, or until a server says that its tools
    changed. Failures are not cached."""

    def __init__(self, ttl_s: float, now: Callable[[], float]) -> None:
        self._ttl_s = ttl_s
        self._now = now
        self._entries: dict[str, tuple[float, mcp.Listing]] = {}
        self._changes: Counter[str] = Counter()

    def get(self, label: str) -> mcp.Listing | None:
        listed_at, listing = self._entries.get(label, (float("-inf"), mcp.NO_LISTING))
        return listing if self._now() - listed_at < self._ttl_s else None

    def drop(self, label: str) -> None:
        self._changes[label] += 1
        self._entries.pop(label, None)

    async def read(self, label: str, ask: Callable[[], Awaitable[mcp.Listing]]) -> mcp.Listing:
        """Return what is cached, or else ask. Raises: what `ask` raises."""
        if (cached := self.get(label)) is not None:
            return cached
        changes = self._changes[label]
        listing = await ask()
        if self._changes[label] == changes:  # else it may be what was before the change
            self._entries[label] = (self._now(), listing)
        return listing


class _ConfiguredSession(ToolSession):
    def __init__(
        self, configured: ConfiguredServer, listings: _ListingCache, token: str | None
    ) -> None:
        self._configured = configured
        self._token = token
        self._policy = configured.terms
        self._listings = listings
        self._session: ToolSession | None = None
        self._instructions = ""

    async def tools(self) -> tuple[Json, ...]:
        listing = (
            await self._listings.read(self._policy.label, self._ask)
            if self._token is None
            else await self._ask()
        )
        self._instructions = listing.instructions
        return listing.tools

    async def instructions(self) -> str:
        # They belong to the list, which is read first and may have changed since.
        return self._instructions

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

    async def _ask(self) -> mcp.Listing:
        session = self._open_session()
        try:
            tools = await session.tools()
            instructions = await session.instructions()
        except ToolServerError as error:
            raise ToolServerError(self._redact(str(error))) from None
        allowed = tuple(tool for tool in tools if self._policy.allow(tool.get("name")))
        return mcp.Listing(allowed, self._redact(instructions))

    def _open_session(self) -> ToolSession:
        if self._session is None:
            open_with = self._configured.open_with
            self._session = (
                self._configured.server.session()
                if open_with is None or self._token is None
                else open_with(self._token)
            )
        return self._session

    def _redact(self, value: Any) -> Any:
        configured = self._configured
        tokens = () if self._token is None else (self._token,)
        return redact([*configured.secrets, *configured.current_secrets(), *tokens], value)


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
