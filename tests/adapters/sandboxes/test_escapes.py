"""Attempts of the code interpreter's code to exceed its limits, and to leave something behind.

What it can reach is in test_probes.py.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.sandboxes.conftest import (
    DISK,
    assert_refused,
    content_of,
    make_sandboxes,
    output_of,
)
from tests.support.machine_speed import slowness
from tests.support.processes import descendants_of, is_process_alive

from antiphon.adapters.sandboxes.bubblewrap import BubblewrapSandboxes
from antiphon.application.ports import Sandbox
from antiphon.domain.errors import SandboxError

pytestmark = [pytest.mark.faults, pytest.mark.asyncio(loop_scope="module")]


@pytest.fixture(scope="module", params=[False, True], ids=["alone", "with a shell"])
def with_commands(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


# --- limits ---------------------------------------------------------------------------------------


async def test_a_fork_bomb_is_stopped(sandbox: Sandbox, with_commands: bool) -> None:
    if with_commands:
        code = "import os\nfor _ in range(10_000): os.fork() or __import__('time').sleep(60)"
        await assert_refused(sandbox, code, "BlockingIOError")
        assert await output_of(sandbox, "1 + 1") == "2"
        return
    await assert_refused(sandbox, "import os\nfor _ in range(10_000): os.fork()", "PermissionError")
    await assert_refused(
        sandbox, "import subprocess; subprocess.run(['x'])", "PermissionError", "OSError"
    )


async def test_the_size_of_folders_in_memory_is_limited(sandbox: Sandbox) -> None:
    fill = "with open('{}/fill', 'wb') as file:\n  for _ in range(200): file.write(bytes(2**20))"
    await assert_refused(sandbox, fill.format("/mnt/data"), "OSError")
    await assert_refused(sandbox, fill.format("/tmp"), "OSError")
    await assert_refused(sandbox, "open('/tmp/sparse', 'wb').truncate(10 * 1024**3)", "OSError")
    code = "import os; os.stat('/mnt/data/fill').st_size"
    assert int(await output_of(sandbox, code)) <= DISK


async def test_the_number_of_files_is_limited(sandbox: Sandbox) -> None:
    result = await sandbox.run("for n in range(10**7): open(f'/tmp/{n}', 'w').close()")
    assert "The code made more than 2000 files." in result.logs


SPINS = {
    "plain": "while True: pass",
    "ignoring signals": "import signal\nfor n in (2, 15): signal.signal(n, signal.SIG_IGN)\n"
    "while True: pass",
    "catching": "while True:\n  try:\n    while True: pass\n  except BaseException: pass",
    "in C": "sum(range(10**13))",
    "in threads": "import threading\nfor _ in range(4): threading.Thread(target=lambda: "
    "sum(range(10**13))).start()",
    "waiting": "import time; time.sleep(10**6)",
}


@pytest.mark.parametrize("code", SPINS.values(), ids=SPINS.keys())
async def test_endless_code_is_stopped(code: str) -> None:
    sandboxes = make_sandboxes(timeout_s=0.5)
    await sandboxes.start()
    try:
        sandbox = sandboxes.open("tenant")
        await sandbox.run("1")
        started = time.monotonic()
        await sandbox.run(code)
        assert time.monotonic() - started < 3
        assert await output_of(sandbox, "1 + 1") == "2"
    finally:
        await sandboxes.aclose()


async def test_threads_do_not_run_between_calls(sandbox: Any) -> None:
    code = """
import threading
def work():
    while True:
        pass
threading.Thread(target=work, daemon=True).start()
"""
    await sandbox.run(code)
    deadline = time.monotonic() + 30
    while "State:\tT (stopped)" not in _status(sandbox._process._pid):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.001)
    assert await output_of(sandbox, "1 + 1") == "2"


async def test_a_flood_of_output_is_truncated_and_does_not_block_the_server() -> None:
    sandboxes = make_sandboxes(timeout_s=1.0)
    await sandboxes.start()
    try:
        sandbox = sandboxes.open("tenant")
        running = asyncio.ensure_future(
            sandbox.run("import os\nwhile True: os.write(1, b'x'*65536)")
        )
        longest = 0.0
        while not running.done():
            before = time.monotonic()
            await asyncio.sleep(0)
            longest = max(longest, time.monotonic() - before)
        assert len(running.result().logs) < 1024**2 + 300
        assert longest < 0.3
    finally:
        await sandboxes.aclose()


async def test_a_crash_dumps_no_core(sandbox: Sandbox) -> None:
    result = await sandbox.run("import ctypes; ctypes.string_at(0)")
    assert "was restarted" in result.logs
    assert await sandbox.files() == []


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        "os.symlink('/etc/passwd', name)",
        "os.symlink('/proc/self/environ', name)",
        "os.mkfifo(name)",
        "os.mkdir(name)",
        "import socket; socket.socket(socket.AF_UNIX).bind(name)",
    ],
)
async def test_only_regular_files_can_be_read(sandbox: Sandbox, make: str) -> None:
    await sandbox.run(f"import os; name = '/mnt/data/out.png'\n{make}")
    assert await sandbox.files() == []
    with pytest.raises(SandboxError):
        await content_of(sandbox, "out.png")


async def test_an_upload_does_not_follow_a_link(sandbox: Sandbox) -> None:
    await sandbox.run("import os; os.symlink('/tmp/target', '/mnt/data/in.txt')")
    with pytest.raises(SandboxError):
        await sandbox.put("in.txt", b"x")


@pytest.mark.parametrize(
    "name", ["../x", "a/b", "/etc/x", "", ".", "..", "a\0b", "\udcff", 4096 * "a"]
)
async def test_invalid_file_names_are_refused(sandbox: Sandbox, name: str) -> None:
    with pytest.raises(SandboxError):
        await sandbox.put(name, b"x")
    with pytest.raises(SandboxError):
        await content_of(sandbox, name)


async def test_files_whose_names_are_not_utf8_are_not_listed(sandbox: Sandbox) -> None:
    await sandbox.run(
        "open(b'/mnt/data/\\xff\\xfe', 'w').close(); open('/mnt/data/a', 'w').close()"
    )
    assert [(each.path, each.bytes) for each in await sandbox.files()] == [("a", 0)]


# --- from one sandbox to another ------------------------------------------------------------------


async def test_a_sandbox_leaves_nothing_to_the_next(sandboxes: BubblewrapSandboxes) -> None:
    first, second = sandboxes.open("a"), sandboxes.open("b")
    code = """
import os
for name in ('sitecustomize.py', 'usercustomize.py', 'json.py'):
    open('/mnt/data/' + name, 'w').write("print('MINE')")
    open('/tmp/' + name, 'w').write("print('MINE')")
os.environ['LD_PRELOAD'] = os.environ['PYTHONSTARTUP'] = '/mnt/data/a.so'
"""
    await first.run(code)
    assert (
        await output_of(second, "import os; sorted(os.listdir('/mnt/data') + os.listdir('/tmp'))")
        == "[]"
    )
    assert await output_of(second, "import os; os.environ.get('LD_PRELOAD')") == ""
    await first.run("import os; os._exit(0)")
    assert await output_of(first, "import os; os.listdir('/mnt/data')") == "[]"


async def test_only_its_tenant_finds_a_sandbox(sandboxes: BubblewrapSandboxes) -> None:
    sandbox = sandboxes.open("a")
    assert sandboxes.find("a", sandbox.id) is sandbox
    assert sandboxes.find("b", sandbox.id) is None


async def test_an_invalid_answer_restarts_only_the_container(sandbox: Sandbox) -> None:
    find_socket = """
import os
answers = max(int(each) for each in os.listdir('/proc/self/fd') if
              os.path.lexists('/proc/self/fd/' + each) and
              'socket' in os.readlink('/proc/self/fd/' + each))
"""
    result = await sandbox.run(find_socket + "os.write(answers, b'\\xff\\xff\\xff\\xff')")
    assert "was restarted" in result.logs
    result = await sandbox.run(find_socket + "os.write(answers, b'\\0\\0\\0\\4oops')")
    assert "was restarted" in result.logs
    assert await output_of(sandbox, "1 + 1") == "2"


# --- after the server has ended -------------------------------------------------------------------

SERVER = """
import asyncio, sys
from antiphon.adapters.sandboxes.bubblewrap import BubblewrapSandboxes, SandboxTimeouts
from antiphon.adapters.sandboxes.bwrap_command import Limits
from antiphon.adapters.ids import new_id

async def main():
    sandboxes = BubblewrapSandboxes(
        python="/usr/bin/python3",
        new_id=new_id,
        limits=Limits(commands=True),
        timeouts=SandboxTimeouts(call_s=60),
        cgroup="off",
    )
    await sandboxes.start()
    busy, idle = sandboxes.open("a"), sandboxes.open("a")
    await idle.run("1")
    async for _ in busy.command("setsid sleep 60 & echo on; sleep 60"):
        print("ready", flush=True)

asyncio.run(main())
"""


async def test_sandboxes_end_when_the_server_is_killed() -> None:
    pids = await asyncio.to_thread(_kill_server)
    assert pids
    deadline = time.monotonic() + slowness()
    while alive := [pid for pid in pids if is_process_alive(pid)]:
        assert time.monotonic() < deadline, alive
        await asyncio.sleep(0.01)


def _kill_server() -> list[int]:
    """Start a server with two sandboxes, kill it, and return the ids of its child processes."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        pids = descendants_of(server.pid)
        server.send_signal(signal.SIGKILL)
    return pids


def _status(pid: int) -> str:
    return Path(f"/proc/{pid}/status").read_text()
