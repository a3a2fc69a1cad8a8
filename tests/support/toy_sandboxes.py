"""Sandboxes for tests, on any machine: a Python process for each, which keeps honest code inside.

They would keep in nobody who wants out: an audit hook refuses the network and files elsewhere.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from itertools import count
from pathlib import Path

import msgspec

from antiphon.application.ports import (
    CodeResult,
    CommandExit,
    CommandOutput,
    Sandbox,
    Sandboxes,
    SandboxFile,
    SandboxSpec,
)
from antiphon.domain.errors import SandboxError

KERNEL = """
import contextlib, io, json, os, sys, traceback

def refuse(event, arguments):
    if event == "socket.connect":
        raise PermissionError("there is no network here")

sys.addaudithook(refuse)
variables = {}
for line in sys.stdin:
    output, is_error = io.StringIO(), False
    with contextlib.redirect_stdout(output):
        try:
            exec(json.loads(line), variables)
        except BaseException:
            is_error = True
            output.write(traceback.format_exc())
    print(json.dumps([output.getvalue(), is_error]), flush=True)
"""


class ToySandboxes(Sandboxes):
    def __init__(self, memory_mb: int = 1024) -> None:
        self._memory_bytes = memory_mb * 1024**2
        self._open: dict[str, ToySandbox] = {}
        self._numbers = count()

    async def start(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="toy-"))

    async def aclose(self) -> None:
        for sandbox in list(self._open.values()):
            await sandbox.aclose()
        shutil.rmtree(self._folder)

    def open(self, tenant: str, kind: SandboxSpec = SandboxSpec()) -> Sandbox:  # noqa: B008
        memory_bytes = min(kind.memory_bytes or self._memory_bytes, self._memory_bytes)
        sandbox = ToySandbox(self, tenant, kind.name, memory_bytes, min(kind.idle_s or 600, 600.0))
        sandbox.id = f"cntr_{next(self._numbers)}"
        sandbox.folder = self._folder / sandbox.id
        sandbox.folder.mkdir()
        self._open[sandbox.id] = sandbox
        return sandbox

    def find(self, tenant: str, sandbox_id: str) -> Sandbox | None:
        sandbox = self._open.get(sandbox_id)
        return sandbox if sandbox is not None and sandbox.tenant == tenant else None

    def list_all(self, tenant: str) -> list[Sandbox]:
        return [sandbox for sandbox in self._open.values() if sandbox.tenant == tenant]

    def forget(self, sandbox: ToySandbox) -> None:
        self._open.pop(sandbox.id, None)


class ToySandbox(Sandbox):
    folder: Path

    def __init__(
        self, pool: ToySandboxes, tenant: str, name: str, memory_bytes: int, idle_s: float
    ) -> None:
        self._pool = pool
        self.tenant, self.name = tenant, name
        self.memory_bytes, self.idle_s = memory_bytes, idle_s
        self.created_at = int(time.time())
        self._used_at = self.created_at
        self._uploaded: set[str] = set()
        self._process: asyncio.subprocess.Process | None = None
        self._is_closed = False

    @property
    def last_active_at(self) -> int:
        return self._used_at

    async def start(self) -> None:
        if self._is_closed:
            raise SandboxError("The container is closed.")
        self._used_at = int(time.time())
        if self._process is None:
            self._process = await self._spawn(sys.executable, "-c", KERNEL)

    async def run(self, code: str) -> CodeResult:
        await self.start()
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            encoded = msgspec.json.encode(code.encode("utf-8", "replace").decode())
            self._process.stdin.write(encoded + b"\n")
            logs, is_error = msgspec.json.decode(await self._process.stdout.readline())
        except BaseException:
            await self._end()
            raise
        return CodeResult(logs=logs, is_error=is_error)

    async def command(
        self, command: str, *, timeout_s: float | None = None
    ) -> AsyncGenerator[CommandOutput | CommandExit]:
        await self.start()
        process = await self._spawn("/bin/sh", "-c", command)
        assert process.stdout is not None
        assert process.stderr is not None
        code = None
        try:
            async with asyncio.timeout(timeout_s or 10):
                while piece := await process.stdout.read(1000):
                    yield CommandOutput(stdout=piece.decode("utf-8", "replace"))
                if errors := await process.stderr.read():
                    yield CommandOutput(stderr=errors.decode("utf-8", "replace"))
                code = await process.wait()
        except TimeoutError:
            pass
        finally:
            await _kill(process)
        yield CommandExit(code=code)

    async def put(self, name: str, content: bytes) -> None:
        await self.start()
        self._path(name).write_bytes(content)
        self._uploaded.add(name)

    async def files(self) -> list[SandboxFile]:
        return [
            SandboxFile(
                path=path.name,
                bytes=path.stat().st_size,
                changed_at=int(path.stat().st_mtime),
                is_uploaded=path.name in self._uploaded,
            )
            for path in sorted(self.folder.iterdir())
        ]

    async def pieces(self, path: str, *, max_bytes: int | None = None) -> AsyncGenerator[bytes]:
        yield self._existing(path).read_bytes()[:max_bytes]

    async def remove(self, path: str) -> None:
        self._existing(path).unlink()

    async def aclose(self) -> None:
        self._is_closed = True
        self._pool.forget(self)
        await self._end()

    def _path(self, name: str) -> Path:
        if name in ("", ".", "..") or set(name) & {"/", "\0"} or len(name.encode()) > 255:
            raise SandboxError(f"{name[:100]!r} is not a valid file name.")
        return self.folder / name

    def _existing(self, name: str) -> Path:
        path = self._path(name)
        if not path.is_file():
            raise SandboxError(f"{name}: No such file or directory.")
        return path

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await _kill(process)

    async def _spawn(self, *command: str) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            *command,
            cwd=self.folder,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
            limit=2**24,
        )


async def _kill(process: asyncio.subprocess.Process) -> None:
    """End the process and all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.communicate()  # also closes the pipes
