"""Attempts to get out of a sandbox, or at more than it was given: each fails the test if it works.

Code prints `OUT` when it got through. What is refused raises, which is seen to as well: an attempt
that fails for another reason would prove nothing.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from antiphon.adapters.sandboxes.bubblewrap import BubblewrapSandboxes
from antiphon.application.ports import Sandbox
from antiphon.domain.errors import SandboxError

from .conftest import DISK, content_of, sandboxes_of

pytestmark = [pytest.mark.faults, pytest.mark.asyncio(loop_scope="module")]


@pytest.fixture(scope="module", params=[False, True], ids=["alone", "with a shell"])
def with_commands(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


REFUSED = ("PermissionError", "FileNotFoundError", "OSError")


async def refused(sandbox: Sandbox, code: str, *errors: str) -> None:
    ran = await sandbox.run(f"{code}\nprint('OUT')")
    assert "OUT" not in ran.logs.splitlines()
    assert any(name in ran.logs.splitlines()[-1] for name in errors or REFUSED), ran.logs


async def printed(sandbox: Sandbox, code: str) -> str:
    ran = await sandbox.run(code)
    assert not ran.is_error, ran.logs
    return ran.logs.strip()


# --- 1, 2, 10: what it sees -----------------------------------------------------------------------


async def test_no_environment_of_the_server_is_in_any_process(
    monkeypatch: pytest.MonkeyPatch, sandbox: Sandbox, with_commands: bool
) -> None:
    monkeypatch.setenv("ANTIPHON_SECRET", "sesame-9921")
    code = """
import glob, os
found = [open(path, 'rb').read() for path in glob.glob('/proc/[0-9]*/environ')]
print(len(found), b'sesame' in b''.join(found), 'ANTIPHON_SECRET' in os.environ)
"""
    assert await printed(sandbox, code) == f"{1 + with_commands} False False"


async def test_it_sees_its_own_processes_alone(sandbox: Sandbox, with_commands: bool) -> None:
    code = "import os; [each for each in os.listdir('/proc') if each.isdigit()], os.getuid()"
    own = ["1", "2"] if with_commands else ["1"]
    assert await printed(sandbox, code) == f"({own}, 65534)"


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "/etc/shadow", "/root", "/home", "/var/log", "/proc/1/root/etc/passwd", "/sys"],
)
async def test_files_of_this_machine_are_not_there(sandbox: Sandbox, path: str) -> None:
    await refused(sandbox, f"import os; os.stat({path!r})", "FileNotFoundError")


async def test_a_file_of_the_server_is_not_there(sandbox: Sandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    await refused(sandbox, f"open({str(secret)!r})", "FileNotFoundError")


@pytest.mark.parametrize("folder", ["/", "/usr/lib", "/dev", "/mnt", "/proc/1"])
async def test_nothing_can_be_written_but_its_own_folders(sandbox: Sandbox, folder: str) -> None:
    await refused(sandbox, f"open({folder!r} + '/new', 'w')")


@pytest.mark.parametrize(
    "path", ["/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/1/oom_score_adj_x"]
)
async def test_the_kernel_is_not_told_anything(sandbox: Sandbox, path: str) -> None:
    await refused(sandbox, f"open({path!r}, 'w').write('1')")


async def test_no_descriptor_is_inherited_but_its_own_line(sandbox: Sandbox) -> None:
    with open("/etc/hostname") as held:  # noqa: ASYNC230
        os.set_inheritable(held.fileno(), True)
        code = """
import os
for each in sorted(os.listdir('/proc/self/fd'), key=int):
    try:
        print(os.readlink('/proc/self/fd/' + each).split(':')[0])
    except FileNotFoundError:
        pass
"""
        assert (await printed(sandbox, code)).split() == ["/dev/null", "pipe", "pipe", "socket"]


# --- 3: networks ----------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["AF_INET", "AF_INET6", "AF_PACKET", "AF_NETLINK", "AF_VSOCK"])
@pytest.mark.parametrize("kind", ["SOCK_STREAM", "SOCK_DGRAM", "SOCK_RAW"])
async def test_there_are_no_sockets_to_the_outside(
    sandbox: Sandbox, family: str, kind: str
) -> None:
    await refused(
        sandbox, f"import socket; socket.socket(socket.{family}, socket.{kind})", "PermissionError"
    )


async def test_no_name_is_resolved(sandbox: Sandbox) -> None:
    await refused(sandbox, "import socket; socket.getaddrinfo('example.com', 80)", "gaierror")


async def test_abstract_sockets_of_this_machine_are_not_there(sandbox: Sandbox) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"\0sink-{os.getpid()}")
        listening.listen()
        name = listening.getsockname().decode()
        await refused(
            sandbox,
            f"import socket; socket.socket(socket.AF_UNIX).connect({name!r})",
            "ConnectionRefusedError",
        )


# --- 4, 5, 13, 15: doors of the kernel ------------------------------------------------------------

CALLS = {
    "unshare a user namespace": "libc.unshare(0x10000000)",
    "unshare a mount namespace": "libc.unshare(0x00020000)",
    "mount": "libc.mount(b'none', b'/tmp', b'tmpfs', 0, None)",
    "umount": "libc.umount2(b'/usr/lib', 2)",
    "pivot_root": "libc.syscall(155, b'/tmp', b'/tmp')",
    "chroot": "libc.chroot(b'/tmp')",
    "setns": "libc.setns(0, 0)",
    "ptrace": "libc.ptrace(16, 1, 0, 0)",
    "read memory of a process": "libc.process_vm_readv(1, None, 0, None, 0, 0)",
    "io_uring": "libc.syscall(425, 8, None)",
    "bpf": "libc.syscall(321, 0, None, 0)",
    "keyctl": "libc.syscall(250, 0, 0, 0)",
    "add_key": "libc.syscall(248, b'user', b'a', b'b', 1, -3)",
    "userfaultfd": "libc.syscall(323, 0)",
    "perf_event_open": "libc.syscall(298, None, 0, 0, 0, 0)",
    "memfd": "libc.memfd_create(b'a', 0)",
    "shared memory": "libc.shmget(0, 4096, 0o1777)",
    "reboot": "libc.reboot(0)",
    "type into a terminal": "libc.ioctl(0, 0x5412, b'a')",
    "type into a console": "libc.ioctl(0, 0x541C, b'a')",
    "become root": "libc.setuid(0)",
}


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of calls are of x86_64")
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
async def test_doors_of_the_kernel_are_shut(sandbox: Sandbox, call: str) -> None:
    code = f"""
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
result = {call}
code = ctypes.get_errno()
(result, errno.errorcode.get(code))
"""
    shut = ("(-1, 'EPERM')", "(-1, 'EINVAL')") if "setuid" in call else ("(-1, 'EPERM')",)
    assert await printed(sandbox, code) in shut


async def test_it_has_no_rights_and_can_get_none(sandbox: Sandbox) -> None:
    code = """
wanted = ('CapEff', 'CapPrm', 'CapBnd', 'CapAmb', 'NoNewPrivs', 'Seccomp')
for line in open('/proc/self/status'):
    name, _, value = line.partition(':')
    if name in wanted:
        print(name, int(value, 16))
"""
    found = dict(line.split() for line in (await printed(sandbox, code)).splitlines())
    assert found.pop("NoNewPrivs") == "1"
    assert found.pop("Seccomp") == "2"
    assert set(found.values()) == {"0"}


# --- 6, 7, 8, 9, 14: too much ---------------------------------------------------------------------


async def test_a_fork_bomb_has_no_second_process(sandbox: Sandbox, with_commands: bool) -> None:
    if with_commands:
        code = "import os\nfor _ in range(10_000): os.fork() or __import__('time').sleep(60)"
        await refused(sandbox, code, "BlockingIOError")
        assert await printed(sandbox, "1 + 1") == "2"
        return
    await refused(sandbox, "import os\nfor _ in range(10_000): os.fork()", "PermissionError")
    await refused(sandbox, "import subprocess; subprocess.run(['x'])", "PermissionError", "OSError")


async def test_threads_end_at_a_number(sandbox: Sandbox) -> None:
    code = """
import threading
stop, started = threading.Event(), 0
try:
    for _ in range(10_000):
        threading.Thread(target=stop.wait, daemon=True).start()
        started += 1
except RuntimeError:
    stop.set()
started < 100
"""
    assert await printed(sandbox, code) == "True"


async def test_memory_ends_at_a_size(sandbox: Sandbox) -> None:
    await refused(sandbox, "held = bytearray(10 * 1024**3)", "MemoryError")
    assert await printed(sandbox, "1 + 1") == "2"
    await refused(sandbox, "held = []\nwhile True: held.append(bytearray(2**20))", "MemoryError")


async def test_a_folder_in_memory_ends_at_a_size(sandbox: Sandbox) -> None:
    fill = "with open('{}/fill', 'wb') as file:\n  for _ in range(200): file.write(bytes(2**20))"
    await refused(sandbox, fill.format("/mnt/data"), "OSError")
    await refused(sandbox, fill.format("/tmp"), "OSError")
    await refused(sandbox, "open('/tmp/sparse', 'wb').truncate(10 * 1024**3)", "OSError")
    code = "import os; os.stat('/mnt/data/fill').st_size"
    assert int(await printed(sandbox, code)) <= DISK


async def test_files_end_at_a_number(sandbox: Sandbox) -> None:
    ran = await sandbox.run("for n in range(10**7): open(f'/tmp/{n}', 'w').close()")
    assert "The code made more than 2000 files." in ran.logs


SPINS = {
    "plain": "while True: pass",
    "deaf": "import signal\nfor n in (2, 15): signal.signal(n, signal.SIG_IGN)\nwhile True: pass",
    "catching": "while True:\n  try:\n    while True: pass\n  except BaseException: pass",
    "in C": "sum(range(10**13))",
    "in threads": "import threading\nfor _ in range(4): threading.Thread(target=lambda: "
    "sum(range(10**13))).start()",
    "waiting": "import time; time.sleep(10**6)",
}


@pytest.mark.parametrize("code", SPINS.values(), ids=SPINS.keys())
async def test_code_without_end_is_stopped(code: str) -> None:
    sandboxes = sandboxes_of(timeout_s=0.5)
    await sandboxes.start()
    try:
        sandbox = sandboxes.open("tenant")
        await sandbox.run("1")
        started = time.monotonic()
        await sandbox.run(code)
        assert time.monotonic() - started < 3
        assert await printed(sandbox, "1 + 1") == "2"
    finally:
        await sandboxes.aclose()


async def test_threads_left_behind_do_not_run_between_calls(sandbox: Any) -> None:
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
    assert await printed(sandbox, "1 + 1") == "2"


async def test_a_flood_of_output_is_cut_and_does_not_block_the_server() -> None:
    sandboxes = sandboxes_of(timeout_s=1.0)
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


async def test_a_core_is_not_dumped(sandbox: Sandbox) -> None:
    ran = await sandbox.run("import ctypes; ctypes.string_at(0)")
    assert "started anew" in ran.logs
    assert await sandbox.files() == []


# --- 11, 12, 19: files ----------------------------------------------------------------------------


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
async def test_what_is_no_file_is_not_fetched(sandbox: Sandbox, make: str) -> None:
    await sandbox.run(f"import os; name = '/mnt/data/out.png'\n{make}")
    assert await sandbox.files() == []
    with pytest.raises(SandboxError):
        await content_of(sandbox, "out.png")


async def test_a_link_in_the_place_of_a_file_is_not_written_through(sandbox: Sandbox) -> None:
    await sandbox.run("import os; os.symlink('/tmp/target', '/mnt/data/in.txt')")
    with pytest.raises(SandboxError):
        await sandbox.put("in.txt", b"x")


async def test_devices_cannot_be_made(sandbox: Sandbox) -> None:
    await refused(sandbox, "import os; os.mknod('/mnt/data/sda', 0o60600, os.makedev(8, 0))")


@pytest.mark.parametrize(
    "name", ["../x", "a/b", "/etc/x", "", ".", "..", "a\0b", "\udcff", 4096 * "a"]
)
async def test_names_that_are_none_are_refused(sandbox: Sandbox, name: str) -> None:
    with pytest.raises(SandboxError):
        await sandbox.put(name, b"x")
    with pytest.raises(SandboxError):
        await content_of(sandbox, name)


async def test_files_whose_names_are_no_text_are_left_out(sandbox: Sandbox) -> None:
    await sandbox.run(
        "open(b'/mnt/data/\\xff\\xfe', 'w').close(); open('/mnt/data/a', 'w').close()"
    )
    assert [(each.path, each.bytes) for each in await sandbox.files()] == [("a", 0)]


# --- 16, 17, 18: from one to another --------------------------------------------------------------


async def test_nothing_lasts_from_a_container_to_the_next(sandboxes: BubblewrapSandboxes) -> None:
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
        await printed(second, "import os; sorted(os.listdir('/mnt/data') + os.listdir('/tmp'))")
        == "[]"
    )
    assert await printed(second, "import os; os.environ.get('LD_PRELOAD')") == ""
    await first.run("import os; os._exit(0)")
    assert await printed(first, "import os; os.listdir('/mnt/data')") == "[]"


async def test_a_container_is_found_by_its_tenant_alone(sandboxes: BubblewrapSandboxes) -> None:
    mine = sandboxes.open("a")
    assert sandboxes.find("a", mine.id) is mine
    assert sandboxes.find("b", mine.id) is None


async def test_the_clock_and_the_name_of_the_machine_are_not_set(sandbox: Sandbox) -> None:
    await refused(sandbox, "import time; time.clock_settime(time.CLOCK_REALTIME, 0)")
    await refused(sandbox, "import socket; socket.sethostname('x')")


async def test_answers_that_are_none_cost_the_container_alone(sandbox: Sandbox) -> None:
    forge = """
import os
line = max(int(each) for each in os.listdir('/proc/self/fd') if
           os.path.lexists('/proc/self/fd/' + each) and
           'socket' in os.readlink('/proc/self/fd/' + each))
"""
    ran = await sandbox.run(forge + "os.write(line, b'\\xff\\xff\\xff\\xff')")
    assert "started anew" in ran.logs
    ran = await sandbox.run(forge + "os.write(line, b'\\0\\0\\0\\4oops')")
    assert "started anew" in ran.logs
    assert await printed(sandbox, "1 + 1") == "2"


# --- 20: the end ----------------------------------------------------------------------------------

SERVER = """
import asyncio, sys
from antiphon.adapters.sandboxes.bubblewrap import BubblewrapSandboxes
from antiphon.adapters.sandboxes.bwrap_command import Limits
from antiphon.adapters.ids import new_id

async def main():
    sandboxes = BubblewrapSandboxes(
        python="/usr/bin/python3", new_id=new_id, limits=Limits(commands=True), timeout_s=60
    )
    await sandboxes.start()
    busy, idle = sandboxes.open("a"), sandboxes.open("a")
    await idle.run("1")
    async for _ in busy.command("setsid sleep 60 & echo on; sleep 60"):
        print("ready", flush=True)

asyncio.run(main())
"""


async def test_nothing_runs_on_after_the_server_was_killed() -> None:
    pids = await asyncio.to_thread(_killed_server)
    assert pids
    deadline = time.monotonic() + 1
    while alive := [pid for pid in pids if _lives(pid)]:
        assert time.monotonic() < deadline, alive
        await asyncio.sleep(0.01)


def _killed_server() -> list[int]:
    """Start a server with two sandboxes, kill it, and return the processes that it had."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        pids = list(_children(server.pid))
        server.send_signal(signal.SIGKILL)
    return pids


def _children(pid: int) -> Iterator[int]:
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        yield int(child)
        yield from _children(int(child))


def _lives(pid: int) -> bool:
    try:
        return "State:\tZ" not in _status(pid)
    except OSError:
        return False


def _status(pid: int) -> str:
    return Path(f"/proc/{pid}/status").read_text()
