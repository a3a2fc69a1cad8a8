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
import json
import logging
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from antiphon.adapters.sandboxes import seccomp, self_test
from antiphon.adapters.sandboxes.recipe import (
    FOLDER,
    Interpreter,
    Limits,
    command,
    interpreter,
    programs,
    shown,
)
from antiphon.application.ports import Ran, Sandbox, Sandboxes
from antiphon.domain.errors import SandboxError, SettingsError

logger = logging.getLogger("antiphon.sandboxes")

T = TypeVar("T")

START_S = 10.0
INTERRUPT_S = 1.0
"""What code that was interrupted gets to end, before its sandbox is killed."""

WATCH_S = 0.2
READ_BYTES = 64 * 1024
FLOOD_PAUSE_S = 0.002
"""Between two readings of output that is thrown away: a flood must not keep the server busy."""

MOST_ANSWER = 100 * 1024 * 1024


class Places(Struct, frozen=True, kw_only=True):
    """How many sandboxes there may be; one that was not used for `idle_s` is closed."""

    each_tenant: int = 8
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
        places: Places = Places(),  # noqa: B008
        timeout_s: float = 120.0,
        interrupt_s: float = INTERRUPT_S,
    ) -> None:
        self._python = python
        self._new_id = new_id
        self._limits = limits
        self._places = places
        self._timeout_s = timeout_s
        self._interrupt_s = interrupt_s
        self._interpreter: Interpreter | None = None
        self._programs: list[str] = []
        self._open: dict[str, BubblewrapSandbox] = {}
        self._making_room = asyncio.Lock()
        self._closing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        if not seccomp.is_known():
            raise SettingsError("The code interpreter runs on x86_64 and aarch64 only.")
        self._programs = programs()
        self._interpreter = await asyncio.to_thread(interpreter, self._python)
        try:
            breaches = await self_test.run(
                self._starter(self_test.LIMITS), shown(self._interpreter)
            )
        except SandboxError as error:
            raise SettingsError(f"The code interpreter does not run here. {error}") from None
        if breaches:
            raise SettingsError(
                "The code interpreter is not safe on this machine: " + " ".join(breaches)
            )
        logger.info("the sandbox of the code interpreter holds; no cgroup is used")
        self._closing = asyncio.create_task(self._close_idle())

    async def aclose(self) -> None:
        if self._closing is not None:
            self._closing.cancel()
        for sandbox in list(self._open.values()):
            await sandbox.aclose()

    def open(self, tenant: str) -> Sandbox:
        sandbox = BubblewrapSandbox(
            self._new_id("cntr"),
            tenant,
            start=self._start_for,
            gone=self._forget,
            timeout_s=self._timeout_s,
            interrupt_s=self._interrupt_s,
        )
        self._open[sandbox.id] = sandbox
        return sandbox

    def find(self, tenant: str, sandbox_id: str) -> Sandbox | None:
        sandbox = self._open.get(sandbox_id)
        return sandbox if sandbox is not None and sandbox.tenant == tenant else None

    async def _start_for(self, sandbox: BubblewrapSandbox) -> _Kernel:
        async with self._making_room:
            await self._make_room(sandbox.tenant)
            sandbox.has_place = True
        return await self._starter(self._limits)()

    def _starter(self, limits: Limits) -> Callable[[], Awaitable[_Kernel]]:
        assert self._interpreter is not None, "start comes first"
        python = self._interpreter

        async def start() -> _Kernel:
            return await _Kernel.start(self._programs, python, limits)

        return start

    async def _make_room(self, tenant: str) -> None:
        """Close what was idle longest, where a limit is reached. Raises: SandboxError."""
        for most, among in ((self._places.each_tenant, tenant), (self._places.all, None)):
            running = [
                each
                for each in self._open.values()
                if each.has_place and among in (None, each.tenant)
            ]
            if len(running) < most:
                continue
            idle = [each for each in running if not each.is_busy]
            if not idle:
                raise SandboxError("All containers are in use; try again later.")
            await min(idle, key=lambda each: each.used_at).aclose()

    async def _close_idle(self) -> None:
        while True:
            await asyncio.sleep(min(10.0, self._places.idle_s))
            oldest = time.monotonic() - self._places.idle_s
            for each in list(self._open.values()):
                if not each.is_busy and each.used_at <= oldest:
                    await each.aclose()

    def _forget(self, sandbox: BubblewrapSandbox) -> None:
        self._open.pop(sandbox.id, None)


class BubblewrapSandbox(Sandbox):
    """Starts its kernel with its first use, and a new one after one was lost."""

    def __init__(
        self,
        id: str,
        tenant: str,
        *,
        start: Callable[[BubblewrapSandbox], Awaitable[_Kernel]],
        gone: Callable[[BubblewrapSandbox], None],
        timeout_s: float,
        interrupt_s: float,
    ) -> None:
        self.id = id
        self.tenant = tenant
        self.used_at = time.monotonic()
        self._start = start
        self._gone = gone
        self._timeout_s = timeout_s
        self._interrupt_s = interrupt_s
        self._turn = asyncio.Lock()
        self._kernel: _Kernel | None = None
        self._closed = False
        self.has_place = False
        """Whether it counts among those that take of this machine."""

    @property
    def is_busy(self) -> bool:
        return self._turn.locked()

    async def run(self, code: str) -> Ran:
        return await self._use(lambda kernel: self._run(kernel, code))

    async def put(self, name: str, content: bytes) -> None:
        body = base64.b64encode(content).decode("ascii")
        await self._ask({"do": "put", "name": checked_name(name), "content": body})

    async def files(self) -> list[tuple[str, int]]:
        answer = await self._ask({"do": "files"})
        return [(str(name), int(size)) for name, size in answer["files"]]

    async def get(self, name: str) -> bytes:
        answer = await self._ask({"do": "get", "name": checked_name(name)})
        return base64.b64decode(answer["content"])

    async def aclose(self) -> None:
        self._closed = True
        self._gone(self)
        await self._lose()

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        async def ask(kernel: _Kernel) -> dict[str, Any]:
            try:
                answer = await kernel.ask(request, timeout_s=self._timeout_s)
            except TimeoutError:
                raise SandboxError("The container does not answer.") from None
            if "error" in answer:
                raise SandboxError(f"{request.get('name', 'The container')}: {answer['error']}.")
            return answer

        try:
            return await self._use(ask)
        except (KeyError, TypeError, ValueError, binascii.Error):
            await self._lose()
            raise SandboxError("The container gave an answer that is none.") from None

    async def _use(self, work: Callable[[_Kernel], Awaitable[T]]) -> T:
        async with self._turn:
            self.used_at = time.monotonic()
            if self._closed:
                raise SandboxError("The container is closed.")
            kernel = self._kernel = self._kernel or await self._started()
            kernel.go_on()
            try:
                return await work(kernel)
            except BaseException:
                # Nobody knows what it was in the middle of.
                await self._lose()
                raise
            finally:
                self.used_at = time.monotonic()
                if self._kernel is kernel:
                    kernel.pause()

    async def _run(self, kernel: _Kernel, code: str) -> Ran:
        code = code.encode("utf-8", "replace").decode()
        note = ""
        answer: dict[str, Any] = {"is_error": True}
        asking = asyncio.ensure_future(
            kernel.ask({"do": "run", "code": code}, timeout_s=self._timeout_s + self._interrupt_s)
        )
        try:
            await asyncio.wait({asking}, timeout=self._timeout_s)
            if not asking.done():
                note = f"The code was stopped after {self._timeout_s:g} seconds."
                kernel.interrupt()
            answer = await asking
        except (TimeoutError, SandboxError) as error:
            note = note or str(error)
            note += " Its container was started anew: its variables and files are gone."
            logs = kernel.output()
            await self._lose()
        else:
            logs = kernel.output()
        finally:
            asking.cancel()
        told = "\n".join(part for part in (logs.rstrip("\n") if note else logs, note) if part)
        return Ran(logs=told, images=_images(answer), is_error=bool(answer.get("is_error", True)))

    async def _started(self) -> _Kernel:
        try:
            return await self._start(self)
        except BaseException:
            self.has_place = False
            raise

    async def _lose(self) -> None:
        kernel, self._kernel = self._kernel, None
        self.has_place = False
        if kernel is not None:
            await kernel.kill()


def checked_name(name: str) -> str:
    """Return a file's name. Raises: SandboxError for what is no plain name."""
    try:
        long = len(name.encode()) > 255
    except UnicodeEncodeError:
        long = True
    if long or not name or name in (".", "..") or any(sign in name for sign in "/\0"):
        raise SandboxError(f"{name[:100]!r} cannot be the name of a file.")
    return name


def _images(answer: dict[str, Any]) -> tuple[bytes, ...]:
    images = answer.get("images")
    found = images if isinstance(images, list) else []
    with suppress(ValueError, TypeError, binascii.Error):
        return tuple(base64.b64decode(each, validate=True) for each in found)
    return ()


class _Kernel:
    """The process in a sandbox, and the two ways to it: requests and answers, and its output."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        output: _Output,
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._output = output
        self._pid: int | None = None
        self._pidfd: int | None = None
        self._most_files = 0

    @classmethod
    async def start(cls, start: list[str], python: Interpreter, limits: Limits) -> _Kernel:
        """Raises: SandboxError."""
        with ExitStack() as opened:
            ours, theirs = (opened.enter_context(each) for each in socket.socketpair())
            told, tell, output, print_to = (
                _closed_by(opened, end) for _ in "ab" for end in os.pipe()
            )
            seccomp_end = _closed_by(opened, _filled(seccomp.program()))
            os.set_blocking(told, False)
            ours.setblocking(False)
            words = command(
                start, python, limits, line=theirs.fileno(), seccomp=seccomp_end, told=tell
            )
            try:
                process = await asyncio.create_subprocess_exec(
                    *words,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=print_to,
                    stderr=print_to,
                    env={},
                    cwd="/",
                    pass_fds=(theirs.fileno(), seccomp_end, tell),
                )
            except OSError as error:
                raise SandboxError(f"The container cannot be started: {error}.") from None
            # Copies, which outlive this block.
            reader, writer = await asyncio.open_connection(sock=ours.dup())
            kernel = cls(process, reader, writer, _Output(os.dup(output), limits.output_bytes))
            theirs.close()
            try:
                await kernel._wait_until_ready(told, limits)
            except BaseException:
                await kernel.kill()
                raise
        return kernel

    async def _wait_until_ready(self, told: int, limits: Limits) -> None:
        try:
            async with asyncio.timeout(START_S):
                answer = await self._answer()
        except (TimeoutError, SandboxError):
            why = self._output.take().strip() or "it did not start in time"
            raise SandboxError(f"The container cannot be started: {why}") from None
        if answer != {"ready": True}:
            raise SandboxError("The container cannot be started.")
        self._pid = int(json.loads(os.read(told, 4096))["child-pid"])
        self._pidfd = os.pidfd_open(self._pid)
        self._most_files = limits.files

    async def ask(self, request: dict[str, Any], *, timeout_s: float) -> dict[str, Any]:
        """Return the answer. Raises: SandboxError, TimeoutError."""
        body = msgspec.json.encode(request)
        async with asyncio.timeout(timeout_s):
            self._writer.write(len(body).to_bytes(4, "big") + body)
            answering = asyncio.ensure_future(self._answered())
            try:
                while not answering.done():
                    await asyncio.wait({answering}, timeout=WATCH_S)
                    self._check_files()
                return await answering
            finally:
                answering.cancel()

    async def _answered(self) -> dict[str, Any]:
        with suppress(ConnectionError):
            await self._writer.drain()
        return await self._answer()

    async def _answer(self) -> dict[str, Any]:
        try:
            length = int.from_bytes(await self._reader.readexactly(4), "big")
            if length > MOST_ANSWER:
                raise SandboxError("The container gave an answer that is too long.")
            answer = msgspec.json.decode(await self._reader.readexactly(length), type=dict)
        except (EOFError, ConnectionError, msgspec.DecodeError, UnicodeError):
            raise SandboxError("The code ended its process, or used up what it may use.") from None
        return answer

    def _check_files(self) -> None:
        # Folders in memory have a size, but a million empty files have none.
        for folder in (FOLDER, "/tmp"):
            with suppress(OSError):
                about = os.statvfs(f"/proc/{self._pid}/root{folder}")
                if about.f_files - about.f_ffree > self._most_files:
                    raise SandboxError(f"The code made more than {self._most_files} files.")

    def output(self) -> str:
        """Return what was printed since it was last asked for."""
        return self._output.take()

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def interrupt(self) -> None:
        self._signal(signal.SIGINT)

    def _signal(self, number: signal.Signals) -> None:
        if self._pidfd is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    async def kill(self) -> None:
        """End all processes of the sandbox; they are gone when this returns. Again: nothing."""
        self._signal(signal.SIGKILL)
        with suppress(ProcessLookupError):
            self._process.kill()
        if not self._writer.is_closing():
            self._writer.close()
            self._output.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        await self._process.wait()


def _closed_by(opened: ExitStack, descriptor: int) -> int:
    opened.callback(os.close, descriptor)
    return descriptor


def _filled(content: bytes) -> int:
    """Return a descriptor from which `content` can be read."""
    descriptor = os.memfd_create("seccomp", os.MFD_CLOEXEC)
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


class _Output:
    """What a sandbox prints, up to `most` bytes a call; the rest is read and dropped, slowly."""

    def __init__(self, descriptor: int, most: int) -> None:
        self._descriptor = descriptor
        self._most = most
        self._kept = bytearray()
        self._dropped = 0
        self._later: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._read)

    def take(self) -> str:
        """Return what was printed, whole characters, and begin anew."""
        for _ in range(self._most // READ_BYTES + 1):
            if not self._read():
                break
        text = self._kept.decode("utf-8", "replace")
        if self._dropped:
            text += f"\n[{self._dropped} more bytes of output were dropped.]\n"
        self._kept.clear()
        self._dropped = 0
        return text

    def close(self) -> None:
        self._pause()
        os.close(self._descriptor)

    def _read(self) -> int:
        try:
            piece = os.read(self._descriptor, READ_BYTES)
        except BlockingIOError:
            return 0
        if not piece:
            self._pause()
            return 0
        room = max(0, self._most - len(self._kept))
        self._kept += piece[:room]
        self._dropped += len(piece) - len(piece[:room])
        if self._dropped and self._later is None:
            self._loop.remove_reader(self._descriptor)
            self._later = self._loop.call_later(FLOOD_PAUSE_S, self._go_on)
        return len(piece)

    def _go_on(self) -> None:
        self._later = None
        self._loop.add_reader(self._descriptor, self._read)

    def _pause(self) -> None:
        self._loop.remove_reader(self._descriptor)
        if self._later is not None:
            self._later.cancel()
            self._later = None
