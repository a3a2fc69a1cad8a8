"""Servers that the operator wrote, in this process: whatever they do, a use of them ends in time,
gives no more than it may, and fails as any other server's does.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from antiphon.adapters.tool_servers.mcp import timeout_error
from antiphon.application.ports import Json, ToolResult, ToolServer, ToolSession
from antiphon.domain.errors import ToolServerError

logger = logging.getLogger("antiphon.tools")


class LimitedServer(ToolServer):
    """`server` within `timeout_s` seconds a use and `max_bytes` of output a call."""

    def __init__(self, server: ToolServer, label: str, *, timeout_s: float, max_bytes: int) -> None:
        self.label = label
        self._server = server
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes

    def session(self) -> ToolSession:
        return _LimitedSession(
            self._server, self.label, timeout_s=self._timeout_s, max_bytes=self._max_bytes
        )

    async def aclose(self) -> None:
        await self._server.aclose()


class _LimitedSession(ToolSession):
    def __init__(self, server: ToolServer, label: str, *, timeout_s: float, max_bytes: int) -> None:
        self._server = server
        self._label = label
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._opened: ToolSession | None = None

    async def tools(self) -> tuple[Json, ...]:
        limit = asyncio.timeout(self._timeout_s)
        try:
            async with limit:
                return _read_again(await self._session().tools())
        except ToolServerError:
            raise
        except Exception:
            why = "It failed."
            if limit.expired():
                why = str(timeout_error(self._timeout_s))
            else:
                logger.exception("the tools of %r could not be listed", self._label)
            raise ToolServerError(
                f"Error retrieving tool list from MCP server: {self._label!r}. {why}"
            ) from None

    async def call(self, name: str, arguments: Json) -> ToolResult:
        limit = asyncio.timeout(self._timeout_s)
        try:
            async with limit:
                result = await self._session().call(name, arguments)
            return self._checked(result)
        except ToolServerError as error:
            return error_result(str(error))
        except Exception:
            if limit.expired():
                return ToolResult(error=timeout_error(self._timeout_s).error)
            logger.exception("the tool %r of %r failed", name, self._label)
            return error_result(f"The tool {name!r} failed.")

    def _checked(self, result: ToolResult) -> ToolResult:
        if not isinstance(result, ToolResult):
            message = f"a call gives a ToolResult, not {type(result).__name__}"
            raise TypeError(message)
        if len((result.output or "").encode()) > self._max_bytes:
            return error_result(f"The tool's output has more than {self._max_bytes} bytes.")
        msgspec.json.encode(result)  # what no event could hold is raised here
        return result

    async def aclose(self) -> None:
        if self._opened is None:
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._opened.aclose()
        except Exception:
            logger.exception("a session of %r could not be closed", self._label)

    def _session(self) -> ToolSession:
        if self._opened is None:
            self._opened = self._server.session()
        return self._opened


def _read_again(tools: tuple[Json, ...]) -> tuple[Json, ...]:
    """Return the tools as JSON has them. Raises: TypeError, ValueError for what it has not."""
    return msgspec.json.decode(msgspec.json.encode(tools), type=tuple[Json, ...])


def error_result(why: str) -> ToolResult:
    return ToolResult(error={"type": "mcp_tool_execution_error", "content": why})
