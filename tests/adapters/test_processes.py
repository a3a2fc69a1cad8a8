"""Processes end, whatever happens to those who start them."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from asyncio.subprocess import PIPE
from contextlib import suppress
from pathlib import Path

import pytest
from tests.http.conftest import wait_until

from antiphon.adapters.processes import end_process, start_process

BLOCKED_S = 0.2
"""How long a test holds the event loop up, so that a process runs before its pipes are open."""


def is_alive(pid: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    return False


@pytest.mark.parametrize("steps", range(6))
async def test_a_process_whose_starter_is_canceled_ends_with_its_children(
    steps: int, tmp_path: Path
) -> None:
    file = tmp_path / "pid"
    command = f"sleep 600 & echo $! > {file}.new && mv {file}.new {file}; wait"
    starting = asyncio.create_task(start_process("sh", "-c", command, stdin=PIPE, stdout=PIPE))
    for _ in range(steps):
        await asyncio.sleep(0)
    deadline = time.monotonic() + BLOCKED_S
    while not file.exists() and time.monotonic() < deadline:
        os.sched_yield()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(10):
            await starting
    if file.exists():
        pid = int(file.read_text())
        wait_until(lambda: not is_alive(pid))


async def test_a_process_whose_output_is_not_read_ends() -> None:
    process = await start_process("yes", stdout=PIPE, limit=1024)
    assert process.stdout is not None
    with pytest.raises(asyncio.LimitOverrunError):
        await process.stdout.readuntil(b"no")
    async with asyncio.timeout(10):
        await end_process(process)
    assert process.returncode == -9


async def test_a_process_that_cannot_start_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        await start_process("/nonexistent")


async def test_a_process_that_has_ended_can_be_ended() -> None:
    process = await start_process(sys.executable, "-c", "")
    await process.wait()
    await end_process(process)
    assert process.returncode == 0
