"""Short programs of the server's own, which read content that nobody vouches for.

A file can be made to break the library that reads it. So the library runs in a process that can do
nothing else: it has an empty environment, no inherited descriptors, limits of time, memory and
files, a lower priority than the server, and, where bubblewrap works, no network, no files but
Python's own, and no other user's rights. Where it does not work, the process still has the rest,
and Landlock, where the kernel has it, takes away all other files, TCP, and the sight of the
server's own environment and memory.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path

from antiphon.adapters.processes import end_process, start_process
from antiphon.adapters.sandboxes import seccomp
from antiphon.adapters.sandboxes.bwrap_command import (
    LIBRARIES,
    NOBODY,
    Interpreter,
    find_launcher,
    own_program_command,
)
from antiphon.adapters.sandboxes.memory_file import memory_file
from antiphon.domain.errors import SandboxError, SettingsError

logger = logging.getLogger("antiphon.sandboxes")

READY = b"ready\n"
READ_BYTES = 64 * 1024
START_S = 10.0
END_S = 1.0
"""How long a process that has closed its output may take to end."""

KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
"""The exit statuses at the limit of CPU time, without bubblewrap and with it."""

MAX_DESCRIPTORS = 64

_PRELUDE = """
import json, os, sys
if hasattr(os, "nice"):  # not on Windows
    os.nice(10)
options = json.loads(sys.argv[1])
sys.path += options["packages"]
for name in options["modules"]:
    __import__(name)
try:
    import resource
except ImportError:  # on Windows
    pass
else:
    for name, limit in options["limits"].items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (limit, limit))
    if options["user"] is not None and os.geteuid() == 0:
        os.setgroups([])
        os.setgid(options["user"])
        os.setuid(options["user"])
if options["readable"]:
    import ctypes, struct
    libc = ctypes.CDLL(None, use_errno=True)
    create_ruleset, add_rule, restrict_self = 444, 445, 446
    version = libc.syscall(create_ruleset, None, 0, 1)
    if version > 0:
        files, tcp, read_only = (1 << 13) - 1, 3, 1 << 2 | 1 << 3
        handled = struct.pack("QQ", files, tcp) if version >= 4 else struct.pack("Q", files)
        rules = libc.syscall(create_ruleset, handled, len(handled), 0)
        for path in filter(os.path.exists, options["readable"]):
            rule = struct.pack("=Qi", read_only, os.open(path, os.O_PATH))
            libc.syscall(add_rule, rules, 1, rule, 0)
        libc.prctl(38, 1, 0, 0, 0)
        libc.syscall(restrict_self, rules, 0)
        os.closerange(3, 64)
sys.stdout.buffer.write(b"ready\\n")
sys.stdout.buffer.flush()
"""
"""Imports what the program needs, then gives up every right, before it reads the content."""


class ConfinedPython:
    """Runs programs that use `modules`, with the least rights that this machine can enforce.

    `is_sandboxed` false leaves bubblewrap out, as on a machine where it does not work.
    """

    def __init__(
        self,
        modules: Sequence[str],
        *,
        memory_bytes: int,
        cpu_s: int,
        is_sandboxed: bool = True,
    ) -> None:
        self._modules = modules
        self._limits: Mapping[str, int] = {
            "RLIMIT_AS": memory_bytes,
            "RLIMIT_CPU": cpu_s,
            "RLIMIT_NOFILE": MAX_DESCRIPTORS,
            "RLIMIT_FSIZE": 0,
            "RLIMIT_CORE": 0,
            "RLIMIT_NPROC": 0,
        }
        self._launchers: list[Sequence[str]] | None = None if is_sandboxed else [()]

    async def run(self, program: str, content: bytes, *, max_bytes: int) -> bytes:
        """Run a program with `content` as its input, and return its output.

        Raises: SandboxError if the program fails, or writes more than `max_bytes`.
        """
        if self._launchers is None:
            self._launchers = [*_launchers(), ()]
        for launcher in list(self._launchers):
            output = await self._run(launcher, program, content, max_bytes)
            if output is not None:
                return output
            if launcher and launcher in self._launchers:
                self._launchers.remove(launcher)
                if self._launchers == [()]:
                    logger.warning("bubblewrap does not work here: PDFs are read without a sandbox")
        raise SandboxError("The process does not start.")

    async def open(self, program: str) -> ConfinedProcess:
        """Start a program that answers one line after another, always in a sandbox.

        Raises: SandboxError if it does not start, as where bubblewrap does not work.
        """
        for launcher in _launchers():
            process = await self._start(launcher, _PRELUDE + program)
            confined = ConfinedProcess(process)
            try:
                async with asyncio.timeout(START_S):
                    if await confined.receive(len(READY)) == READY:
                        return confined
            except (TimeoutError, SandboxError):
                pass
            except BaseException:
                await confined.aclose()
                raise
            await confined.aclose()
        raise SandboxError("The sandbox does not start: bubblewrap does not work here.")

    async def _run(
        self, launcher: Sequence[str], program: str, content: bytes, max_bytes: int
    ) -> bytes | None:
        """Return the output, or None if the launcher does not work on this machine."""
        process = await self._start(launcher, _PRELUDE + program)
        try:
            output = await _communicate(process, content, len(READY) + max_bytes)
        finally:
            await end_process(process)
        if not output.startswith(READY):
            return None
        if process.returncode != 0:
            raise SandboxError("The process failed.")
        return output[len(READY) :]

    async def _start(self, launcher: Sequence[str], program: str) -> Process:
        with ExitStack() as stack:
            python = _own_interpreter(self._modules)
            options = self._options(python, launcher)
            words: list[str] = [sys.executable, "-I", "-B", "-c", program, options]
            descriptors: tuple[int, ...] = ()
            if launcher:
                filter_file = stack.enter_context(memory_file(seccomp.program()))
                descriptors = (filter_file,)
                words = own_program_command(launcher, python, filter_file, words[1:])
            return await start_process(
                *words,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env={} if launcher else _environment(),
                cwd="/",
                pass_fds=descriptors,
                limit=READ_BYTES,
            )

    def _options(self, python: Interpreter, launcher: Sequence[str]) -> str:
        libraries = (python.library, *python.packages, *LIBRARIES)
        return json.dumps(
            {
                "modules": self._modules,
                "packages": python.packages,
                "readable": libraries if sys.platform == "linux" and not launcher else (),
                "limits": self._limits,
                "user": int(NOBODY) if not launcher and _is_readable_by_all() else None,
            }
        )


class OutOfTime(SandboxError):
    """The process was ended at its limit of CPU time."""


class ConfinedProcess:
    """A program in a sandbox that reads a line and answers with a line, as often as it is asked."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._rest = bytearray()

    async def ask(self, line: bytes, *, max_bytes: int) -> bytes:
        """Send a line, and return the line that answers it.

        Raises: OutOfTime; SandboxError if the process ends, or writes a line of more than
        `max_bytes`.
        """
        assert self._process.stdin is not None
        with suppress(ConnectionError):
            self._process.stdin.write(line + b"\n")
            await self._process.stdin.drain()
        return await self.receive(max_bytes)

    async def receive(self, max_bytes: int) -> bytes:
        """Return the next line, with its end. Raises: OutOfTime, SandboxError."""
        assert self._process.stdout is not None
        searched = 0
        while (end := self._rest.find(b"\n", searched) + 1) == 0:
            searched = len(self._rest)
            chunk = await self._process.stdout.read(READ_BYTES)
            if not chunk:
                raise await self._find_end()
            self._rest += chunk
            if len(self._rest) > max_bytes + READ_BYTES:  # what follows the line counts too
                raise SandboxError("The process wrote too much.")
        line = bytes(memoryview(self._rest)[:end])
        del self._rest[:end]
        if len(line) > max_bytes:
            raise SandboxError("The process wrote too much.")
        return line

    async def _find_end(self) -> SandboxError:
        """Return why the process writes no more."""
        with suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                if await self._process.wait() in KILLED:
                    return OutOfTime("The process used up its CPU time.")
        return SandboxError("The process ended.")

    async def aclose(self) -> None:
        """End the process, with all that runs in its sandbox. It may be called again."""
        await end_process(self._process)


async def _communicate(
    process: asyncio.subprocess.Process, content: bytes, max_bytes: int
) -> bytes:
    """Write the content, and return the output. Raises: SandboxError if there is too much of it."""
    assert process.stdin is not None
    assert process.stdout is not None
    writing = asyncio.create_task(_write(process.stdin, content))
    output = bytearray()
    try:
        while chunk := await process.stdout.read(READ_BYTES):
            output += chunk
            if len(output) > max_bytes:
                raise SandboxError("The process wrote too much.")
    finally:
        writing.cancel()
        await asyncio.wait({writing})
    await process.wait()
    return bytes(output)


async def _write(stdin: asyncio.StreamWriter, content: bytes) -> None:
    with suppress(ConnectionError):
        stdin.write(content)
        await stdin.drain()
        stdin.close()


def _launchers() -> Iterator[Sequence[str]]:
    """Yield the ways to start a sandbox, the one with the fewest rights first."""
    if sys.platform != "linux" or not seccomp.is_supported():
        return
    with suppress(SettingsError):
        yield find_launcher()
    if os.geteuid() == 0 and (bwrap := shutil.which("bwrap")):
        # Nobody but root may be able to read this Python.
        yield [bwrap]


def _own_interpreter(modules: Sequence[str]) -> Interpreter:
    """Return the Python that runs this server, with the folders that have these modules."""
    folders = [folder for folder in sys.path if folder.endswith("-packages")]
    for module in modules:
        spec = find_spec(module)
        if spec is not None and spec.origin is not None and spec.submodule_search_locations:
            folders.append(str(Path(spec.origin).parents[1]))
    library = os.path.join(sys.base_prefix, "lib")
    return Interpreter(
        program=os.path.realpath(sys.executable),
        library=library,
        packages=tuple(dict.fromkeys(folders)),
    )


def _is_readable_by_all() -> bool:
    """Whether every user can read this Python, which may load more of itself later."""
    spec = find_spec("encodings")
    path = Path(spec.origin or "/") if spec is not None else Path("/")
    folders = [*path.parents, *Path(sys.prefix).parents, Path(sys.prefix)]
    return all(folder.stat().st_mode & 0o001 for folder in folders)


def _environment() -> dict[str, str]:
    # Without them, some Pythons do not start.
    names = ("LD_LIBRARY_PATH", "SYSTEMROOT")
    return {name: os.environ[name] for name in names if name in os.environ}
