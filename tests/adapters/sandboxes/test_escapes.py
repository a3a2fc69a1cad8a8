"""Attempts to break out of a sandbox or to exceed its limits; a test fails if its attempt succeeds.

Code prints `OUT` if it succeeds. The tests also check the error, because an attempt that fails for
another reason would prove nothing.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.sandboxes.conftest import DISK, content_of, make_sandboxes
from tests.support.machine_speed import slowness
from tests.support.processes import descendants_of, is_process_alive

from antiphon.adapters.sandboxes.bubblewrap import BubblewrapSandboxes
from antiphon.application.ports import Sandbox
from antiphon.domain.errors import SandboxError

pytestmark = [pytest.mark.faults, pytest.mark.asyncio(loop_scope="module")]


@pytest.fixture(scope="module", params=[False, True], ids=["alone", "with a shell"])
def with_commands(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


REFUSED = ("PermissionError", "FileNotFoundError", "OSError")


async def assert_refused(sandbox: Sandbox, code: str, *errors: str) -> None:
    result = await sandbox.run(f"{code}\nprint('OUT')")
    assert "OUT" not in result.logs.splitlines()
    assert any(name in result.logs.splitlines()[-1] for name in errors or REFUSED), result.logs


async def output_of(sandbox: Sandbox, code: str) -> str:
    """Run code that must succeed."""
    result = await sandbox.run(code)
    assert not result.is_error, result.logs
    return result.logs.strip()


# --- what a sandbox can see -----------------------------------------------------------------------


async def test_no_process_has_the_environment_of_the_server(
    monkeypatch: pytest.MonkeyPatch, sandbox: Sandbox, with_commands: bool
) -> None:
    monkeypatch.setenv("ANTIPHON_SECRET", "sesame-9921")
    code = """
import glob, os
environments = [open(path, 'rb').read() for path in glob.glob('/proc/[0-9]*/environ')]
print(len(environments), b'sesame' in b''.join(environments), 'ANTIPHON_SECRET' in os.environ)
"""
    assert await output_of(sandbox, code) == f"{1 + with_commands} False False"


async def test_it_sees_only_its_own_processes(sandbox: Sandbox, with_commands: bool) -> None:
    code = "import os; [each for each in os.listdir('/proc') if each.isdigit()], os.getuid()"
    own = ["1", "2"] if with_commands else ["1"]
    assert await output_of(sandbox, code) == f"({own}, 65534)"


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "/etc/shadow", "/root", "/home", "/var/log", "/proc/1/root/etc/passwd", "/sys"],
)
async def test_it_cannot_see_files_of_this_machine(sandbox: Sandbox, path: str) -> None:
    await assert_refused(sandbox, f"import os; os.stat({path!r})", "FileNotFoundError")


async def test_it_cannot_see_files_of_the_server(sandbox: Sandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    await assert_refused(sandbox, f"open({str(secret)!r})", "FileNotFoundError")


@pytest.mark.parametrize("folder", ["/", "/usr/lib", "/dev", "/mnt", "/proc/1"])
async def test_it_can_write_only_to_its_own_folders(sandbox: Sandbox, folder: str) -> None:
    await assert_refused(sandbox, f"open({folder!r} + '/new', 'w')")


@pytest.mark.parametrize(
    "path", ["/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/1/oom_score_adj_x"]
)
async def test_it_cannot_change_settings_of_the_kernel(sandbox: Sandbox, path: str) -> None:
    await assert_refused(sandbox, f"open({path!r}, 'w').write('1')")


async def test_it_inherits_no_descriptors_but_its_own_socket(sandbox: Sandbox) -> None:
    with open("/etc/hostname") as inheritable:  # noqa: ASYNC230
        os.set_inheritable(inheritable.fileno(), True)
        code = """
import os
for each in sorted(os.listdir('/proc/self/fd'), key=int):
    try:
        print(os.readlink('/proc/self/fd/' + each).split(':')[0])
    except FileNotFoundError:
        pass
"""
        assert (await output_of(sandbox, code)).split() == ["/dev/null", "pipe", "pipe", "socket"]


# --- networks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["AF_INET", "AF_INET6", "AF_PACKET", "AF_NETLINK", "AF_VSOCK"])
@pytest.mark.parametrize("kind", ["SOCK_STREAM", "SOCK_DGRAM", "SOCK_RAW"])
async def test_it_cannot_open_sockets_to_the_outside(
    sandbox: Sandbox, family: str, kind: str
) -> None:
    await assert_refused(
        sandbox, f"import socket; socket.socket(socket.{family}, socket.{kind})", "PermissionError"
    )


async def test_it_cannot_resolve_names(sandbox: Sandbox) -> None:
    await assert_refused(
        sandbox, "import socket; socket.getaddrinfo('example.com', 80)", "gaierror"
    )


async def test_it_cannot_reach_abstract_sockets_of_this_machine(sandbox: Sandbox) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"\0sink-{os.getpid()}")
        listening.listen()
        name = listening.getsockname().decode()
        await assert_refused(
            sandbox,
            f"import socket; socket.socket(socket.AF_UNIX).connect({name!r})",
            "ConnectionRefusedError",
        )


# --- system calls ---------------------------------------------------------------------------------

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


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the call numbers are for x86_64")
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
async def test_dangerous_system_calls_are_denied(sandbox: Sandbox, call: str) -> None:
    code = f"""
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
result = {call}
code = ctypes.get_errno()
(result, errno.errorcode.get(code))
"""
    denied = ("(-1, 'EPERM')", "(-1, 'EINVAL')") if "setuid" in call else ("(-1, 'EPERM')",)
    assert await output_of(sandbox, code) in denied


async def test_it_has_no_capabilities_and_cannot_gain_any(sandbox: Sandbox) -> None:
    code = """
names = ('CapEff', 'CapPrm', 'CapBnd', 'CapAmb', 'NoNewPrivs', 'Seccomp')
for line in open('/proc/self/status'):
    name, _, value = line.partition(':')
    if name in names:
        print(name, int(value, 16))
"""
    status = dict(line.split() for line in (await output_of(sandbox, code)).splitlines())
    assert status.pop("NoNewPrivs") == "1"
    assert status.pop("Seccomp") == "2"
    assert set(status.values()) == {"0"}


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


async def test_the_number_of_threads_is_limited(sandbox: Sandbox) -> None:
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
    assert await output_of(sandbox, code) == "True"


async def test_the_memory_is_limited(sandbox: Sandbox) -> None:
    await assert_refused(sandbox, "data = bytearray(10 * 1024**3)", "MemoryError")
    assert await output_of(sandbox, "1 + 1") == "2"
    await assert_refused(
        sandbox, "data = []\nwhile True: data.append(bytearray(2**20))", "MemoryError"
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


async def test_it_cannot_make_devices(sandbox: Sandbox) -> None:
    await assert_refused(sandbox, "import os; os.mknod('/mnt/data/sda', 0o60600, os.makedev(8, 0))")


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


async def test_it_cannot_set_the_clock_or_the_host_name(sandbox: Sandbox) -> None:
    await assert_refused(sandbox, "import time; time.clock_settime(time.CLOCK_REALTIME, 0)")
    await assert_refused(sandbox, "import socket; socket.sethostname('x')")


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
