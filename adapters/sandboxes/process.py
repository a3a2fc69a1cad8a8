"""A running sandbox: its processes, the channels to them, and their output.

A sandbox with a shell has two processes to talk to: the Python kernel, and the one that runs
commands. Both exist from the start. After a call the server ends every other process; if it cannot,
the sandbox is killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

from antiphon.adapters.processes import descendants, kill_process, start_process
from antiphon.adapters.sandboxes import seccomp
from antiphon.adapters.sandboxes.bwrap_command import (
    FOLDER,
    KERNEL,
    Descriptors,
    Interpreter,
    Limits,
    sandbox_command,
)
from antiphon.adapters.sandboxes.cgroups import Group
from antiphon.adapters.sandboxes.memory_file import memory_file
from antiphon.adapters.sandboxes.output_reader import OutputReader
from antiphon.adapters.sandboxes.process_tree import total_memory
from antiphon.adapters.sandboxes.request_channel import PROCESS_ENDED, Answer, RequestChannel
from antiphon.application.ports import CommandExit, CommandOutput
from antiphon.application.support.tasks import run_or_undo
from antiphon.domain.errors import SandboxError
from antiphon.domain.json import Json

NO_FOLDERS: Mapping[str, str] = {}

START_S = 10.0
WATCH_S = 0.2
MIN_WATCH_S = 0.01
GROWTH_BYTES_PER_S = 4 * 1024**3
"""The speed at which many processes together can take memory. The pause until they are counted
again is the time in which they could reach their limit, between `MIN_WATCH_S` and `WATCH_S`."""

_MEMORY_COUNTERS = ThreadPoolExecutor(4, thread_name_prefix="sandbox-memory")
"""Threads of their own: counting must not wait for the work that other threads do for tenants."""

SETTLE_S = 15.0
"""The time in which leftover processes must end; then their sandbox is killed. They have a low
priority, so on a busy machine it takes a while."""

STREAM_S = 0.05
"""The pause between two chunks of a command's output."""


class CommandChannel:
    """The process that runs shell commands, and the output of the commands."""

    def __init__(
        self, requests: RequestChannel, stdout: int, stderr: int, max_output_bytes: int
    ) -> None:
        self._wake_up = asyncio.Event()
        self._requests = requests
        self._stdout = OutputReader(stdout, max_output_bytes, self._wake_up.set)
        self._stderr = OutputReader(stderr, max_output_bytes, self._wake_up.set)
        self.pid = 0

    async def run(
        self,
        command: str,
        *,
        timeout_s: float,
        limit_s: float,
        watch: Callable[[], Awaitable[float]],
    ) -> AsyncGenerator[CommandOutput | CommandExit]:
        """Yield a command's output, then its exit. Calls `watch` while it runs, each time after the
        seconds that its last call returned.

        Raises: SandboxError; TimeoutError, after `limit_s`.
        """
        request = {"do": "command", "command": command, "timeout_s": timeout_s}
        asking = asyncio.ensure_future(self._requests.ask(request))
        asking.add_done_callback(lambda _: self._wake_up.set())
        deadline = time.monotonic() + limit_s
        try:
            next_watch = time.monotonic() + await watch()
            while not asking.done():
                with suppress(TimeoutError):
                    pause_s = max(0.0, next_watch - time.monotonic())
                    await asyncio.wait_for(self._wake_up.wait(), pause_s)
                now = time.monotonic()
                if now > deadline:
                    raise TimeoutError
                if now >= next_watch and not asking.done():
                    next_watch = now + await watch()
                self._wake_up.clear()
                if not asking.done() and (output := self._next_output()):
                    yield output
                    await asyncio.wait({asking}, timeout=STREAM_S)
            answer = await asking
        finally:
            asking.cancel()
        if rest := self.rest():
            yield rest
        if answer.head.error is not None:
            yield CommandOutput(stderr=f"{answer.head.error}\n")
            yield CommandExit(code=126)
            return
        yield CommandExit(code=answer.head.exit_code)

    def rest(self) -> CommandOutput | None:
        """Return the rest of a command's output, if there is any."""
        return _to_output(self._stdout.take_rest(), self._stderr.take_rest())

    def _next_output(self) -> CommandOutput | None:
        return _to_output(self._stdout.take_chunk(), self._stderr.take_chunk())

    async def kill_others(self) -> None:
        """Kill all processes except this one and the first one of the sandbox."""
        await self._requests.ask({"do": "end"})

    def close(self) -> None:
        self._requests.close()
        self._stdout.close()
        self._stderr.close()


def _to_output(stdout: str, stderr: str) -> CommandOutput | None:
    return CommandOutput(stdout=stdout, stderr=stderr) if stdout or stderr else None


class SandboxProcess:
    """The first process of a sandbox, the Python kernel; with a shell it has `commands`."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        requests: RequestChannel,
        output: OutputReader,
        commands: CommandChannel | None,
        limits: Limits,
        group: Group | None,
    ) -> None:
        self._process = process
        self._requests = requests
        self._output = output
        self.commands = commands
        self._limits = limits
        self._group = group
        self._closed = False
        self._pid = 0
        self._pidfds: list[int] = []
        """Those of the kernel and of the process that runs commands."""

    @classmethod
    async def start(
        cls,
        launcher: Sequence[str],
        python: Interpreter,
        limits: Limits,
        group: Group | None = None,
        folders: Mapping[str, str] = NO_FOLDERS,
    ) -> SandboxProcess:
        """Start a sandbox, in a cgroup if one is passed. Raises: SandboxError.

        It sees `folders`, by their paths in it, and cannot change them.

        A cancellation ends the sandbox once it has started: in between, nobody knows its processes.
        """
        start = cls._start(launcher, python, limits, group, folders)
        return await run_or_undo(start, cls.kill, fails_with=SandboxError)

    @classmethod
    async def _start(
        cls,
        launcher: Sequence[str],
        python: Interpreter,
        limits: Limits,
        group: Group | None,
        folders: Mapping[str, str],
    ) -> SandboxProcess:
        if group is not None:
            launcher = group.wrap_command(launcher)
        with ExitStack() as stack:
            sockets = [_socket_pair(stack) for _ in range(2 if limits.commands else 1)]
            info_reader, info_writer, output_reader, output_writer = _pipes(stack, 2)
            command_pipes = _pipes(stack, 2) if limits.commands else []
            os.set_blocking(info_reader, False)
            descriptors = Descriptors(
                kernel=stack.enter_context(memory_file(KERNEL.read_bytes())),
                requests=sockets[0][1].fileno(),
                seccomp=stack.enter_context(
                    memory_file(seccomp.program(processes=limits.commands))
                ),
                info=info_writer,
                commands=(sockets[1][1].fileno(), *command_pipes[1::2]) if limits.commands else (),
            )
            try:
                process = await start_process(
                    *sandbox_command(launcher, python, limits, descriptors, folders),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output_writer,
                    stderr=output_writer,
                    env={},
                    cwd="/",
                    pass_fds=descriptors.all,
                )
            except OSError as error:
                raise SandboxError(f"The container did not start: {error}.") from None
            # The channels and readers get duplicates, which outlive this block.
            commands = None
            if limits.commands:
                stdout, stderr = (os.dup(reader) for reader in command_pipes[::2])
                requests = await RequestChannel.on(sockets[1][0])
                commands = CommandChannel(requests, stdout, stderr, limits.output_bytes)
            output = OutputReader(os.dup(output_reader), limits.output_bytes)
            requests = await RequestChannel.on(sockets[0][0])
            sandbox = cls(process, requests, output, commands, limits, group)
            for _, sandbox_socket in sockets:
                sandbox_socket.close()
            try:
                await sandbox._wait_until_ready(info_reader)
            except BaseException:
                await sandbox.kill()
                raise
        return sandbox

    async def _wait_until_ready(self, info: int) -> None:
        try:
            async with asyncio.timeout(START_S):
                answer = await self._requests.receive()
        except (TimeoutError, SandboxError):
            reason = self._output.take_rest().strip() or "it was not ready in time"
            raise SandboxError(f"The container did not start: {reason}") from None
        if not answer.head.is_ready:
            raise SandboxError("The container did not start.")
        self._pid = int(json.loads(os.read(info, 4096))["child-pid"])
        self._pidfds = [os.pidfd_open(self._pid)]
        if self._group is not None and not self._group.has(self._pid):
            raise SandboxError("The container is not in its cgroup.")
        if self.commands is not None:
            # No code has run yet, so this is the only other process.
            [self.commands.pid] = descendants(self._pid)
            self._pidfds.append(os.pidfd_open(self.commands.pid))

    async def ask(
        self, request: Json, body: bytes = b"", *, max_body_bytes: int = 0, timeout_s: float
    ) -> Answer:
        """Send a request to the kernel and return its answer. Raises: SandboxError, TimeoutError.

        Checks the number of files and the memory while it waits.
        """
        async with asyncio.timeout(timeout_s):
            asking = asyncio.ensure_future(
                self._requests.ask(request, body, max_body_bytes=max_body_bytes)
            )
            pause_s = self._pause_after(0)
            try:
                while not asking.done():
                    await asyncio.wait({asking}, timeout=pause_s)
                    self._check_files()
                    if not asking.done():
                        pause_s = await self._check_memory()
                return await asking
            finally:
                asking.cancel()

    async def check(self) -> float:
        """Check the limits that the kernel does not enforce. Raises: SandboxError.

        Return the seconds after which they must be checked again.
        """
        self._check_files()
        return await self._check_memory()

    def _check_files(self) -> None:
        # Folders in memory have a size limit, but empty files take no space.
        for folder in (FOLDER, "/tmp"):
            with suppress(OSError):
                status = os.statvfs(f"/proc/{self._pid}/root{folder}")
                if status.f_files - status.f_ffree > self._limits.files:
                    raise SandboxError(f"The code made more than {self._limits.files} files.")

    async def _check_memory(self) -> float:
        if self.commands is None:
            return WATCH_S  # there is one process, which an rlimit limits
        # An rlimit applies to one process; the server adds up the memory of all processes. This
        # runs in a thread because the kernel may have many pages to count. It counts them only if
        # the cheap sum is above the limit: meanwhile the processes take more.
        limit_bytes = self._limits.memory_bytes
        memory_bytes = await asyncio.get_running_loop().run_in_executor(
            _MEMORY_COUNTERS, total_memory, self._pid, limit_bytes
        )
        if memory_bytes > limit_bytes:
            limit_mb = limit_bytes // 1024**2
            raise SandboxError(f"The code used more than {limit_mb} MB of memory.")
        return self._pause_after(memory_bytes)

    def _pause_after(self, memory_bytes: int) -> float:
        """Return the seconds until the memory must be counted again."""
        if self.commands is None or self._group is not None:
            return WATCH_S
        growth_s = (self._limits.memory_bytes - memory_bytes) / GROWTH_BYTES_PER_S
        return min(WATCH_S, max(MIN_WATCH_S, growth_s))

    async def settle(self) -> None:
        """End the processes that a call left running. Raises: SandboxError if they do not end."""
        if self.commands is None:
            return
        try:
            async with asyncio.timeout(SETTLE_S):
                while (pids := set(descendants(self._pid))) != {self.commands.pid}:
                    if self.commands.pid not in pids:
                        raise SandboxError(PROCESS_ENDED)
                    await self.commands.kill_others()
                    await self._requests.ask({"do": "reap"})
        except TimeoutError:
            raise SandboxError("The code left processes that do not end.") from None

    def output(self) -> str:
        """Return the output since the last call of this method."""
        return self._output.take_rest()

    def resume(self) -> None:
        for pidfd in self._pidfds:
            _send_signal(pidfd, signal.SIGCONT)

    def pause(self) -> None:
        for pidfd in self._pidfds:
            _send_signal(pidfd, signal.SIGSTOP)

    def interrupt(self) -> None:
        _send_signal(self._pidfds[0], signal.SIGINT)

    async def kill(self) -> None:
        """Kill all processes of the sandbox and wait until they are gone. May be repeated."""
        for pidfd in self._pidfds[:1]:
            _send_signal(pidfd, signal.SIGKILL)
        kill_process(self._process)
        if not self._closed:
            self._closed = True
            self._requests.close()
            self._output.close()
            if self.commands is not None:
                self.commands.close()
        try:
            for pidfd in self._pidfds[:1]:
                await _wait_for_end(pidfd)
        finally:
            while self._pidfds:
                os.close(self._pidfds.pop())
        await self._process.wait()
        if self._group is not None:
            await self._group.remove()


async def _wait_for_end(pidfd: int) -> None:
    """Wait until a process has ended; the first one of a namespace ends after all others."""
    loop = asyncio.get_running_loop()
    end = asyncio.Event()
    loop.add_reader(pidfd, end.set)
    try:
        await end.wait()
    finally:
        loop.remove_reader(pidfd)


def _send_signal(pidfd: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, number)


def _socket_pair(stack: ExitStack) -> tuple[socket.socket, socket.socket]:
    """Return the server's socket and the sandbox's."""
    ours, theirs = socket.socketpair()
    return stack.enter_context(ours), stack.enter_context(theirs)


def _pipes(stack: ExitStack, count: int) -> list[int]:
    """Return the descriptors of `count` pipes, for each its read end and then its write end."""
    return [_closed_by(stack, end) for _ in range(count) for end in os.pipe()]


def _closed_by(stack: ExitStack, descriptor: int) -> int:
    stack.callback(os.close, descriptor)
    return descriptor
