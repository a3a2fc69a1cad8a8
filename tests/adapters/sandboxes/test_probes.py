"""Attempts of code to reach what is outside of its sandbox; a test fails if its attempt succeeds.

The code is that of the code interpreter, and that of somebody who broke out of the engine in which
programs run. It prints `OUT` if it succeeds. The tests also check the error, because an attempt
that fails for another reason would prove nothing.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from msgspec import Struct
from tests.adapters.sandboxes.conftest import (
    MEMORY,
    Runs,
    assert_refused,
    make_sandboxes,
    output_of,
)

from antiphon.adapters.sandboxes.confined_python import ConfinedProcess, ConfinedPython
from antiphon.adapters.sandboxes.quickjs import MODULE

pytestmark = [pytest.mark.faults, pytest.mark.asyncio(loop_scope="module")]

DESCRIPTORS = {"alone": 4, "with a shell": 4, "a program": 3}
"""By the kind of the sandbox, how many its code has: its input and outputs, and a socket."""

INTERPRETER = """
import ast, contextlib, io, traceback
while line := sys.stdin.buffer.readline():
    output, is_error = io.StringIO(), False
    with contextlib.redirect_stdout(output):
        try:
            body = ast.parse(json.loads(line)).body
            last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
            names = {}
            exec(compile(ast.Module(body, []), "code", "exec"), names)
            if last is not None:
                value = eval(compile(ast.Expression(last.value), "code", "eval"), names)
                if value is not None:
                    print(repr(value))
        except BaseException:
            is_error = True
            print(traceback.format_exc())
    answer = {"logs": output.getvalue().strip(), "is_error": is_error}
    print(json.dumps(answer), flush=True)
"""
"""Runs code in the process of a program, as a code interpreter would."""


class Ran(Struct, frozen=True):
    logs: str
    is_error: bool


class ProcessOfPrograms:
    """The process in which the engine of programs would run."""

    def __init__(self, process: ConfinedProcess) -> None:
        self._process = process

    async def run(self, code: str) -> Ran:
        answer = await self._process.ask(json.dumps(code).encode(), max_bytes=10**6)
        return Ran(**json.loads(answer))


@pytest.fixture(scope="module", params=DESCRIPTORS)
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def with_commands(place: str) -> bool:
    return place == "with a shell"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox(_bubblewrap: None, place: str, with_commands: bool) -> AsyncIterator[Runs]:
    if place == "a program":
        python = ConfinedPython([MODULE], memory_bytes=MEMORY, cpu_s=60)
        process = await python.open(INTERPRETER)
        yield ProcessOfPrograms(process)
        await process.aclose()
        return
    sandboxes = make_sandboxes(commands=with_commands)
    await sandboxes.start()
    yield sandboxes.open("tenant")
    await sandboxes.aclose()


# --- what a sandbox can see -----------------------------------------------------------------------


async def test_no_process_has_the_environment_of_the_server(
    monkeypatch: pytest.MonkeyPatch, sandbox: Runs, with_commands: bool
) -> None:
    monkeypatch.setenv("ANTIPHON_SECRET", "sesame-9921")
    code = """
import glob, os
environments = [open(path, 'rb').read() for path in glob.glob('/proc/[0-9]*/environ')]
print(len(environments), b'sesame' in b''.join(environments), 'ANTIPHON_SECRET' in os.environ)
"""
    assert await output_of(sandbox, code) == f"{1 + with_commands} False False"


async def test_it_sees_only_its_own_processes(sandbox: Runs, with_commands: bool) -> None:
    code = "import os; [each for each in os.listdir('/proc') if each.isdigit()], os.getuid()"
    own = ["1", "2"] if with_commands else ["1"]
    assert await output_of(sandbox, code) == f"({own}, 65534)"


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "/etc/shadow",
        "/root/.ssh",
        "/home",
        "/var/log",
        "/proc/1/root/etc/passwd",
        "/sys",
    ],
)
async def test_it_cannot_see_files_of_this_machine(sandbox: Runs, path: str) -> None:
    await assert_refused(sandbox, f"import os; os.stat({path!r})", "FileNotFoundError")


async def test_it_cannot_see_files_of_the_server(sandbox: Runs, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    await assert_refused(sandbox, f"open({str(secret)!r})", "FileNotFoundError")


@pytest.mark.parametrize("folder", ["/", "/usr/lib", "/dev", "/mnt", "/proc/1"])
async def test_it_can_write_only_to_its_own_folders(sandbox: Runs, folder: str) -> None:
    await assert_refused(sandbox, f"open({folder!r} + '/new', 'w')")


@pytest.mark.parametrize(
    "path", ["/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/1/oom_score_adj_x"]
)
async def test_it_cannot_change_settings_of_the_kernel(sandbox: Runs, path: str) -> None:
    await assert_refused(sandbox, f"open({path!r}, 'w').write('1')")


async def test_it_inherits_no_descriptors_but_its_own(sandbox: Runs, place: str) -> None:
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
        found = (await output_of(sandbox, code)).split()
        assert set(found) <= {"/dev/null", "pipe", "socket"}
        assert len(found) == DESCRIPTORS[place]


# --- networks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["AF_INET", "AF_INET6", "AF_PACKET", "AF_NETLINK", "AF_VSOCK"])
@pytest.mark.parametrize("kind", ["SOCK_STREAM", "SOCK_DGRAM", "SOCK_RAW"])
async def test_it_cannot_open_sockets_to_the_outside(sandbox: Runs, family: str, kind: str) -> None:
    await assert_refused(
        sandbox, f"import socket; socket.socket(socket.{family}, socket.{kind})", "PermissionError"
    )


async def test_it_cannot_resolve_names(sandbox: Runs) -> None:
    await assert_refused(
        sandbox, "import socket; socket.getaddrinfo('example.com', 80)", "gaierror"
    )


async def test_it_cannot_reach_abstract_sockets_of_this_machine(sandbox: Runs) -> None:
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
async def test_dangerous_system_calls_are_denied(sandbox: Runs, call: str) -> None:
    code = f"""
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
result = {call}
code = ctypes.get_errno()
(result, errno.errorcode.get(code))
"""
    denied = ("(-1, 'EPERM')", "(-1, 'EINVAL')") if "setuid" in call else ("(-1, 'EPERM')",)
    assert await output_of(sandbox, code) in denied


async def test_it_has_no_capabilities_and_cannot_gain_any(sandbox: Runs) -> None:
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


# --- limits --------------------------------------------------------------------------------------


async def test_the_number_of_threads_is_limited(sandbox: Runs) -> None:
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


async def test_the_memory_is_limited(sandbox: Runs) -> None:
    await assert_refused(sandbox, "data = bytearray(10 * 1024**3)", "MemoryError")
    assert await output_of(sandbox, "1 + 1") == "2"
    await assert_refused(
        sandbox, "data = []\nwhile True: data.append(bytearray(2**20))", "MemoryError"
    )


async def test_it_cannot_make_devices(sandbox: Runs) -> None:
    await assert_refused(sandbox, "import os; os.mknod('/mnt/data/sda', 0o60600, os.makedev(8, 0))")


async def test_it_cannot_set_the_clock_or_the_host_name(sandbox: Runs) -> None:
    await assert_refused(sandbox, "import time; time.clock_settime(time.CLOCK_REALTIME, 0)")
    await assert_refused(sandbox, "import socket; socket.sethostname('x')")
