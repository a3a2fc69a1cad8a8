"""The operator's own servers by their labels, whatever runs them: only what he allows is listed and
called, lists are kept for a while, and what he keeps secret is in no error.

A list is kept for the whole server, since all requests reach the same one with the same rights.
Servers that requests name have no such list: their credentials differ, and a conversation has its
own (docs/decisions/0040).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from antiphon.application.ports import Json, ToolResult, ToolServer, ToolServers, ToolSession
from antiphon.domain import mcp
from antiphon.domain.errors import ToolServerError
from antiphon.domain.tools import McpTool

SHORTEST_SECRET = 4
"""Shorter values say nothing, and stand in every other sentence."""


class ConfiguredServer(Struct, frozen=True, kw_only=True):
    """A server with its terms; `secrets` are values that no error may show."""

    terms: mcp.McpServerPolicy
    server: ToolServer
    secrets: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Own({self.terms.label!r})"


class ConfiguredServers(ToolServers):
    """`others` are the servers that requests name by their address; None: there are none."""

    def __init__(
        self,
        own: Sequence[ConfiguredServer],
        others: ToolServers | None,
        *,
        keep_lists_s: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._own = {each.terms.label: each for each in own}
        self._lists = _Lists(keep_lists_s, now)
        self._others = others

    @property
    def labels(self) -> Sequence[str]:
        return list(self._own)

    def resolve(self, server: McpTool, path: str) -> McpTool | None:
        own = self._own.get(server.server_label)
        if own is not None:
            return mcp.apply_policy(own.terms, server, path)
        return self._others.resolve(server, path) if self._others is not None else None

    def session(self, server: McpTool) -> ToolSession:
        own = self._own.get(server.server_label)
        if own is not None:
            return _OwnSession(own, self._lists)
        assert self._others is not None, "it would not have been resolved"
        return self._others.session(server)

    async def aclose(self) -> None:
        every: list[ToolServer | ToolServers] = [own.server for own in self._own.values()]
        every += [self._others] if self._others is not None else []
        await asyncio.gather(*(each.aclose() for each in every))


class _Lists:
    """What servers listed not long ago, by label. What failed is asked for again."""

    def __init__(self, keep_s: float, now: Callable[[], float]) -> None:
        self._keep_s = keep_s
        self._now = now
        self._kept: dict[str, tuple[float, tuple[Json, ...]]] = {}

    def get(self, label: str) -> tuple[Json, ...] | None:
        listed_at, tools = self._kept.get(label, (float("-inf"), ()))
        return tools if self._now() - listed_at < self._keep_s else None

    def keep(self, label: str, tools: tuple[Json, ...]) -> None:
        self._kept[label] = (self._now(), tools)


class _OwnSession(ToolSession):
    def __init__(self, own: ConfiguredServer, lists: _Lists) -> None:
        self._own = own
        self._terms = own.terms
        self._lists = lists
        self._inner: ToolSession | None = None

    async def tools(self) -> tuple[Json, ...]:
        tools = self._lists.get(self._terms.label)
        if tools is None:
            tools = await self._listed()
            self._lists.keep(self._terms.label, tools)
        return tools

    async def call(self, name: str, arguments: Json) -> ToolResult:
        if not self._terms.allow(name):  # also one that a client says was listed, or approves of
            why = f"The server {self._terms.label!r} has no tool {name!r}."
            return ToolResult(error={"type": "mcp_tool_execution_error", "content": why})
        result = await self._session().call(name, arguments)
        if result.error is None:
            return result
        return ToolResult(error=self._without_secrets(result.error))

    async def aclose(self) -> None:
        if self._inner is not None:
            await self._inner.aclose()

    async def _listed(self) -> tuple[Json, ...]:
        try:
            found = await self._session().tools()
        except ToolServerError as error:
            raise ToolServerError(self._without_secrets(str(error))) from None
        return tuple(tool for tool in found if self._terms.allow(tool.get("name")))

    def _session(self) -> ToolSession:
        if self._inner is None:
            self._inner = self._own.server.session()
        return self._inner

    def _without_secrets(self, value: Any) -> Any:
        return redact(self._own.secrets, value)


def redact(secrets: Sequence[str], value: Any) -> Any:
    """Return any JSON with the secrets in its texts made unreadable.

    >>> redact(["s3cret"], {"content": ["no such key: s3cret"]})
    {'content': ['no such key: <redacted>']}
    """
    match value:
        case str():
            for secret in secrets:
                if len(secret) >= SHORTEST_SECRET:
                    value = value.replace(secret, mcp.REDACTED)
            return value
        case list() | tuple():
            return [redact(secrets, each) for each in value]
        case dict():
            return {name: redact(secrets, each) for name, each in value.items()}
        case _:
            return value
