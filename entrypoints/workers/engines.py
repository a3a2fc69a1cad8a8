"""One vLLM for all workers: each model that would run in this process gets a token server.

The server is vLLM's own, on a port of this machine and with a key. The workers reach it as they
reach any pool of vLLM servers (`engine = "vllm_http"`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from antiphon.adapters.extras import install_command
from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.process.vllm_logs import configure_vllm_logs
from antiphon.entrypoints.settings import ModelTable, Settings
from antiphon.entrypoints.wiring.models import (
    VllmOptions,
    runs_a_file,
    tables_of_a_single_model,
)
from antiphon.entrypoints.wiring.own_classes import convert_options
from antiphon.entrypoints.workers.child import Child, Pauses
from antiphon.entrypoints.workers.worker_spec import SIGNALS, end_with_the_supervisor

logger = logging.getLogger("antiphon.workers")

HOST = "127.0.0.1"
STOP_S = 30.0
"""How long vLLM has to end before it and its processes are killed."""
POLL_S = 0.5
HEALTH_S = 5.0
PROBE_S = 1.0
"""How often a worker looks whether a token server is there: it comes back soon."""
KEY_BYTES = 32


class TokenServer(Struct, frozen=True, kw_only=True):
    """A server to start: `arguments` are those of `vllm serve`."""

    name: str
    arguments: Sequence[str]
    port: int
    key: str

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"


def share_engines(
    settings: Settings, folder: Path, stack: ExitStack
) -> tuple[Settings, Sequence[TokenServer]]:
    """Return the settings of the workers, and the token servers that they need.

    `folder` gets the keys, and `stack` keeps the ports. Raises: SettingsError.
    """
    tables = settings.models
    if not tables and settings.engine == "vllm":
        tables = tuple(tables_of_a_single_model(settings))
    if settings.engine == "llama" or any(map(runs_a_file, tables)):
        raise SettingsError(
            "A model file is run in one process: use --workers 1, or start a llama-server, and "
            "name its URL in a table [[models]]."
        )
    if not any(table.engine == "vllm" for table in tables):
        return settings, []
    if find_spec("vllm") is None:
        raise SettingsError(f"vLLM is not installed. Install it with: {install_command('vllm')}")
    servers: list[TokenServer] = []
    shared: list[ModelTable] = []
    for table in tables:
        if table.engine != "vllm":
            shared.append(table)
            continue
        options = convert_options(table.options, VllmOptions)
        server = _server_for(table, options, port=_keep_port(stack))
        key_file = folder / f"{len(servers)}.key"
        key_file.touch(mode=0o600)
        key_file.write_text(server.key, encoding="utf-8")
        servers.append(server)
        shared += _tables_for_workers(table, options, server.url, key_file)
    # What else describes a single model is in its table now.
    return replace(
        settings,
        models=tuple(shared),
        model=None,
        engine="auto",
        format="auto",
        chat_template=None,
        served_model_name=(),
        engine_options=(),
    ), servers


def _keep_port(stack: ExitStack) -> int:
    """Return a free port, which no other process gets until the stack is closed."""
    kept = stack.enter_context(socket.socket())
    # Sockets that do not listen may share a port if both say so; vLLM's does.
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind((HOST, 0))
    return int(kept.getsockname()[1])


def _server_for(table: ModelTable, options: VllmOptions, *, port: int) -> TokenServer:
    tokenizer = () if table.tokenizer is None else ("--tokenizer", str(table.tokenizer))
    has_adapters = any(adapters_of(options.options)) and "--enable-lora" not in options.options
    return TokenServer(
        name=table.name[0],
        arguments=(
            options.model,
            *tokenizer,
            *options.options,
            *(["--enable-lora"] if has_adapters else []),
            *("--served-model-name", *table.name),
            *("--host", HOST, "--port", str(port)),
            *("--enable-scale-out", "--enable-prompt-tokens-details"),
        ),
        port=port,
        key=secrets.token_urlsafe(KEY_BYTES),
    )


def _tables_for_workers(
    table: ModelTable, options: VllmOptions, url: str, key_file: Path
) -> Iterator[ModelTable]:
    """Yield the model as the workers see it, and each of its LoRA adapters."""
    reached = {"url": url, "key_file": str(key_file), "probe_s": PROBE_S}
    if Path(options.model).expanduser().is_dir():
        reached["model"] = options.model
    if _has_priority(options.options):
        reached["priority"] = True
    given = {**reached, "model_name": table.name[0]}
    yield replace(table, engine="vllm_http", options=given)
    for adapter in adapters_of(options.options):
        given = {**reached, "model_name": adapter}
        yield replace(table, name=(adapter,), engine="vllm_http", fallback=(), options=given)


def _has_priority(options: Sequence[str]) -> bool:
    joined = " ".join(options).replace("=", " ")
    return "--scheduling-policy priority" in joined


def adapters_of(options: Sequence[str]) -> Iterator[str]:
    """Yield the names of the LoRA adapters in vLLM's options.

    >>> list(adapters_of(["--seed", "1", "--lora-modules", "a=x", '{"name": "b"}', "--lora-dtype"]))
    ['a', 'b']
    """
    is_adapter = False
    for option in options:
        if option.startswith("--"):
            is_adapter = option == "--lora-modules"
        elif is_adapter and option.startswith("{"):
            with suppress(ValueError, KeyError):  # vLLM says what is wrong with it
                yield str(json.loads(option)["name"])
        elif is_adapter:
            yield option.partition("=")[0]


def serve_tokens(server: TokenServer, settings: Settings, reports: Connection) -> None:
    """Run vLLM's server in this process, in a group of its own with the processes it starts."""
    reports.close()
    os.setpgid(0, 0)
    end_with_the_supervisor(STOP_S, kill=lambda: os.killpg(0, signal.SIGKILL))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    os.environ["VLLM_API_KEY"] = server.key  # not an option: others see the command line
    # A self-hosted server sends no usage statistics unless its operator wants it to.
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    with configure_vllm_logs(settings.log_level, settings.log_format):
        from vllm.entrypoints.cli.main import main

        sys.argv = ["vllm", "serve", *server.arguments]
        main()


class KeptServer:
    """A token server that is started again when it has died."""

    def __init__(self, server: TokenServer, settings: Settings) -> None:
        self.name = server.name
        self._server = server
        self._settings = settings
        self._child: Child | None = None
        self._pauses = Pauses()
        self._failures = 0

    @property
    def has_failed(self) -> bool:
        """Whether it has failed more often in a row than the settings allow."""
        return self._failures > self._settings.engine_restarts

    async def start(self) -> bool:
        """Return whether it serves; if not, it has ended."""
        self._pauses.started()
        name = f"antiphon vllm {self.name}"
        self._child = Child(name, serve_tokens, self._server, self._settings)
        ready = asyncio.create_task(self._wait_until_ready())
        ended = asyncio.create_task(self._child.ended())
        try:
            await asyncio.wait((ready, ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
            ended.cancel()
        is_ready = not self._child.has_ended
        self._failures = 0 if is_ready else self._failures + 1
        return is_ready

    async def keep(self, failed: asyncio.Event) -> None:
        """Start it again whenever it has died; set `failed` if that does not help."""
        assert self._child is not None
        while True:
            code = await self._child.ended()
            self._kill_group()
            pause_s = self._pauses.next_s()
            logger.error(
                "vLLM for %r has ended with exit code %d. It is started again in %g s.",
                self.name,
                code,
                pause_s,
            )
            await asyncio.sleep(pause_s)
            if await self.start():
                logger.info("vLLM for %r is ready again", self.name)
            elif self.has_failed:
                failed.set()

    async def aclose(self) -> None:
        """End it and all of its processes."""
        if self._child is None:
            return
        self._child.send(signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await self._child.ended()
        self._kill_group()
        await self._child.ended()

    def _kill_group(self) -> None:
        assert self._child is not None
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)

    async def _wait_until_ready(self) -> None:
        while not await asyncio.to_thread(_is_healthy, self._server.port):  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)


def _is_healthy(port: int) -> bool:
    with closing(HTTPConnection(HOST, port, timeout=HEALTH_S)) as connection:
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == HTTPStatus.OK
        except (OSError, HTTPException):
            return False
