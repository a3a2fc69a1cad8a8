"""The MCP SDK over the pipes of a child process, with limited lines and a cleanup of processes.

This replaces the SDK's own stdio transport, which keeps a line of any length in memory.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
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

from antiphon.adapters.processes import close_pipes, start_process
from antiphon.adapters.tool_servers import launch
from antiphon.adapters.tool_servers.configured import redact
from antiphon.adapters.tool_servers.lenient_results import lenient
from antiphon.adapters.tool_servers.line_splitter import LineSplitter, TruncatedLine
from antiphon.adapters.tool_servers.mcp import CallFailed, protocol_error, too_large_error
from antiphon.adapters.tool_servers.mcp_client import MAX_MESSAGE_LENGTH, McpClient, client_options
from antiphon.domain.offers.mcp import LOST, TOO_LARGE

logger = logging.getLogger("antiphon.tools")

GRACE_S = 0.5
"""The time limit for a process to end after its input was closed, and again after SIGTERM."""

KILL_WAITS = 10
"""The number of waits of GRACE_S for a killed process; only a busy machine needs them."""

CHUNK_BYTES = 64 * 1024
STDERR_BYTES = 2000
"""The bytes from the end of its stderr that are logged when a process ends unexpectedly."""

_ENDED = "The MCP server's process has ended."


@asynccontextmanager
async def connect(
    label: str,
    command: Sequence[str],
    env: Mapping[str, str],
    *,
    max_bytes: int,
    changed: Callable[[], None] | None = None,
) -> AsyncGenerator[McpClient]:
    """Start the process, yield a client for it, and end the process afterwards.

    Raises: CallFailed.
    """
    process = await _start(command, env)
    stderr = _StderrTail()
    transport = _PipeTransport(process, stderr, max_bytes=max_bytes)
    try:
        # Every server supports `initialize`, but not the request that the SDK would send first.
        streams = lenient(transport.open_streams())
        options = client_options(changed)
        async with Client(streams, mode="legacy", **options) as client:
            yield McpClient(client, transport.to_failure, transport.is_lost)
    except Exception as error:
        last_output = redact(tuple(env.values()), stderr.text)
        logger.warning("the MCP server %r was lost; its last output: %s", label, last_output)
        raise transport.to_failure(error) from None


async def _start(command: Sequence[str], env: Mapping[str, str]) -> Process:
    try:
        return await start_process(
            *_with_launcher(command),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env={**get_default_environment(), **env},
        )
    except OSError as error:
        raise protocol_error(
            LOST, f"The MCP server could not be started: {error.strerror}."
        ) from None


def _with_launcher(command: Sequence[str]) -> Sequence[str]:
    if sys.platform != "linux":
        return command
    return (sys.executable, "-I", "-S", str(Path(launch.__file__)), str(os.getpid()), *command)


class _StderrTail:
    def __init__(self) -> None:
        self._content = b""

    def add(self, chunk: bytes) -> None:
        self._content = (self._content + chunk)[-STDERR_BYTES:]

    @property
    def text(self) -> str:
        return repr(self._content.decode(errors="replace"))


class _PipeTransport:
    """The JSON-RPC streams that the SDK needs, over the pipes of a process."""

    def __init__(self, process: Process, stderr: _StderrTail, *, max_bytes: int) -> None:
        self._process = process
        self._stderr = stderr
        self._max_bytes = max_bytes
        self._failure: CallFailed | None = None
        self._stderr_ended = asyncio.Event()

    def is_lost(self) -> bool:
        return self._failure is not None

    def to_failure(self, error: BaseException | None) -> CallFailed:
        """Return the failure that clients see for an error."""
        if self._failure is not None:
            return self._failure
        if isinstance(error, MCPError):
            return protocol_error(error.code, error.message[:MAX_MESSAGE_LENGTH])
        return protocol_error(LOST, _ENDED)

    def _mark_lost(self, failure: CallFailed) -> CallFailed:
        self._failure = failure
        return failure

    @asynccontextmanager
    async def open_streams(self) -> AsyncGenerator[Any]:
        """Yield the stream to read and the stream to write.

        If the process ends, the body of the `async with` is canceled.
        """
        incoming, read_stream = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        write_stream, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._read_stdout, incoming)
                group.start_soon(self._write_stdin, outgoing)
                group.start_soon(self._read_stderr)
                yield read_stream, write_stream
                group.cancel_scope.cancel()
        finally:
            for stream in (incoming, read_stream, write_stream, outgoing):
                stream.close()
            with anyio.CancelScope(shield=True):
                await _stop(self._process)

    async def _read_stdout(
        self, incoming: MemoryObjectSendStream[SessionMessage | Exception]
    ) -> None:
        assert self._process.stdout is not None
        splitter = LineSplitter(max_bytes=self._max_bytes)
        while chunk := await self._process.stdout.read(CHUNK_BYTES):
            for line in splitter.feed(chunk):
                message = self._parse(line)
                if message is not None:
                    await incoming.send(SessionMessage(message))
        failure = self._mark_lost(protocol_error(LOST, _ENDED))
        with anyio.move_on_after(GRACE_S):  # stderr may end later than stdout
            await self._stderr_ended.wait()
        raise failure

    def _parse(self, line: bytes | TruncatedLine) -> mcp_types.JSONRPCMessage | None:
        if isinstance(line, TruncatedLine):
            return self._to_error(line)
        try:
            return mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:
            return None  # many servers print log messages to stdout

    def _to_error(self, line: TruncatedLine) -> mcp_types.JSONRPCMessage:
        failure = too_large_error(self._max_bytes)
        if line.request_id is None:  # a caller would wait for its answer forever
            raise self._mark_lost(failure)
        error = mcp_types.ErrorData(code=TOO_LARGE, message=str(failure))
        return mcp_types.JSONRPCError(jsonrpc="2.0", id=line.request_id, error=error)

    async def _write_stdin(self, outgoing: MemoryObjectReceiveStream[SessionMessage]) -> None:
        assert self._process.stdin is not None
        try:
            async for message in outgoing:
                body = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                self._process.stdin.write(body.encode() + b"\n")
                await self._process.stdin.drain()
        except OSError:
            raise self._mark_lost(protocol_error(LOST, _ENDED)) from None

    async def _read_stderr(self) -> None:
        # A full pipe would block the process.
        assert self._process.stderr is not None
        while chunk := await self._process.stderr.read(CHUNK_BYTES):
            self._stderr.add(chunk)
        self._stderr_ended.set()


async def _stop(process: Process) -> None:
    """End the process and its children: close its input, as MCP specifies, then send signals."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        if not await _has_ended(process):
            _signal_group(process, signal.SIGTERM)
            await _has_ended(process)
    finally:
        _signal_group(process, signal.SIGKILL)  # its children may outlive it
        try:
            for _ in range(KILL_WAITS):
                if await _has_ended(process):
                    break
        finally:
            close_pipes(process)


async def _has_ended(process: Process) -> bool:
    """Wait for the process to end, for GRACE_S at most, and return whether it has."""
    # `process.wait()` also waits for the pipes, which a child of the process may keep open.
    with suppress(TimeoutError):
        async with asyncio.timeout(GRACE_S):
            await process.wait()
    return process.returncode is not None


def _signal_group(process: Process, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
