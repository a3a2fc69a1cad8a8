"""Fixtures for sandboxes on this machine."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from typing import Any, Protocol

import pytest
import pytest_asyncio

from antiphon.adapters.ids import new_id
from antiphon.adapters.sandboxes.bubblewrap import BubblewrapSandboxes, PoolLimits, SandboxTimeouts
from antiphon.adapters.sandboxes.bwrap_command import Limits
from antiphon.application.ports import Sandbox

PYTHON = "/usr/bin/python3"
MEMORY = 512 * 1024**2
DISK = 16 * 1024**2


@pytest.fixture(autouse=True, scope="module")
def _bubblewrap() -> None:
    if shutil.which("bwrap") is None or shutil.which(PYTHON) is None:
        pytest.skip("bwrap is not installed: apt-get install bubblewrap")


def make_sandboxes(
    timeout_s: float = 5.0,
    pool_limits: PoolLimits | None = None,
    interrupt_s: float = 0.3,
    *,
    idle_s: float = 60.0,
    commands: bool = False,
) -> BubblewrapSandboxes:
    return BubblewrapSandboxes(
        python=PYTHON,
        new_id=new_id,
        limits=Limits(
            commands=commands, memory_bytes=MEMORY, disk_bytes=DISK, cpu_s=60, files=2000
        ),
        pool_limits=pool_limits or PoolLimits(),
        timeouts=SandboxTimeouts(call_s=timeout_s, interrupt_s=interrupt_s, idle_s=idle_s),
        cgroup="off",
    )


@pytest.fixture(scope="module")
def with_commands() -> bool:
    """Whether the sandboxes have a shell; a module can override it or test both."""
    return False


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandboxes(_bubblewrap: None, with_commands: bool) -> AsyncIterator[BubblewrapSandboxes]:
    sandboxes = make_sandboxes(commands=with_commands)
    await sandboxes.start()
    yield sandboxes
    await sandboxes.aclose()


async def content_of(sandbox: Sandbox, path: str) -> bytes:
    return b"".join([chunk async for chunk in sandbox.pieces(path)])


@pytest.fixture
def sandbox(sandboxes: BubblewrapSandboxes) -> Sandbox:
    return sandboxes.open("tenant")


class Runs(Protocol):
    """A sandbox that runs code."""

    async def run(self, code: str, /) -> Any: ...


REFUSED = ("PermissionError", "FileNotFoundError", "OSError")


async def assert_refused(sandbox: Runs, code: str, *errors: str) -> None:
    result = await sandbox.run(f"{code}\nprint('OUT')")
    assert "OUT" not in result.logs.splitlines()
    assert any(name in result.logs.splitlines()[-1] for name in errors or REFUSED), result.logs


async def output_of(sandbox: Runs, code: str) -> str:
    """Run code that must succeed."""
    result = await sandbox.run(code)
    assert not result.is_error, result.logs
    return result.logs.strip()
