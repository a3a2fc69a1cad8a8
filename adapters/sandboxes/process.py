"""A sandbox that runs: its process, the lines to it, and what it prints.

Where it has a shell there are two processes to talk to, the Python and what runs commands; both are
known from the start, and whatever else is there after a call is ended, or the sandbox is.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import ExitStack, suppress

import msgspec

from antiphon.adapters.sandboxes import seccomp
from antiphon.adapters.sandboxes.bwrap_command import (
    FOLDER,
    KERNEL,
    Descriptors,
    Interpreter,
    Limits,
    command,
)
from antiphon.adapters.sandboxes.cgroups import Group
from antiphon.adapters.sandboxes.output_reader import OutputReader
from antiphon.adapters.sandboxes.process_tree import descendants, total_memory
from antiphon.application.ports import CommandExit, CommandOutput
from antiphon.domain.errors import SandboxError
from antiphon.domain.json import Json

START_S = 10.0
WATCH_S = 0.2
SETTLE_S = 5.0
"""What processes that were left behind get to be gone, before their sandbox is killed."""

STREAM_S = 0.05
"""Between two pieces of a command's output."""

MOST_ANSWER = 100 * 1024 * 1024
ENDED = "The code ended its process, or used up what it may use."


class RequestChannel:
    """Requests and answers of one process, each four bytes of length and JSON."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def on(cls, end: socket.socket) -> RequestChannel:
        """Return a line on a copy of `end`."""
        end.setblocking(False)
        return cls(*await asyncio.open_connection(sock=end.dup()))

    async def ask(self, request: Json) -> Json:
        """Raises: SandboxError."""
        body = msgspec.json.encode(request)
        with suppress(ConnectionError):
            self._writer.write(len(body).to_bytes(4, "big") + body)
            await self._writer.drain()
        return await self.answer()

    async def answer(self) -> Json:
        """Raises: SandboxError."""
        try:
            length = int.from_bytes(await self._reader.readexactly(4), "big")
            if length > MOST_ANSWER:
                raise SandboxError("The container gave an answer that is too long.")
            answer: Json = msgspec.json.decode(await self._reader.readexactly(length), type=dict)
        except (EOFError, ConnectionError, msgspec.DecodeError, UnicodeError):
            raise SandboxError(ENDED) from None
        return answer

    def close(self) -> None:
        self._writer.close()


class CommandChannel:
    """The process that runs commands, and what these print."""

    def __init__(self, line: RequestChannel, stdout: int, stderr: int, most: int) -> None:
        self._news = asyncio.Event()
        self._line = line
        self._stdout = OutputReader(stdout, most, self._news.set)
        self._stderr = OutputReader(stderr, most, self._news.set)
        self.pid = 0

    async def run(
        self,
        command: str,
        *,
        timeout_s: float,
        limit_s: float,
        watch: Callable[[], Awaitable[None]],
    ) -> AsyncGenerator[CommandOutput | CommandExit]:
        """Give what a command prints, then how it ended. `watch` is called meanwhile.

        Raises: SandboxError; TimeoutError, after `limit_s`.
        """
        request = {"do": "command", "command": command, "timeout_s": timeout_s}
        asking = asyncio.ensure_future(self._line.ask(request))
        asking.add_done_callback(lambda _: self._news.set())
        look_at = time.monotonic() + WATCH_S
        latest = time.monotonic() + limit_s
        try:
            while not asking.done():
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), WATCH_S)
                now = time.monotonic()
                if now > latest:
                    raise TimeoutError
                if now >= look_at and not asking.done():
                    await watch()
                    look_at = time.monotonic() + WATCH_S
                self._news.clear()
                if not asking.done() and (piece := self._piece()):
                    yield piece
                    await asyncio.wait({asking}, timeout=STREAM_S)
            answer = await asking
        finally:
            asking.cancel()
        if rest := self.rest():
            yield rest
        if "error" in answer:
            yield CommandOutput(stderr=f"{answer['error']}\n")
            yield CommandExit(code=126)
            return
        code = answer.get("exit_code")
        yield CommandExit(code=code if isinstance(code, int) else None)

    def rest(self) -> CommandOutput | None:
        """Return what is left of the output of a command."""
        return _printed(self._stdout.take(), self._stderr.take())

    def _piece(self) -> CommandOutput | None:
        return _printed(self._stdout.piece(), self._stderr.piece())

    async def end_all(self) -> None:
        """End all processes but this one and the first."""
        await self._line.ask({"do": "end"})

    def close(self) -> None:
        self._line.close()
        self._stdout.close()
        self._stderr.close()


def _printed(stdout: str, stderr: str) -> CommandOutput | None:
    return CommandOutput(stdout=stdout, stderr=stderr) if stdout or stderr else None


class Process:
    """A sandbox's first process, its Python; `commands` where it has a shell too."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        line: RequestChannel,
        output: OutputReader,
        commands: CommandChannel | None,
        limits: Limits,
        group: Group | None,
    ) -> None:
        self._process = process
        self._line = line
        self._output = output
        self.commands = commands
        self._limits = limits
        self._group = group
        self._closed = False
        self._pid = 0
        self._pidfds: list[int] = []
        """Of the processes that the server knows."""

    @classmethod
    async def start(
        cls,
        start: Sequence[str],
        python: Interpreter,
        limits: Limits,
        group: Group | None = None,
    ) -> Process:
        """Begin it, in this group. Raises: SandboxError."""
        if group is not None:
            start = group.wrap_command(start)
        with ExitStack() as opened:
            lines = [_socket_pair(opened) for _ in range(2 if limits.commands else 1)]
            info, tell, output, print_to = _pipes(opened, 2)
            streams = _pipes(opened, 2) if limits.commands else []
            os.set_blocking(info, False)
            ends = Descriptors(
                kernel=_closed_by(opened, _filled(KERNEL.read_bytes())),
                line=lines[0][1].fileno(),
                seccomp=_closed_by(opened, _filled(seccomp.program(processes=limits.commands))),
                info=tell,
                commands=(lines[1][1].fileno(), *streams[1::2]) if limits.commands else (),
            )
            try:
                process = await asyncio.create_subprocess_exec(
                    *command(start, python, limits, ends),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=print_to,
                    stderr=print_to,
                    env={},
                    cwd="/",
                    pass_fds=ends.all,
                )
            except OSError as error:
                raise SandboxError(f"The container cannot be started: {error}.") from None
            # Copies, which outlive this block.
            commands = None
            if limits.commands:
                stdout, stderr = (os.dup(each) for each in streams[::2])
                line = await RequestChannel.on(lines[1][0])
                commands = CommandChannel(line, stdout, stderr, limits.output_bytes)
            printed = OutputReader(os.dup(output), limits.output_bytes)
            line = await RequestChannel.on(lines[0][0])
            made = cls(process, line, printed, commands, limits, group)
            for _, theirs in lines:
                theirs.close()
            try:
                await made._wait_until_ready(info)
            except BaseException:
                await made.kill()
                raise
        return made

    async def _wait_until_ready(self, info: int) -> None:
        try:
            async with asyncio.timeout(START_S):
                answer = await self._line.answer()
        except (TimeoutError, SandboxError):
            why = self._output.take().strip() or "it did not start in time"
            raise SandboxError(f"The container cannot be started: {why}") from None
        if answer != {"ready": True}:
            raise SandboxError("The container cannot be started.")
        self._pid = int(json.loads(os.read(info, 4096))["child-pid"])
        self._pidfds = [os.pidfd_open(self._pid)]
        if self._group is not None and not self._group.has(self._pid):
            raise SandboxError("The container is not in its cgroup.")
        if self.commands is not None:
            # Nothing else was begun yet.
            [self.commands.pid] = descendants(self._pid)
            self._pidfds.append(os.pidfd_open(self.commands.pid))

    async def ask(self, request: Json, *, timeout_s: float) -> Json:
        """Return the answer. Raises: SandboxError, TimeoutError."""
        async with asyncio.timeout(timeout_s):
            answering = asyncio.ensure_future(self._line.ask(request))
            try:
                while not answering.done():
                    await asyncio.wait({answering}, timeout=WATCH_S)
                    self._check_files()
                    if not answering.done():
                        await self._check_memory()
                return await answering
            finally:
                answering.cancel()

    async def check(self) -> None:
        """Raises: SandboxError for more than there may be of what has no limit of its own."""
        self._check_files()
        await self._check_memory()

    def _check_files(self) -> None:
        # Folders in memory have a size, but a million empty files have none.
        for folder in (FOLDER, "/tmp"):
            with suppress(OSError):
                about = os.statvfs(f"/proc/{self._pid}/root{folder}")
                if about.f_files - about.f_ffree > self._limits.files:
                    raise SandboxError(f"The code made more than {self._limits.files} files.")

    async def _check_memory(self) -> None:
        if self.commands is not None:
            # The limits of a process are its own; what all have together is for the server to see.
            # In a thread: the kernel counts pages, of which there may be many.
            taken = await asyncio.to_thread(total_memory, self._pid)
            if taken > self._limits.memory_bytes:
                most = self._limits.memory_bytes // 1024**2
                raise SandboxError(f"The code used more than {most} MB of memory.")

    async def settle(self) -> None:
        """End what a call has left running. Raises: SandboxError if that cannot be done."""
        if self.commands is None:
            return
        try:
            async with asyncio.timeout(SETTLE_S):
                while (left := set(descendants(self._pid))) != {self.commands.pid}:
                    if self.commands.pid not in left:
                        raise SandboxError(ENDED)
                    await self.commands.end_all()
                    await self._line.ask({"do": "reap"})
        except TimeoutError:
            raise SandboxError("The code left processes that do not end.") from None

    def output(self) -> str:
        """Return what was printed since it was last asked for."""
        return self._output.take()

    def resume(self) -> None:
        for each in self._pidfds:
            _signal(each, signal.SIGCONT)

    def pause(self) -> None:
        for each in self._pidfds:
            _signal(each, signal.SIGSTOP)

    def interrupt(self) -> None:
        _signal(self._pidfds[0], signal.SIGINT)

    async def kill(self) -> None:
        """End all processes of the sandbox; they are gone when this returns. Again: nothing."""
        for each in self._pidfds[:1]:
            _signal(each, signal.SIGKILL)
        with suppress(ProcessLookupError):
            self._process.kill()
        if not self._closed:
            self._closed = True
            self._line.close()
            self._output.close()
            if self.commands is not None:
                self.commands.close()
        try:
            for each in self._pidfds[:1]:
                await _end_of(each)
        finally:
            while self._pidfds:
                os.close(self._pidfds.pop())
        await self._process.wait()
        if self._group is not None:
            await self._group.remove()


async def _end_of(process: int) -> None:
    """Return when it has ended; a first process ends when all others have."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(process, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(process)


def _signal(process: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(process, number)


def _socket_pair(opened: ExitStack) -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    return opened.enter_context(ours), opened.enter_context(theirs)


def _pipes(opened: ExitStack, count: int) -> list[int]:
    """Return ends to read and ends to write, by turns."""
    return [_closed_by(opened, end) for _ in range(count) for end in os.pipe()]


def _closed_by(opened: ExitStack, descriptor: int) -> int:
    opened.callback(os.close, descriptor)
    return descriptor


def _filled(content: bytes) -> int:
    """Return a descriptor from which `content` can be read."""
    descriptor = os.memfd_create("sandbox", os.MFD_CLOEXEC)
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
