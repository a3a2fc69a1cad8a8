"""Bubblewrap sandboxes (bwrap_command.py, seccomp.py), each with one Python process (kernel.py).

The server does not trust what comes out of a sandbox: it truncates and decodes the output before a
model reads it, and kills a sandbox that sends an invalid answer. Between calls the sandbox's
processes are stopped, so that no thread runs on when no call is waiting for it. Killing the first
process of a sandbox also kills everything else in its namespace.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from itertools import accumulate
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from antiphon.adapters.sandboxes import seccomp, self_test
from antiphon.adapters.sandboxes.bwrap_command import (
    MAX_PROCESSES,
    SCRATCH_BYTES,
    Interpreter,
    Limits,
    find_interpreter,
    find_launcher,
    visible_paths,
)
from antiphon.adapters.sandboxes.cgroups import (
    WITHOUT_CGROUP,
    Cgroups,
    CgroupUnavailable,
    Group,
    find,
)
from antiphon.adapters.sandboxes.process import NO_FOLDERS, SandboxProcess
from antiphon.adapters.sandboxes.request_channel import (
    MAX_FILES,
    MAX_HEAD_BYTES,
    Answer,
    AnswerHead,
)
from antiphon.adapters.sandboxes.skill_folders import SkillFolders
from antiphon.application.ports import (
    CodeResult,
    CommandExit,
    CommandOutput,
    MountedSkill,
    Sandbox,
    Sandboxes,
    SandboxFile,
    SandboxSpec,
)
from antiphon.domain.errors import SandboxError, SandboxesBusy, SettingsError
from antiphon.domain.json import Json

logger = logging.getLogger("antiphon.sandboxes")

CgroupMode = Literal["auto", "required", "off"]
"""Whether to use cgroups: where they are available, always, or never. `auto` starts no shell
without one, since nothing else limits exactly what several processes use together."""

OVERHEAD_BYTES = 64 * 1024 * 1024
OVERHEAD_PROCESSES = 16
"""The room in a cgroup beyond the limits of the processes: for bubblewrap and for the kernel."""

CHUNK_BYTES = 2 * 1024 * 1024
KILLED_EXIT_CODE = 137
"""The exit code of a command that brought its sandbox down; shells use the same one."""

RESTARTED = "The container was restarted: its variables and files are gone."


class PoolLimits(Struct, frozen=True, kw_only=True):
    """The number of sandboxes that may run at the same time."""

    per_tenant: int = 8
    all: int = 32


class SandboxTimeouts(Struct, frozen=True, kw_only=True):
    """The time limits of one sandbox.

    A call is interrupted after `call_s`; if it is still running `interrupt_s` later, the sandbox is
    killed. A sandbox that was not used for `idle_s` is closed.
    """

    call_s: float = 120.0
    interrupt_s: float = 1.0
    idle_s: float = 20 * 60


class BubblewrapSandboxes(Sandboxes):
    """Sandboxes that run the Python program `python`, within the operator's limits."""

    mounts_skills = True

    def __init__(
        self,
        *,
        python: str,
        new_id: Callable[[str], str],
        limits: Limits = Limits(),  # noqa: B008
        pool_limits: PoolLimits = PoolLimits(),  # noqa: B008
        timeouts: SandboxTimeouts = SandboxTimeouts(),  # noqa: B008
        cgroup: CgroupMode = "auto",
        find_cgroups: Callable[[], Cgroups] = find,
    ) -> None:
        self._cgroup = cgroup
        self._find_cgroups = find_cgroups
        self._cgroups: Cgroups | None = None
        self.limited_by = "rlimits"
        """The means that enforce the limits, in words for the operator."""
        self._python = python
        self._new_id = new_id
        self._limits = limits
        self._pool_limits = pool_limits
        self._timeouts = timeouts
        self._interpreter: Interpreter | None = None
        self._launcher: list[str] = []
        self._open: dict[str, BubblewrapSandbox] = {}
        self._making_room = asyncio.Lock()
        self._closing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        if not seccomp.is_supported():
            raise SettingsError("The code interpreter runs on x86_64 and aarch64 only.")
        self._launcher = find_launcher()
        self._cgroups = self._available_cgroups()
        self._interpreter = await asyncio.to_thread(find_interpreter, self._python)
        limits = replace(self_test.LIMITS, commands=self._limits.commands)
        paths = visible_paths(self._interpreter, limits)
        try:
            breaches = await self_test.run(self._starter(limits), paths)
        except SandboxError as error:
            raise SettingsError(f"The code interpreter does not run here. {error}") from None
        if breaches:
            raise SettingsError(
                "The code interpreter is not safe on this machine: " + " ".join(breaches)
            )
        logger.info("the sandbox passed its self-test; limits by %s", self.limited_by)
        if self._limits.commands and self._cgroups is None:
            logger.warning(WITHOUT_CGROUP)
        self._closing = asyncio.create_task(self._close_idle())

    def _available_cgroups(self) -> Cgroups | None:
        if self._cgroup == "off":
            return None
        try:
            groups = self._find_cgroups()
        except CgroupUnavailable as error:
            if self._cgroup == "required" or self._limits.commands:
                raise SettingsError(self._without_cgroup(error)) from None
            self.limited_by = f"rlimits, without a cgroup ({error})"
            return None
        self.limited_by = "cgroup and rlimits"
        return groups

    def _without_cgroup(self, error: CgroupUnavailable) -> str:
        """Return why the server does not start without a cgroup, and what to do about it."""
        delegate = (
            f"The server cannot make a cgroup for containers: {error}. Delegate one to the service "
            "(systemd: Delegate=memory pids, DelegateSubgroup=server)"
        )
        if not self._limits.commands:
            return f"{delegate}, or leave --code-cgroup out."
        return f"{delegate}, or set --code-cgroup off. {WITHOUT_CGROUP}"

    async def aclose(self) -> None:
        if self._closing is not None:
            self._closing.cancel()
        for sandbox in list(self._open.values()):
            await sandbox.aclose()

    def open(self, tenant: str, kind: SandboxSpec = SandboxSpec()) -> Sandbox:  # noqa: B008
        memory = min(kind.memory_bytes or self._limits.memory_bytes, self._limits.memory_bytes)
        idle_s = min(kind.idle_s or self._timeouts.idle_s, self._timeouts.idle_s)
        sandbox = BubblewrapSandbox(
            self._new_id("cntr"),
            tenant,
            kind,
            limits=replace(self._limits, memory_bytes=memory),
            timeouts=replace(self._timeouts, idle_s=idle_s),
            start_process=self._start_process,
            on_close=self._forget,
        )
        self._open[sandbox.id] = sandbox
        self._forget_unused(tenant)
        return sandbox

    def _forget_unused(self, tenant: str) -> None:
        """Forget the oldest sandboxes that were opened but never used, beyond `all` of them.

        They do not count toward the limits of the pool, so nothing else bounds their number.
        """
        unused = [
            sandbox
            for sandbox in self._open.values()
            if sandbox.tenant == tenant and not sandbox.counts_as_running and not sandbox.is_busy
        ]
        for sandbox in unused[: -self._pool_limits.all]:
            del self._open[sandbox.id]

    def find(self, tenant: str, sandbox_id: str) -> Sandbox | None:
        sandbox = self._open.get(sandbox_id)
        return sandbox if sandbox is not None and sandbox.tenant == tenant else None

    def list_all(self, tenant: str) -> list[Sandbox]:
        return [sandbox for sandbox in self._open.values() if sandbox.tenant == tenant]

    async def _start_process(self, sandbox: BubblewrapSandbox) -> SandboxProcess:
        async with self._making_room:
            await self._make_room(sandbox.tenant)
            sandbox.counts_as_running = True
        return await self._starter(sandbox.limits, await sandbox.skill_folders.write())()

    def _starter(
        self, limits: Limits, folders: Mapping[str, str] = NO_FOLDERS
    ) -> Callable[[], Awaitable[SandboxProcess]]:
        assert self._interpreter is not None, "start comes first"
        python = self._interpreter

        async def start() -> SandboxProcess:
            group = self._make_cgroup(limits)
            return await SandboxProcess.start(self._launcher, python, limits, group, folders)

        return start

    def _make_cgroup(self, limits: Limits) -> Group | None:
        if self._cgroups is None:
            return None
        files_bytes = limits.disk_bytes + SCRATCH_BYTES  # files live in memory
        try:
            return self._cgroups.make(
                memory_bytes=limits.memory_bytes + files_bytes + OVERHEAD_BYTES,
                processes=MAX_PROCESSES + OVERHEAD_PROCESSES,
            )
        except OSError as error:
            raise SandboxError(f"The container has no cgroup: {error.strerror}.") from None

    async def _make_room(self, tenant: str) -> None:
        """Close the sandbox that was idle longest if a limit is reached. Raises: SandboxesBusy.

        If the limit is that of all tenants, it is one of the tenant that has most of them.
        """
        for limit, owner in ((self._pool_limits.per_tenant, tenant), (self._pool_limits.all, None)):
            running = [
                sandbox
                for sandbox in self._open.values()
                if sandbox.counts_as_running and owner in (None, sandbox.tenant)
            ]
            if len(running) < limit:
                continue
            idle = [sandbox for sandbox in running if not sandbox.is_busy]
            if not idle:
                raise SandboxesBusy("All containers are in use; try again later.")
            counts = Counter(sandbox.tenant for sandbox in running)
            most = max(counts[sandbox.tenant] for sandbox in idle)
            candidates = [sandbox for sandbox in idle if counts[sandbox.tenant] == most]
            await min(candidates, key=lambda sandbox: sandbox.used_at).aclose()

    async def _close_idle(self) -> None:
        while True:
            shortest_s = min(
                (sandbox.idle_s for sandbox in self._open.values()), default=self._timeouts.idle_s
            )
            await asyncio.sleep(min(10.0, shortest_s))
            now = time.monotonic()
            for sandbox in list(self._open.values()):
                if not sandbox.is_busy and sandbox.used_at <= now - sandbox.idle_s:
                    await sandbox.aclose()

    def _forget(self, sandbox: BubblewrapSandbox) -> None:
        self._open.pop(sandbox.id, None)


class BubblewrapSandbox(Sandbox):
    """A sandbox that starts its process on first use, and a new one after it has lost one."""

    def __init__(
        self,
        id: str,
        tenant: str,
        spec: SandboxSpec,
        *,
        limits: Limits,
        timeouts: SandboxTimeouts,
        start_process: Callable[[BubblewrapSandbox], Awaitable[SandboxProcess]],
        on_close: Callable[[BubblewrapSandbox], None],
    ) -> None:
        self.id = id
        self.tenant = tenant
        self.name = spec.name
        self.skill_folders = SkillFolders(spec.skills)
        self.created_at = int(time.time())
        self.limits = limits
        self.memory_bytes = limits.memory_bytes
        self.idle_s = timeouts.idle_s
        self.used_at = time.monotonic()
        self._timeouts = timeouts
        self._start_process = start_process
        self._on_close = on_close
        self._lock = asyncio.Lock()
        self._process: SandboxProcess | None = None
        self._uploaded: set[str] = set()
        self._closed = False
        self.counts_as_running = False
        """Whether it counts toward the limits of the pool."""

    @property
    def skills(self) -> Sequence[MountedSkill]:
        return self.skill_folders.skills

    @property
    def is_busy(self) -> bool:
        return self._lock.locked()

    @property
    def last_active_at(self) -> int:
        return int(time.time() - (time.monotonic() - self.used_at))

    async def start(self) -> None:
        async with self._running_process():
            pass

    async def run(self, code: str) -> CodeResult:
        async with self._running_process() as process:
            return await self._run(process, code)

    async def command(
        self, command: str, *, timeout_s: float | None = None
    ) -> AsyncGenerator[CommandOutput | CommandExit]:
        limit_s = min(timeout_s or self._timeouts.call_s, self._timeouts.call_s)
        async with self._running_process() as process:
            running = self._command(process, command.encode("utf-8", "replace").decode(), limit_s)
            async with aclosing(running):
                async for output in running:
                    yield output

    async def put(self, name: str, content: bytes) -> None:
        name = checked_name(name)
        for offset in range(0, max(1, len(content)), CHUNK_BYTES):
            chunk = content[offset : offset + CHUNK_BYTES]
            await self._ask({"do": "put", "name": name, "offset": offset}, body=chunk)
        self._uploaded.add(name)

    async def files(self) -> list[SandboxFile]:
        if self._process is None:
            return []
        # The rest of the head needs some bytes too.
        request = {"do": "files", "limit": MAX_FILES, "max_bytes": MAX_HEAD_BYTES - 1024}
        answer = await self._ask(request)
        return [
            SandboxFile(
                path=checked_path(path),
                bytes=size_bytes,
                changed_at=changed_at,
                is_uploaded=path in self._uploaded,
            )
            for path, size_bytes, changed_at in answer.head.files
        ]

    async def pieces(self, path: str, *, max_bytes: int | None = None) -> AsyncGenerator[bytes]:
        path = checked_path(path)
        # The code can claim that a file never ends; none has more bytes than the disk.
        disk_bytes = self.limits.disk_bytes
        remaining_bytes = disk_bytes if max_bytes is None else min(max_bytes, disk_bytes)
        offset = 0
        while True:
            size_bytes = min(CHUNK_BYTES, remaining_bytes)
            request = {"do": "read", "name": path, "offset": offset, "size": size_bytes}
            chunk = (await self._ask(request, max_body_bytes=size_bytes)).body
            if chunk or not offset:
                yield chunk
            offset += len(chunk)
            remaining_bytes -= len(chunk)
            if len(chunk) < CHUNK_BYTES or not remaining_bytes:
                return

    async def remove(self, path: str) -> None:
        await self._ask({"do": "remove", "name": checked_path(path)})

    async def aclose(self) -> None:
        self._closed = True
        self._on_close(self)
        await self._kill_process()
        await self.skill_folders.remove()

    async def _ask(self, request: Json, *, body: bytes = b"", max_body_bytes: int = 0) -> Answer:
        """Send a request to the kernel and return its answer."""
        async with self._running_process() as process:
            try:
                answer = await process.ask(
                    request,
                    body,
                    max_body_bytes=max_body_bytes,
                    timeout_s=self._timeouts.call_s,
                )
                await process.settle()
            except TimeoutError:
                raise SandboxError("The container does not answer.") from None
            if answer.head.error is None:
                return answer
        # Raised outside of the `async with`: a file error does not cost the sandbox its process.
        raise SandboxError(f"{request.get('name', 'The container')}: {answer.head.error}.")

    @asynccontextmanager
    async def _running_process(self) -> AsyncGenerator[SandboxProcess]:
        async with self._lock:
            self.used_at = time.monotonic()
            if self._closed:
                raise SandboxError("The container is closed.")
            process = self._process = self._process or await self._new_process()
            process.resume()
            try:
                yield process
            except BaseException:
                # The process may be in the middle of anything.
                await self._kill_process()
                raise
            finally:
                self.used_at = time.monotonic()
                if self._process is process:
                    process.pause()

    async def _run(self, process: SandboxProcess, code: str) -> CodeResult:
        code = code.encode("utf-8", "replace").decode()
        note = ""
        answer: Answer
        images: tuple[bytes, ...]
        call_s, interrupt_s = self._timeouts.call_s, self._timeouts.interrupt_s
        asking = asyncio.ensure_future(
            process.ask(
                {"do": "run", "code": code},
                max_body_bytes=self.limits.all_images_bytes,
                timeout_s=call_s + interrupt_s,
            )
        )
        try:
            await asyncio.wait({asking}, timeout=call_s)
            if not asking.done():
                note = f"The code was stopped after {call_s:g} seconds."
                process.interrupt()
            answer = await asking
            images = _images_of(answer)
            await process.settle()
        except (TimeoutError, SandboxError) as error:
            note = f"{note or error} {RESTARTED}"
            answer, images = Answer(AnswerHead(is_error=True)), ()
            logs = process.output()
            await self._kill_process()
        else:
            logs = process.output()
        finally:
            asking.cancel()
        parts = (logs.rstrip("\n") if note else logs, note)
        return CodeResult(
            logs="\n".join(filter(None, parts)),
            images=images,
            is_error=answer.head.is_error,
        )

    async def _command(
        self, process: SandboxProcess, command: str, timeout_s: float
    ) -> AsyncGenerator[CommandOutput | CommandExit]:
        if process.commands is None:
            raise SandboxError("This server's containers have no shell.")
        running = process.commands.run(
            command,
            timeout_s=timeout_s,
            limit_s=timeout_s + self._timeouts.interrupt_s,
            watch=process.check,
        )
        command_exit = CommandExit(code=KILLED_EXIT_CODE)
        try:
            async with aclosing(running):
                async for output in running:
                    if isinstance(output, CommandExit):
                        command_exit = output
                    else:
                        yield output
            await process.settle()
        except (TimeoutError, SandboxError) as error:
            if isinstance(error, TimeoutError):
                command_exit = CommandExit(code=None)
            if rest := process.commands.rest():
                yield rest
            await self._kill_process()
            yield CommandOutput(stderr=f"{error or 'The command did not end.'} {RESTARTED}\n")
        yield command_exit

    async def _new_process(self) -> SandboxProcess:
        try:
            return await self._start_process(self)
        except BaseException:
            self.counts_as_running = False
            raise

    async def _kill_process(self) -> None:
        process, self._process = self._process, None
        self.counts_as_running = False
        self._uploaded.clear()
        if process is not None:
            await process.kill()


def checked_name(name: str) -> str:
    """Return a file's name. Raises: SandboxError if it is not a plain file name."""
    try:
        is_too_long = len(name.encode()) > 255
    except UnicodeEncodeError:
        is_too_long = True
    if is_too_long or not name or name in (".", "..") or any(sign in name for sign in "/\0"):
        raise SandboxError(f"{name[:100]!r} is not a valid file name.")
    return name


def checked_path(path: str) -> str:
    """Return a path below a folder. Raises: SandboxError if it is not one."""
    if len(path) > 4096:
        raise SandboxError(f"{path[:100]!r} is not a valid file path.")
    return "/".join(map(checked_name, path.split("/")))


def _images_of(answer: Answer) -> tuple[bytes, ...]:
    """Return the images of an answer. Raises: SandboxError if they are not its whole body."""
    sizes, body = answer.head.image_sizes, answer.body
    if sum(sizes) != len(body):
        raise SandboxError("The container gave an invalid answer.")
    ends = list(accumulate(sizes))
    return tuple(body[end - size : end] for size, end in zip(sizes, ends, strict=True))
