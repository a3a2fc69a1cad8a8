"""The self-test that a sandbox must pass before this machine runs any code of a model.

Each attempt is code that ends with a value if it broke out, and with nothing or an error if it did
not. The suite in tests/adapters/sandboxes tries more.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing

from antiphon.adapters.sandboxes.bwrap_command import ENVIRONMENT, Limits
from antiphon.adapters.sandboxes.process import SandboxProcess
from antiphon.application.ports import CommandExit
from antiphon.domain.errors import SandboxError

LIMITS = Limits(memory_bytes=512 * 1024**2, disk_bytes=8 * 1024**2)
ANSWER_S = 15.0
SPIN_S = 0.2

ATTEMPTS: Mapping[str, str] = {
    "It can read an environment that is not its own.": """
import glob, os
names = set()
for path in glob.glob("/proc/[0-9]*/environ"):
    try:
        variables = open(path, "rb").read().split(b"\\0")
    except OSError:
        continue
    names |= {each.partition(b"=")[0].decode("ascii", "replace") for each in variables}
(names | set(os.environ)) - expected_names - {"", "PWD", "LC_CTYPE"} or None
""",
    "It sees files of this machine.": """
import os
def unexpected(folder):
    for path in (os.path.join(folder, name) for name in os.listdir(folder)):
        if path not in visible_paths:
            is_parent = any(each.startswith(path + "/") for each in visible_paths)
            yield from unexpected(path) if is_parent else [path]
list(unexpected("/")) or None
""",
    "It can write outside its folder.": """
import os
writable = []
for folder in ("/", "/usr/lib", "/dev", "/mnt"):
    try:
        os.mkdir(folder + "/written")
        writable.append(folder)
    except OSError:
        pass
writable or None
""",
    "It reaches a network.": """
import socket
reachable = []
for family in (socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, socket.AF_PACKET):
    try:
        socket.socket(family, socket.SOCK_RAW if family == socket.AF_PACKET else socket.SOCK_DGRAM)
        reachable.append(family)
    except OSError:
        pass
try:
    socket.socket(socket.AF_UNIX).connect(abstract_socket)
    reachable.append("abstract")
except OSError:
    pass
reachable or None
""",
    "It can make namespaces or mounts.": """
import ctypes
libc = ctypes.CDLL(None)
[name for name, status in (
    ("unshare", libc.unshare(0x10000000)),
    ("mount", libc.mount(b"none", b"/tmp", b"tmpfs", 0, None)),
) if status == 0] or None
""",
    "It can read the memory of processes.": """
import ctypes, os
ctypes.CDLL(None).process_vm_readv(os.getpid(), None, 0, None, 0, 0) == 0 or None
""",
    "It can start processes.": """
import os
try:
    child = os.fork()
except OSError:
    child = -1
if child == 0:
    os._exit(0)
child > 0 or None
""",
    "It can start any number of threads.": """
import threading
stop, threads = threading.Event(), []
try:
    for _ in range(300):
        thread = threading.Thread(target=stop.wait)
        thread.start()
        threads.append(thread)
except RuntimeError:
    pass
stop.set()
len(threads) >= 300 or None
""",
    "It can take all memory.": """
try:
    size = len(bytearray(1024**3))
except MemoryError:
    size = None
size
""",
    "It can fill a disk.": """
import os
size = None
try:
    with open("/mnt/data/large", "wb") as file:
        for _ in range(64):
            file.write(bytes(1024**2))
    size = os.path.getsize("/mnt/data/large")
except OSError:
    pass
os.remove("/mnt/data/large")
size
""",
    "It keeps privileges.": """
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines()
              if ":\\t" in line)
[status[name] for name in ("CapEff", "CapPrm", "CapBnd") if int(status[name], 16)] + [
    name for name, value in (("NoNewPrivs", "1"), ("Seccomp", "2")) if status[name] != value
] or None
""",
}

STARTS_PROCESSES = "It can start processes."
"""Not tried in a sandbox with a shell; there only the number of processes is limited."""

MANY_PROCESSES = """
import os, time
children = []
try:
    for _ in range(300):
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        children.append(child)
except OSError:
    pass
len(children) >= 300 or None
"""
BACKGROUND_PROCESSES = "setsid sleep 60 & (trap '' TERM HUP; sleep 60) & exit 0"

SPIN = """
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
while True:
    pass
"""
CANNOT_BE_STOPPED = "It cannot be stopped."
STARTS_MANY_PROCESSES = "It can start any number of processes."
LEAVES_PROCESSES = "Its commands leave processes behind."


async def run(
    start: Callable[[], Awaitable[SandboxProcess]], visible_paths: Sequence[str]
) -> list[str]:
    """Return a sentence for each breach, or nothing if the sandbox is safe.

    `start` starts the sandbox, which should see no paths but `visible_paths`.
    Raises: SandboxError if it does not start.
    """
    process = await start()
    attempts = dict(ATTEMPTS)
    if process.commands is not None:
        del attempts[STARTS_PROCESSES]
        attempts[STARTS_MANY_PROCESSES] = MANY_PROCESSES
    address = f"\0antiphon-{secrets.token_hex(16)}"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen()
        names = {*ENVIRONMENT, "PATH", "PYTHONPATH"}
        variables = (
            f"abstract_socket, expected_names, visible_paths = "
            f"{address!r}, {names!r}, {set(visible_paths)!r}\n"
        )
        try:
            breaches = [
                breach
                for breach, code in attempts.items()
                if await _has_value(process, variables + code)
            ]
            breaches += await _breaches_of_commands(process)
            return breaches if await _can_be_stopped(process) else [*breaches, CANNOT_BE_STOPPED]
        except (SandboxError, TimeoutError) as error:
            return [f"An attempt of the self-test did not end: {error}"]
        finally:
            await process.kill()


async def _has_value(process: SandboxProcess, code: str) -> bool:
    """Whether the code ends with a value."""
    await process.ask(
        {"do": "run", "code": code}, max_body_bytes=LIMITS.all_images_bytes, timeout_s=ANSWER_S
    )
    await process.settle()
    output = process.output()
    return bool(output.strip()) and "Traceback" not in output


async def _breaches_of_commands(process: SandboxProcess) -> list[str]:
    if process.commands is None:
        return []
    running = process.commands.run(
        BACKGROUND_PROCESSES, timeout_s=ANSWER_S, limit_s=ANSWER_S, watch=process.check
    )
    async with aclosing(running):
        outputs = [each async for each in running]
    try:
        await process.settle()
    except SandboxError as error:
        return [f"{LEAVES_PROCESSES} {error}"]
    has_run = bool(outputs) and outputs[-1] == CommandExit(code=0)
    return [] if has_run else [f"Its commands do not run: {outputs!r}."]


async def _can_be_stopped(process: SandboxProcess) -> bool:
    try:
        await process.ask({"do": "run", "code": SPIN}, timeout_s=SPIN_S)
    except TimeoutError:
        await process.kill()
        return True
    return False
