"""Without a cgroup, the server counts the memory of a sandbox's processes, and in time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.adapters.sandboxes.conftest import PYTHON

from antiphon.adapters.ids import new_id
from antiphon.adapters.sandboxes.bubblewrap import BubblewrapSandboxes
from antiphon.adapters.sandboxes.bwrap_command import Limits
from antiphon.adapters.sandboxes.process_tree import total_memory
from antiphon.application.ports import Sandbox

pytestmark = [pytest.mark.faults, pytest.mark.asyncio(loop_scope="module")]

MEMORY = 256 * 1024**2
PROCESSES = int(os.environ.get("ANTIPHON_TEST_SANDBOX_PROCESSES", "55"))
MAX_OVERSHOOT = 1.7
"""How many times its limit a burst may use on a busy machine, before it is killed."""

BURST = f"""
import mmap, os, time
start = time.monotonic() + 0.5
for number in range({PROCESSES}):
    if os.fork() == 0:
        time.sleep(max(0, start - time.monotonic()))
        area = mmap.mmap(-1, 100 << 20, flags=mmap.MAP_PRIVATE)
        for page in range(0, 100 << 20, 4096):
            area[page] = 1
        time.sleep(60)
time.sleep(60)
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandboxes(_bubblewrap: None) -> AsyncIterator[BubblewrapSandboxes]:
    sandboxes = BubblewrapSandboxes(
        python=PYTHON,
        new_id=new_id,
        limits=Limits(commands=True, memory_bytes=MEMORY),
        cgroup="off",
    )
    await sandboxes.start()
    yield sandboxes
    await sandboxes.aclose()


async def test_processes_that_take_memory_together_are_stopped_early(sandbox: Sandbox) -> None:
    await sandbox.run("1")
    running = asyncio.ensure_future(sandbox.run(BURST))
    peak_bytes = 0
    own_bytes = total_memory(os.getpid(), 0)
    while not running.done():
        all_bytes = await asyncio.to_thread(total_memory, os.getpid(), 0)
        peak_bytes = max(peak_bytes, all_bytes - own_bytes)
        await asyncio.wait({running}, timeout=0.01)
    assert "The code used more than 256 MB of memory." in running.result().logs
    assert MEMORY / 2 < peak_bytes < MAX_OVERSHOOT * MEMORY


async def test_processes_that_share_their_memory_may_all_have_it(sandbox: Sandbox) -> None:
    code = """
import os
data = b'x' * (100 << 20)
children = []
for _ in range(4):
    child = os.fork()
    if child == 0:
        import time
        time.sleep(0.5)
        os._exit(0)
    children.append(child)
print([os.waitpid(child, 0)[1] for child in children])
"""
    assert (await sandbox.run(code)).logs == "[0, 0, 0, 0]\n"
