"""Tool servers that the operator wrote in Python, with limits of time and size.

Their exceptions become errors like those of any other server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from antiphon.adapters.tool_servers.mcp import timeout_error
from antiphon.application.ports import Json, ToolResult, ToolServer, ToolSession
from antiphon.domain.errors import ToolServerError

logger = logging.getLogger("antiphon.tools")

T = TypeVar("T")


class LimitedServer(ToolServer):
    """Limits each request to `server` to `timeout_s`, and each call's output to `max_bytes`."""

    def __init__(self, server: ToolServer, label: str, *, timeout_s: float, max_bytes: int) -> None:
        self.label = label
        self._server = server
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes

    def session(self) -> ToolSession:
        return _LimitedSession(
            self._server, self.label, timeout_s=self._timeout_s, max_bytes=self._max_bytes
        )

    def watch(self, changed: Callable[[], None]) -> None:
        self._server.watch(changed)

    async def aclose(self) -> None:
        await self._server.aclose()


class _LimitedSession(ToolSession):
    def __init__(self, server: ToolServer, label: str, *, timeout_s: float, max_bytes: int) -> None:
        self._server = server
        self._label = label
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._session: ToolSession | None = None

    async def tools(self) -> tuple[Json, ...]:
        async def read(session: ToolSession) -> tuple[Json, ...]:
            return _to_json(await session.tools())

        return await self._list(read)

    async def instructions(self) -> str:
        async def read(session: ToolSession) -> str:
            return msgspec.convert(await session.instructions(), str)

        return await self._list(read)

    async def _list(self, read: Callable[[ToolSession], Awaitable[T]]) -> T:
        timeout = asyncio.timeout(self._timeout_s)
        try:
            async with timeout:
                return await read(self._open_session())
        except ToolServerError:
            raise
        except Exception:
            reason = "It failed."
            if timeout.expired():
                reason = str(timeout_error(self._timeout_s))
            else:
                logger.exception("the tools of %r could not be listed", self._label)
            raise ToolServerError(
                f"Error retrieving tool list from MCP server: {self._label!r}. {reason}"
            ) from None

    async def call(self, name: str, arguments: Json) -> ToolResult:
        timeout = asyncio.timeout(self._timeout_s)
        try:
            async with timeout:
                result = await self._open_session().call(name, arguments)
            return self._check(result)
        except ToolServerError as error:
            return error_result(str(error))
        except Exception:
            if timeout.expired():
                return ToolResult(error=timeout_error(self._timeout_s).error)
            logger.exception("the tool %r of %r failed", name, self._label)
            return error_result(f"The tool {name!r} failed.")

    def _check(self, result: ToolResult) -> ToolResult:
        if not isinstance(result, ToolResult):
            message = f"a call returns a ToolResult, not {type(result).__name__}"
            raise TypeError(message)
        if len((result.output or "").encode()) > self._max_bytes:
            return error_result(f"The tool's output has more than {self._max_bytes} bytes.")
        msgspec.json.encode(result)  # raises here if the result cannot be in an event
        return result

    async def aclose(self) -> None:
        if self._session is None:
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._session.aclose()
        except Exception:
            logger.exception("a session of %r could not be closed", self._label)

    def _open_session(self) -> ToolSession:
        if self._session is None:
            self._session = self._server.session()
        return self._session


def _to_json(tools: tuple[Json, ...]) -> tuple[Json, ...]:
    """Return the tools as plain JSON. Raises: TypeError, ValueError if that is not possible."""
    return msgspec.json.decode(msgspec.json.encode(tools), type=tuple[Json, ...])


def error_result(message: str) -> ToolResult:
    return ToolResult(error={"type": "mcp_tool_execution_error", "content": message})
