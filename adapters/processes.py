"""Processes that this server starts; they end whatever happens to whoever started them."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from antiphon.application.support.tasks import run_or_undo

GONE = (FileNotFoundError, ProcessLookupError, ValueError)
"""The errors of reading a file in /proc when its process has ended."""


async def start_process(*command: str, **options: Any) -> Process:
    """Start a process in a session of its own; `options` are those of `create_subprocess_exec`.

    If the caller is canceled, the process is killed once it has started. asyncio alone would wait
    for its pipes then, forever if a child of the process keeps them open. Raises: OSError.
    """
    start = asyncio.create_subprocess_exec(*command, start_new_session=True, **options)
    return await run_or_undo(start, end_process, fails_with=OSError)


async def end_process(process: Process) -> None:
    """Kill a process with its children, and wait until it has ended."""
    kill_process(process)
    # Without this, `wait` waits for pipes that nobody reads any longer.
    close_pipes(process)
    await process.wait()


def kill_process(process: Process) -> None:
    """Kill a process that `start_process` started, and its children.

    A launcher's child does not end with it before its program starts. The child has a session of
    its own some time before that, so it is killed by itself as well.
    """
    if process.returncode is not None:
        return
    for pid in descendants(process.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with suppress(ProcessLookupError, PermissionError):  # macOS refuses when all have ended
        os.killpg(process.pid, signal.SIGKILL)


def close_pipes(process: Process) -> None:
    """Close the server's ends of the pipes, whoever has the other ends."""
    # There is no public way to the transport. Its own `close` may take the exit status before
    # asyncio does, which asyncio warns of.
    transport: Any = getattr(process, "_transport", None)
    pipes = () if transport is None else map(transport.get_pipe_transport, range(3))
    for pipe in filter(None, pipes):
        pipe.close()


def descendants(pid: int) -> Iterator[int]:
    """Yield the ids of all descendants of `pid`, including zombies.

    For the first process of a PID namespace these are all others: it adopts every orphan.
    """
    with suppress(*GONE):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(*GONE), open(f"/proc/{pid}/task/{thread}/children") as children:
                for child in children.read().split():
                    yield int(child)
                    yield from descendants(int(child))
