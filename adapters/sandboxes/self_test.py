"""What a sandbox has to hold before any code of a model runs on this machine.

Each attempt is code that ends with a value if it got through a wall, and with nothing or an error
if it did not. The suite in tests/sandbox tries more.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing

from antiphon.adapters.sandboxes.bwrap_command import ENVIRONMENT, Limits
from antiphon.adapters.sandboxes.process import Process
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
        found = open(path, "rb").read().split(b"\\0")
    except OSError:
        continue
    names |= {each.partition(b"=")[0].decode("ascii", "replace") for each in found}
(names | set(os.environ)) - known - {"", "PWD", "LC_CTYPE"} or None
""",
    "It sees files of this machine.": """
import os
def strange(folder):
    for path in (os.path.join(folder, name) for name in os.listdir(folder)):
        if path not in shown:
            leads_on = any(each.startswith(path + "/") for each in shown)
            yield from strange(path) if leads_on else [path]
list(strange("/")) or None
""",
    "It can write outside its folder.": """
import os
found = []
for folder in ("/", "/usr/lib", "/dev", "/mnt"):
    try:
        os.mkdir(folder + "/written")
        found.append(folder)
    except OSError:
        pass
found or None
""",
    "It reaches a network.": """
import socket
found = []
for family in (socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, socket.AF_PACKET):
    try:
        socket.socket(family, socket.SOCK_RAW if family == socket.AF_PACKET else socket.SOCK_DGRAM)
        found.append(family)
    except OSError:
        pass
try:
    socket.socket(socket.AF_UNIX).connect(abstract)
    found.append("abstract")
except OSError:
    pass
found or None
""",
    "It can make namespaces or mounts.": """
import ctypes
libc = ctypes.CDLL(None)
[name for name, done in (
    ("unshare", libc.unshare(0x10000000)),
    ("mount", libc.mount(b"none", b"/tmp", b"tmpfs", 0, None)),
) if done == 0] or None
""",
    "It can look into processes.": """
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
    "It can start threads without end.": """
import threading
stop, started = threading.Event(), []
try:
    for _ in range(300):
        each = threading.Thread(target=stop.wait)
        each.start()
        started.append(each)
except RuntimeError:
    pass
stop.set()
len(started) >= 300 or None
""",
    "It can take all memory.": """
try:
    found = len(bytearray(1024**3))
except MemoryError:
    found = None
found
""",
    "It can fill a disk.": """
import os
found = None
try:
    with open("/mnt/data/large", "wb") as file:
        for _ in range(64):
            file.write(bytes(1024**2))
    found = os.path.getsize("/mnt/data/large")
except OSError:
    pass
os.remove("/mnt/data/large")
found
""",
    "It keeps rights.": """
about = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines()
             if ":\\t" in line)
[about[name] for name in ("CapEff", "CapPrm", "CapBnd") if int(about[name], 16)] + [
    name for name, value in (("NoNewPrivs", "1"), ("Seccomp", "2")) if about[name] != value
] or None
""",
}

NO_PROCESSES = "It can start processes."
"""What a sandbox without a shell has to hold; with one there is an end to their number."""

MANY_PROCESSES = """
import os, time
started = []
try:
    for _ in range(300):
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        started.append(child)
except OSError:
    pass
len(started) >= 300 or None
"""
LEFT_BEHIND = "setsid sleep 60 & (trap '' TERM HUP; sleep 60) & exit 0"

SPIN = """
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
while True:
    pass
"""
ENDLESS = "It cannot be stopped."
ENDLESS_PROCESSES = "It can start processes without end."
LEAVES = "Its commands leave processes behind."


async def run(start: Callable[[], Awaitable[Process]], shown: Sequence[str]) -> list[str]:
    """Return what did not hold, none if all did; `start` starts a sandbox, in which there are the
    paths `shown`.

    Raises: SandboxError, if none can be started.
    """
    process = await start()
    attempts = dict(ATTEMPTS)
    if process.commands is not None:
        del attempts[NO_PROCESSES]
        attempts[ENDLESS_PROCESSES] = MANY_PROCESSES
    name = f"\0antiphon-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(name)
        listening.listen()
        names = {*ENVIRONMENT, "PATH", "PYTHONPATH"}
        known = f"abstract, known, shown = {name!r}, {names!r}, {set(shown)!r}\n"
        try:
            found = [wall for wall, code in attempts.items() if await _got(process, known + code)]
            found += [LEAVES] if await _leaves_processes(process) else []
            return found if await _is_stopped(process) else [*found, ENDLESS]
        except (SandboxError, TimeoutError) as error:
            return [f"A test of it did not end: {error}"]
        finally:
            await process.kill()


async def _got(process: Process, code: str) -> bool:
    """Whether the code ended with a value."""
    await process.ask({"do": "run", "code": code}, timeout_s=ANSWER_S)
    await process.settle()
    printed = process.output()
    return bool(printed.strip()) and "Traceback" not in printed


async def _leaves_processes(process: Process) -> bool:
    if process.commands is None:
        return False
    running = process.commands.run(
        LEFT_BEHIND, timeout_s=ANSWER_S, limit_s=ANSWER_S, watch=process.check
    )
    async with aclosing(running):
        ended = [each async for each in running if isinstance(each, CommandExit)]
    try:
        await process.settle()
    except SandboxError:
        return True
    return ended != [CommandExit(code=0)]


async def _is_stopped(process: Process) -> bool:
    try:
        await process.ask({"do": "run", "code": SPIN}, timeout_s=SPIN_S)
    except TimeoutError:
        await process.kill()
        return True
    return False
