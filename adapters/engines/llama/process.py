"""llama.cpp in a process of its own, which ends with this one."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from antiphon.adapters.engines.llama.child import ChildOptions
from antiphon.adapters.engines.llama.gguf import read_header
from antiphon.adapters.engines.llama.options import LlamaOptions
from antiphon.adapters.extras import install_command
from antiphon.domain.errors import EngineError, SettingsError

CHILD = "antiphon.adapters.engines.llama.child"
DEFAULT_CONTEXT_TOKENS = 8192
"""A longer context takes memory from the start, whether it is used or not."""

KEY_BYTES = 32
STOP_S = 5.0
"""How long the process has to end before it is killed."""


class LlamaProcess:
    """A process with a server for the model file that the options name. Start it once."""

    def __init__(self, options: LlamaOptions) -> None:
        assert options.model is not None
        self._options = options
        self._file = Path(options.model).expanduser()
        self._process: asyncio.subprocess.Process | None = None
        self._key = secrets.token_urlsafe(KEY_BYTES)

    @property
    def headers(self) -> dict[str, str]:
        """The headers that each request to the server needs."""
        return {"authorization": f"Bearer {self._key}"}

    @property
    def has_ended(self) -> bool:
        return self._process is None or self._process.returncode is not None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self) -> str:
        """Return the server's URL. Raises: SettingsError, EngineError."""
        if find_spec("xllamacpp") is None:
            raise SettingsError(
                f"Running a model file needs llama.cpp. Install it with: {install_command('llama')}"
            )
        command = msgspec.json.encode(await asyncio.to_thread(self._child_options)) + b"\n"
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", f"from {CHILD} import main; main()"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the server, which lets runs end
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(ConnectionError):
            self._process.stdin.write(command)
            await self._process.stdin.drain()
        return self._read_answer(await self._process.stdout.readline())

    async def aclose(self) -> None:
        """End the process."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(STOP_S):
                await process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def _child_options(self) -> ChildOptions:
        header = read_header(self._file)
        architecture = header.get("general.architecture")
        trained: Any = header.get(f"{architecture}.context_length", DEFAULT_CONTEXT_TOKENS)
        options = self._options
        return ChildOptions(
            model=str(self._file),
            key=self._key,
            context_length=options.context_length or min(trained, DEFAULT_CONTEXT_TOKENS),
            slots=options.slots,
            threads=options.threads or spare_cores(),
            gpu_layers=options.gpu_layers,
            cache_mb=options.cache_mb,
            repeatable=options.repeatable,
        )

    def _read_answer(self, line: bytes) -> str:
        try:
            answer = json.loads(line)
            return str(answer["url"])
        except (ValueError, KeyError):
            raise EngineError(
                f"llama.cpp could not load {str(self._file)!r}; the log says why."
            ) from None


def spare_cores() -> int:
    """Return the number of threads for a model: llama.cpp's wait for each other by spinning, and
    with one for each core, any other work makes them many times slower."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(1, cores - 1)
