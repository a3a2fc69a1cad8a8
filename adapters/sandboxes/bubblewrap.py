"""Sandboxes of bubblewrap (recipe.py, seccomp.py), one Python in each (kernel.py).

What comes out of a sandbox is not trusted: it is cut, decoded and given to the model, and answers
that are none cost the sandbox its life. Between calls its process is stopped, so that no thread
goes on while nobody waits. A sandbox is killed by killing its first process, which takes all that
is in its namespace along.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from antiphon.adapters.sandboxes import seccomp, self_test
from antiphon.adapters.sandboxes.bwrap_command import (
    MAX_PROCESSES,
    SCRATCH_BYTES,
    Interpreter,
    Limits,
    find_interpreter,
    programs,
    shown,
)
from antiphon.adapters.sandboxes.cgroups import Cgroups, Group, NoCgroup, find
from antiphon.adapters.sandboxes.process import Process
from antiphon.application.ports import (
    CodeResult,
    CommandExit,
    CommandOutput,
    Sandbox,
    Sandboxes,
    SandboxFile,
    SandboxSpec,
)
from antiphon.domain.errors import SandboxError, SandboxesBusy, SettingsError

logger = logging.getLogger("antiphon.sandboxes")

T = TypeVar("T")
StorageUsage = Literal["auto", "required", "off"]
"""Of a cgroup: where there is one, always, never."""

INTERRUPT_S = 1.0
"""What code that was interrupted gets to end, before its sandbox is killed."""

OVERHEAD_BYTES = 64 * 1024 * 1024
OVERHEAD_PROCESSES = 16
"""Of a cgroup, beyond what limits of processes allow: bubblewrap, and the kernel's own needs."""

CHUNK_BYTES = 2 * 1024 * 1024
MAX_FILES = 1000
KILLED_EXIT_CODE = 137
"""The exit code of a command that took its sandbox along, as shells have it."""

LOST = "Its container was started anew: its variables and files are gone."


class PoolLimits(Struct, frozen=True, kw_only=True):
    """How many sandboxes there may be; one that was not used for `idle_s` is closed."""

    per_tenant: int = 8
    all: int = 32
    idle_s: float = 20 * 60


class BubblewrapSandboxes(Sandboxes):
    """`python` is the program that runs in them. `idle_s` and the limits are the operator's."""

    def __init__(
        self,
        *,
        python: str,
        new_id: Callable[[str], str],
        limits: Limits = Limits(),  # noqa: B008
        pool_limits: PoolLimits = PoolLimits(),  # noqa: B008
        timeout_s: float = 120.0,
        interrupt_s: float = INTERRUPT_S,
        cgroup: StorageUsage = "auto",
        find_groups: Callable[[], Cgroups] = find,
    ) -> None:
        self._cgroup = cgroup
        self._find_groups = find_groups
        self._groups: Cgroups | None = None
        self.limited_by = "rlimits"
        """What sees to the limits: for people to read."""
        self._python = python
        self._new_id = new_id
        self._limits = limits
        self._pool_limits = pool_limits
        self._timeout_s = timeout_s
        self._interrupt_s = interrupt_s
        self._interpreter: Interpreter | None = None
        self._programs: list[str] = []
        self._open: dict[str, BubblewrapSandbox] = {}
        self._making_room = asyncio.Lock()
        self._closing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        if not seccomp.is_supported():
            raise SettingsError("The code interpreter runs on x86_64 and aarch64 only.")
        self._programs = programs()
        self._groups = self._found_groups()
        self._interpreter = await asyncio.to_thread(find_interpreter, self._python)
        limits = replace(self_test.LIMITS, commands=self._limits.commands)
        try:
            breaches = await self_test.run(self._starter(limits), shown(self._interpreter, limits))
        except SandboxError as error:
            raise SettingsError(f"The code interpreter does not run here. {error}") from None
        if breaches:
            raise SettingsError(
                "The code interpreter is not safe on this machine: " + " ".join(breaches)
            )
        logger.info("the sandboxes of containers hold; limits by %s", self.limited_by)
        self._closing = asyncio.create_task(self._close_idle())

    def _found_groups(self) -> Cgroups | None:
        if self._cgroup == "off":
            return None
        try:
            groups = self._find_groups()
        except NoCgroup as error:
            if self._cgroup == "required":
                raise SettingsError(
                    f"No cgroup can be made for containers: {error}. Let the service have one "
                    "(systemd: Delegate=memory pids, DelegateSubgroup=server), or leave "
                    "--code-cgroup out."
                ) from None
            self.limited_by = f"rlimits, without a cgroup ({error})"
            return None
        self.limited_by = "cgroup and rlimits"
        return groups

    async def aclose(self) -> None:
        if self._closing is not None:
            self._closing.cancel()
        for sandbox in list(self._open.values()):
            await sandbox.aclose()

    def open(self, tenant: str, kind: SandboxSpec = SandboxSpec()) -> Sandbox:  # noqa: B008
        memory = min(kind.memory_bytes or self._limits.memory_bytes, self._limits.memory_bytes)
        sandbox = BubblewrapSandbox(
            self._new_id("cntr"),
            tenant,
            kind.name,
            limits=replace(self._limits, memory_bytes=memory),
            idle_s=min(kind.idle_s or self._pool_limits.idle_s, self._pool_limits.idle_s),
            start=self._start_for,
            gone=self._forget,
            timeout_s=self._timeout_s,
            interrupt_s=self._interrupt_s,
        )
        self._open[sandbox.id] = sandbox
        self._forget_unused(tenant)
        return sandbox

    def _forget_unused(self, tenant: str) -> None:
        """Forget the oldest of those that were opened and never used: they cost no place."""
        unused = [
            each
            for each in self._open.values()
            if each.tenant == tenant and not each.has_place and not each.is_busy
        ]
        for each in unused[: -self._pool_limits.all]:
            del self._open[each.id]

    def find(self, tenant: str, sandbox_id: str) -> Sandbox | None:
        sandbox = self._open.get(sandbox_id)
        return sandbox if sandbox is not None and sandbox.tenant == tenant else None

    def list_all(self, tenant: str) -> list[Sandbox]:
        return [each for each in self._open.values() if each.tenant == tenant]

    async def _start_for(self, sandbox: BubblewrapSandbox) -> Process:
        async with self._making_room:
            await self._make_room(sandbox.tenant)
            sandbox.has_place = True
        return await self._starter(sandbox.limits)()

    def _starter(self, limits: Limits) -> Callable[[], Awaitable[Process]]:
        assert self._interpreter is not None, "start comes first"
        python = self._interpreter

        async def start() -> Process:
            group = self._group(limits)
            return await Process.start(self._programs, python, limits, group)

        return start

    def _group(self, limits: Limits) -> Group | None:
        if self._groups is None:
            return None
        files = limits.disk_bytes + SCRATCH_BYTES  # which are in memory
        try:
            return self._groups.make(
                memory_bytes=limits.memory_bytes + files + OVERHEAD_BYTES,
                processes=MAX_PROCESSES + OVERHEAD_PROCESSES,
            )
        except OSError as error:
            raise SandboxError(f"The container has no cgroup: {error.strerror}.") from None

    async def _make_room(self, tenant: str) -> None:
        """Close what was idle longest, where a limit is reached. Raises: SandboxesBusy."""
        for most, among in ((self._pool_limits.per_tenant, tenant), (self._pool_limits.all, None)):
            running = [
                each
                for each in self._open.values()
                if each.has_place and among in (None, each.tenant)
            ]
            if len(running) < most:
                continue
            idle = [each for each in running if not each.is_busy]
            if not idle:
                raise SandboxesBusy("All containers are in use; try again later.")
            await min(idle, key=lambda each: each.used_at).aclose()

    async def _close_idle(self) -> None:
        while True:
            soonest = min(
                (each.idle_s for each in self._open.values()), default=self._pool_limits.idle_s
            )
            await asyncio.sleep(min(10.0, soonest))
            now = time.monotonic()
            for each in list(self._open.values()):
                if not each.is_busy and each.used_at <= now - each.idle_s:
                    await each.aclose()

    def _forget(self, sandbox: BubblewrapSandbox) -> None:
        self._open.pop(sandbox.id, None)


class BubblewrapSandbox(Sandbox):
    """Starts its process with its first use, and a new one after one was lost."""

    def __init__(
        self,
        id: str,
        tenant: str,
        name: str,
        *,
        limits: Limits,
        idle_s: float,
        start: Callable[[BubblewrapSandbox], Awaitable[Process]],
        gone: Callable[[BubblewrapSandbox], None],
        timeout_s: float,
        interrupt_s: float,
    ) -> None:
        self.id = id
        self.tenant = tenant
        self.name = name
        self.created_at = int(time.time())
        self.limits = limits
        self.memory_bytes = limits.memory_bytes
        self.idle_s = idle_s
        self.used_at = time.monotonic()
        self._start = start
        self._gone = gone
        self._timeout_s = timeout_s
        self._interrupt_s = interrupt_s
        self._turn = asyncio.Lock()
        self._process: Process | None = None
        self._given: set[str] = set()
        self._closed = False
        self.has_place = False
        """Whether it counts among those that take of this machine."""

    @property
    def is_busy(self) -> bool:
        return self._turn.locked()

    @property
    def last_active_at(self) -> int:
        return int(time.time() - (time.monotonic() - self.used_at))

    async def start(self) -> None:
        async with self._using():
            pass

    async def run(self, code: str) -> CodeResult:
        async with self._using() as process:
            return await self._run(process, code)

    async def command(
        self, command: str, *, timeout_s: float | None = None
    ) -> AsyncGenerator[CommandOutput | CommandExit]:
        most = min(timeout_s or self._timeout_s, self._timeout_s)
        async with self._using() as process:
            running = self._command(process, command.encode("utf-8", "replace").decode(), most)
            async with aclosing(running):
                async for each in running:
                    yield each

    async def put(self, name: str, content: bytes) -> None:
        name = checked_name(name)
        for offset in range(0, max(1, len(content)), CHUNK_BYTES):
            piece = base64.b64encode(content[offset : offset + CHUNK_BYTES]).decode("ascii")
            await self._ask({"do": "put", "name": name, "offset": offset, "content": piece}, dict)
        self._given.add(name)

    async def files(self) -> list[SandboxFile]:
        if self._process is None:
            return []
        found = await self._ask({"do": "files", "most": MAX_FILES}, _files)
        return [replace(each, is_uploaded=each.path in self._given) for each in found]

    async def pieces(self, path: str) -> AsyncGenerator[bytes]:
        path = checked_path(path)
        offset = 0
        while True:
            request = {"do": "read", "name": path, "offset": offset, "size": CHUNK_BYTES}
            piece = await self._ask(request, _content)
            if piece or not offset:
                yield piece
            if len(piece) < CHUNK_BYTES:
                return
            offset += len(piece)

    async def remove(self, path: str) -> None:
        await self._ask({"do": "remove", "name": checked_path(path)}, dict)

    async def aclose(self) -> None:
        self._closed = True
        self._gone(self)
        await self._lose()

    async def _ask(self, request: dict[str, Any], read: Callable[[dict[str, Any]], T]) -> T:
        """Return what `read` makes of the answer."""
        async with self._using() as process:
            try:
                answer = await process.ask(request, timeout_s=self._timeout_s)
                await process.settle()
            except TimeoutError:
                raise SandboxError("The container does not answer.") from None
            if "error" not in answer:
                try:
                    return read(answer)
                except (KeyError, TypeError, ValueError, binascii.Error):
                    raise SandboxError("The container gave an answer that is none.") from None
        # Refused by its files, which costs it nothing.
        raise SandboxError(f"{request.get('name', 'The container')}: {answer['error']}.")

    @asynccontextmanager
    async def _using(self) -> AsyncGenerator[Process]:
        async with self._turn:
            self.used_at = time.monotonic()
            if self._closed:
                raise SandboxError("The container is closed.")
            process = self._process = self._process or await self._started()
            process.resume()
            try:
                yield process
            except BaseException:
                # Nobody knows what it was in the middle of.
                await self._lose()
                raise
            finally:
                self.used_at = time.monotonic()
                if self._process is process:
                    process.pause()

    async def _run(self, process: Process, code: str) -> CodeResult:
        code = code.encode("utf-8", "replace").decode()
        note = ""
        answer: dict[str, Any] = {"is_error": True}
        asking = asyncio.ensure_future(
            process.ask({"do": "run", "code": code}, timeout_s=self._timeout_s + self._interrupt_s)
        )
        try:
            await asyncio.wait({asking}, timeout=self._timeout_s)
            if not asking.done():
                note = f"The code was stopped after {self._timeout_s:g} seconds."
                process.interrupt()
            answer = await asking
            await process.settle()
        except (TimeoutError, SandboxError) as error:
            note = f"{note or error} {LOST}"
            logs = process.output()
            await self._lose()
        else:
            logs = process.output()
        finally:
            asking.cancel()
        told = "\n".join(part for part in (logs.rstrip("\n") if note else logs, note) if part)
        return CodeResult(
            logs=told, images=_images(answer), is_error=bool(answer.get("is_error", True))
        )

    async def _command(
        self, process: Process, command: str, timeout_s: float
    ) -> AsyncGenerator[CommandOutput | CommandExit]:
        if process.commands is None:
            raise SandboxError("There is no shell in containers here.")
        running = process.commands.run(
            command,
            timeout_s=timeout_s,
            limit_s=timeout_s + self._interrupt_s,
            watch=process.check,
        )
        ended = CommandExit(code=KILLED_EXIT_CODE)
        try:
            async with aclosing(running):
                async for each in running:
                    if isinstance(each, CommandExit):
                        ended = each
                    else:
                        yield each
            await process.settle()
        except (TimeoutError, SandboxError) as error:
            if isinstance(error, TimeoutError):
                ended = CommandExit(code=None)
            if rest := process.commands.rest():
                yield rest
            await self._lose()
            yield CommandOutput(stderr=f"{error or 'The command did not end.'} {LOST}\n")
        yield ended

    async def _started(self) -> Process:
        try:
            return await self._start(self)
        except BaseException:
            self.has_place = False
            raise

    async def _lose(self) -> None:
        process, self._process = self._process, None
        self.has_place = False
        self._given.clear()
        if process is not None:
            await process.kill()


def checked_name(name: str) -> str:
    """Return a file's name. Raises: SandboxError for what is no plain name."""
    try:
        long = len(name.encode()) > 255
    except UnicodeEncodeError:
        long = True
    if long or not name or name in (".", "..") or any(sign in name for sign in "/\0"):
        raise SandboxError(f"{name[:100]!r} cannot be the name of a file.")
    return name


def checked_path(path: str) -> str:
    """Return a path below a folder. Raises: SandboxError for what is none."""
    if len(path) > 4096:
        raise SandboxError(f"{path[:100]!r} cannot be the path of a file.")
    return "/".join(map(checked_name, path.split("/")))


def _files(answer: dict[str, Any]) -> list[SandboxFile]:
    return [
        SandboxFile(path=checked_path(str(path)), bytes=int(size), changed_at=int(changed))
        for path, size, changed in answer["files"][:MAX_FILES]
    ]


def _content(answer: dict[str, Any]) -> bytes:
    return base64.b64decode(answer["content"])[:CHUNK_BYTES]


def _images(answer: dict[str, Any]) -> tuple[bytes, ...]:
    images = answer.get("images")
    found = images if isinstance(images, list) else []
    with suppress(ValueError, TypeError, binascii.Error):
        return tuple(base64.b64decode(each, validate=True) for each in found)
    return ()
