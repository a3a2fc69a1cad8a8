"""The MCP SDK on the pipes of a process that is ours: bounded lines, and no process left behind.

The SDK's own stdio transport keeps a line of any length in memory, so this is one of ours.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import mcp_types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.client import Client
from mcp.client.stdio import get_default_environment
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage

from antiphon.adapters.tool_servers import launch
from antiphon.adapters.tool_servers.configured import redact
from antiphon.adapters.tool_servers.line_splitter import LineSplitter, TruncatedLine
from antiphon.adapters.tool_servers.mcp import CallFailed, protocol_error, too_large_error
from antiphon.adapters.tool_servers.mcp_client import MAX_MESSAGE_LENGTH, McpClient
from antiphon.domain.mcp import LOST, TOO_LARGE

logger = logging.getLogger("antiphon.tools")

GRACE_S = 0.5
"""Seconds for a process to end once its input has, and as many once it was told to."""

KILLED_GRACES = 10
"""For so often GRACE_S a killed process is waited for, which takes long on a busy machine alone."""

PIECE = 64 * 1024
LAST_WORDS = 2000
"""Bytes of what it wrote to stderr that are logged when it ends unasked."""

_ENDED = "The MCP server's process has ended."


@asynccontextmanager
async def connected(
    label: str, command: Sequence[str], env: Mapping[str, str], *, max_bytes: int
) -> AsyncGenerator[McpClient]:
    """Begin the process and yield a client of it; it has ended when this is left.

    Raises: Unreached.
    """
    process = await _begun(command, env)
    stderr = _LastWords()
    link = _Link(process, stderr, max_bytes=max_bytes)
    try:
        # `initialize` is known to every server there is; what the SDK would ask first is not.
        async with Client(link.opened(), mode="legacy") as client:
            yield McpClient(client, link.fault_of, link.is_lost)
    except Exception as error:
        said = redact(tuple(env.values()), stderr.text)
        logger.warning("the MCP server %r was lost; it wrote last: %s", label, said)
        raise link.fault_of(error) from None


async def _begun(command: Sequence[str], env: Mapping[str, str]) -> Process:
    try:
        return await asyncio.create_subprocess_exec(
            *_launched(command),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env={**get_default_environment(), **env},
            start_new_session=True,
        )
    except OSError as error:
        raise protocol_error(
            LOST, f"The MCP server could not be begun: {error.strerror}."
        ) from None


def _launched(command: Sequence[str]) -> Sequence[str]:
    if sys.platform != "linux":
        return command
    return (sys.executable, "-I", "-S", str(Path(launch.__file__)), str(os.getpid()), *command)


class _LastWords:
    def __init__(self) -> None:
        self._kept = b""

    def add(self, piece: bytes) -> None:
        self._kept = (self._kept + piece)[-LAST_WORDS:]

    @property
    def text(self) -> str:
        return repr(self._kept.decode(errors="replace"))


class _Link:
    """The streams of JSON-RPC that the SDK wants, on the pipes of a process."""

    def __init__(self, process: Process, stderr: _LastWords, *, max_bytes: int) -> None:
        self._process = process
        self._stderr = stderr
        self._max_bytes = max_bytes
        self._fault: CallFailed | None = None
        self._drained = asyncio.Event()

    def is_lost(self) -> bool:
        return self._fault is not None

    def fault_of(self, error: BaseException | None) -> CallFailed:
        """Return what went wrong as a client may see it."""
        if self._fault is not None:
            return self._fault
        if isinstance(error, MCPError):
            return protocol_error(error.code, error.message[:MAX_MESSAGE_LENGTH])
        return protocol_error(LOST, _ENDED)

    def _lose(self, fault: CallFailed) -> CallFailed:
        self._fault = fault
        return fault

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[Any]:
        """Yield the two streams; when the process ends, whoever is inside is cancelled."""
        heard, to_read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        to_write, said = anyio.create_memory_object_stream[SessionMessage](0)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._listen, heard)
                group.start_soon(self._say, said)
                group.start_soon(self._drain)
                yield to_read, to_write
                group.cancel_scope.cancel()
        finally:
            for stream in (heard, to_read, to_write, said):
                stream.close()
            with anyio.CancelScope(shield=True):
                await _stop(self._process)

    async def _listen(self, heard: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        assert self._process.stdout is not None
        lines = LineSplitter(max_bytes=self._max_bytes)
        while piece := await self._process.stdout.read(PIECE):
            for line in lines.feed(piece):
                message = self._read(line)
                if message is not None:
                    await heard.send(SessionMessage(message))
        fault = self._lose(protocol_error(LOST, _ENDED))
        with anyio.move_on_after(GRACE_S):  # its last words may come after its end
            await self._drained.wait()
        raise fault

    def _read(self, line: bytes | TruncatedLine) -> mcp_types.JSONRPCMessage | None:
        if isinstance(line, TruncatedLine):
            return self._too_long(line)
        try:
            return mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:
            return None  # many print what they should log

    def _too_long(self, line: TruncatedLine) -> mcp_types.JSONRPCMessage:
        fault = too_large_error(self._max_bytes)
        if line.request_id is None:  # whoever waits for it would wait in vain
            raise self._lose(fault)
        told = mcp_types.ErrorData(code=TOO_LARGE, message=str(fault))
        return mcp_types.JSONRPCError(jsonrpc="2.0", id=line.request_id, error=told)

    async def _say(self, said: MemoryObjectReceiveStream[SessionMessage]) -> None:
        assert self._process.stdin is not None
        try:
            async for message in said:
                body = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                self._process.stdin.write(body.encode() + b"\n")
                await self._process.stdin.drain()
        except OSError:
            raise self._lose(protocol_error(LOST, _ENDED)) from None

    async def _drain(self) -> None:
        # A pipe that nobody empties would stop the process.
        assert self._process.stderr is not None
        while piece := await self._process.stderr.read(PIECE):
            self._stderr.add(piece)
        self._drained.set()


async def _stop(process: Process) -> None:
    """End the process and all that it began: its input first, as MCP has it, then by signals."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        if not await _has_ended(process):
            _tell(process, signal.SIGTERM)
            await _has_ended(process)
    finally:
        _tell(process, signal.SIGKILL)  # what it began may be left, in its group
        try:
            for _ in range(KILLED_GRACES):
                if await _has_ended(process):
                    break
        finally:
            _close_pipes(process)


async def _has_ended(process: Process) -> bool:
    # Not `process.wait()` alone, which waits for its pipes too: whoever inherited them keeps them.
    with suppress(TimeoutError):
        async with asyncio.timeout(GRACE_S):
            await process.wait()
    return process.returncode is not None


def _close_pipes(process: Process) -> None:
    # Nothing public does it where another process still has their other ends.
    transport: Any = getattr(process, "_transport", None)
    if transport is not None:
        transport.close()


def _tell(process: Process, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
