"""The supervisor: it binds the port, starts the workers, starts them again, and stops them.

It serves nothing itself. The first worker starts alone: it creates what all share, and what is
wrong with the settings is said once.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from antiphon.adapters.ids import new_id
from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.process.exits import EXIT_MODELS_FAILED, STOP_SIGNALS
from antiphon.entrypoints.process.log_format import set_up_logs
from antiphon.entrypoints.process.sockets import remove_socket
from antiphon.entrypoints.server import banner
from antiphon.entrypoints.server.listener import Listeners, binding
from antiphon.entrypoints.settings import Settings
from antiphon.entrypoints.workers.child import Child, Pauses
from antiphon.entrypoints.workers.connection_counts import ConnectionCounts
from antiphon.entrypoints.workers.engines import KeptServer, share_engines
from antiphon.entrypoints.workers.fork_server import start_context
from antiphon.entrypoints.workers.worker_spec import END_S, Report, WorkerSpec, stopping_s, work

logger = logging.getLogger("antiphon.workers")

EXIT_KILLED = 1
"""A worker did not end in time and was killed."""
MAX_SOCKET_PATH_BYTES = 90
"""The system's limit for the path of a socket is some bytes above 100."""


def supervise(settings: Settings) -> int:
    """Serve with several workers until a signal; return the exit code. Raises: SettingsError."""
    set_up_logs(settings.log_level, settings.log_format)
    with ExitStack() as stack:
        listeners = stack.enter_context(binding(settings))
        folder = Path(stack.enter_context(_folder_for_sockets()))
        for_workers, servers = share_engines(settings, folder, stack)
        kept = [KeptServer(each, settings) for each in servers]
        return asyncio.run(_supervise(for_workers, listeners, folder, kept, shown=settings))


async def _supervise(
    settings: Settings,
    listeners: Listeners,
    folder: Path,
    servers: Sequence[KeptServer],
    *,
    shown: Settings,
) -> int:
    supervisor = Supervisor(settings, listeners, folder)
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, supervisor.take_signal)
    async with _keeping(servers, supervisor):
        return await supervisor.run(shown=shown)


@asynccontextmanager
async def _keeping(servers: Sequence[KeptServer], supervisor: Supervisor) -> AsyncIterator[None]:
    """Start the token servers, keep them running, and end them after the block.

    Raises: SettingsError for one that does not start.
    """
    tasks: list[asyncio.Task[None]] = []
    try:
        if servers:
            await _start(servers, supervisor)
        failed = asyncio.Event()
        tasks = [asyncio.create_task(each.keep(failed)) for each in servers]
        tasks.append(asyncio.create_task(_stop_if_all_failed(servers, failed, supervisor)))
        yield
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await asyncio.gather(*(each.aclose() for each in servers))


async def _start(servers: Sequence[KeptServer], supervisor: Supervisor) -> None:
    """Return when the token servers serve, or the server stops.

    One that has ended is started again later. Raises: SettingsError if there is no other model.
    """
    names = ", ".join(each.name for each in servers)
    with banner.starting(f"starting vllm: {names}", console=supervisor.console):
        starts = [asyncio.create_task(each.start()) for each in servers]
        stopping = asyncio.create_task(supervisor.wait_until_stopping())
        started = asyncio.gather(*starts)
        await asyncio.wait((started, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        started.cancel()
        if supervisor.is_stopping:
            return
        ended = [each for each, start in zip(servers, starts, strict=True) if not start.result()]
        if ended and len(ended) == supervisor.models:
            raise SettingsError(f"vLLM cannot serve {ended[0].name!r}: see above what it says.")


async def _stop_if_all_failed(
    servers: Sequence[KeptServer], failed: asyncio.Event, supervisor: Supervisor
) -> None:
    """Stop the server if no token server can be started anymore, and it has no other model."""
    while True:
        await failed.wait()
        failed.clear()
        if len(servers) == supervisor.models and all(each.has_failed for each in servers):
            supervisor.stop(EXIT_MODELS_FAILED)


def _folder_for_sockets() -> TemporaryDirectory[str]:
    folder = TemporaryDirectory(prefix="antiphon-")
    if len(folder.name.encode()) > MAX_SOCKET_PATH_BYTES:
        folder.cleanup()
        folder = TemporaryDirectory(prefix="antiphon-", dir="/tmp")
    return folder


class Slot:
    """The place of one worker, which may have several lives."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.child: Child | None = None
        self.owner: str | None = None
        self.was_ready = asyncio.Event()
        self.models_failed = False
        self.pauses = Pauses()


class Supervisor:
    """Runs the workers of one server."""

    def __init__(self, settings: Settings, listeners: Listeners, folder: Path) -> None:
        self._settings = settings
        self._listeners = listeners
        self._folder = folder
        self._server_id = new_id("srv")
        self._slots = [Slot(number) for number in range(1, settings.workers + 1)]
        self._stopping = asyncio.Event()
        self._exit_code = 0
        self._facts: Report | None = None
        self._connections = ConnectionCounts(folder, count=settings.workers)
        self._context = start_context(settings)

    @property
    def console(self) -> Console:
        return banner.console_of(self._settings)

    @property
    def models(self) -> int:
        """The number of models in the settings, without LoRA adapters."""
        return len({str(each.options.get("url", each.name)) for each in self._settings.models})

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    async def wait_until_stopping(self) -> None:
        await self._stopping.wait()

    async def run(self, *, shown: Settings) -> int:
        """Return the exit code when all workers have ended. `shown` are the operator's settings."""
        if self.is_stopping:
            return self._exit_code
        try:
            await self._run(shown)
        finally:  # whatever went wrong, no worker is left
            self.stop(EXIT_KILLED)
        return self._exit_code

    async def _run(self, shown: Settings) -> None:
        first, *others = self._slots
        tasks = [asyncio.create_task(self._keep(first))]
        await self._until_ready([first])
        if not self.is_stopping:
            tasks += [asyncio.create_task(self._keep(slot)) for slot in others]
            await self._until_ready(others)
        if not self.is_stopping:
            self._announce(shown)
        await asyncio.gather(*tasks)

    async def _until_ready(self, slots: Sequence[Slot]) -> None:
        """Wait until all of them were ready, or the server stops."""
        waits = [*(slot.was_ready.wait() for slot in slots)]
        ready = asyncio.gather(*waits)
        stopping = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait((ready, stopping), return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        stopping.cancel()
        with suppress(asyncio.CancelledError):
            await ready

    def _announce(self, shown: Settings) -> None:
        assert self._facts is not None
        facts = {**self._facts.facts, "engine": ", ".join(shown.engines)}
        banner.ready(shown, **facts, console=self.console)

    # --- workers ----------------------------------------------------------------------------------

    async def _keep(self, slot: Slot) -> None:
        """Keep a worker running until the server stops, and wait for its end then."""
        while not self._stopping.is_set():
            child = self._start(slot)
            report = await child.reported()
            if report is not None:
                self._note_ready(slot, report)
            code = await child.ended()
            self._connections.leave(slot.number)
            remove_socket(self._folder, slot.number)
            if self._stopping.is_set():
                break
            if not slot.was_ready.is_set():  # neither will the others, or not as they should
                self.stop(code or EXIT_KILLED)
                break
            await self._pause(slot, code)

    def _start(self, slot: Slot) -> Child:
        spec = WorkerSpec(
            number=slot.number,
            listeners=self._listeners,
            folder=self._folder,
            server_id=self._server_id,
            predecessor=slot.owner,
            shows_start=self._facts is None,
        )
        slot.pauses.started()
        name = f"antiphon worker {slot.number}"
        slot.child = Child(name, work, self._settings, spec, context=self._context)
        return slot.child

    def _note_ready(self, slot: Slot, report: Report) -> None:
        assert slot.child is not None
        again = " again" if slot.was_ready.is_set() else ""
        logger.log(
            logging.INFO if again else logging.DEBUG,
            "worker %d is ready%s: process %d, server %s",
            slot.number,
            again,
            slot.child.pid,
            report.owner,
        )
        slot.owner = report.owner
        slot.models_failed = False
        self._facts = self._facts or report
        slot.was_ready.set()

    async def _pause(self, slot: Slot, code: int) -> None:
        """Wait before a worker that has ended is started again, unless the server must end."""
        assert slot.child is not None
        slot.models_failed = code == EXIT_MODELS_FAILED
        if all(each.models_failed for each in self._slots):
            self.stop(EXIT_MODELS_FAILED)
            return
        pause_s = slot.pauses.next_s()
        logger.log(
            logging.ERROR if code else logging.INFO,
            "worker %d (process %d) has ended: %s. It is started again in %g s.",
            slot.number,
            slot.child.pid,
            _describe(code),
            pause_s,
        )
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._stopping.wait()

    # --- the end ----------------------------------------------------------------------------------

    def take_signal(self) -> None:
        """Stop as the operator wishes: let what runs finish, or the second time, end it now."""
        if self._stopping.is_set():
            banner.say("Stopping now: ending what still runs.", self.console)
            self._end_workers(END_S)
            return
        limit_s = max(self._settings.graceful_shutdown_s, self._settings.drain_delay_s)
        banner.say(
            f"Stopping {len(self._slots)} workers: they wait up to {limit_s:g} s for running "
            "responses. Press Ctrl-C again to end those now.",
            self.console,
        )
        self.stop(0)

    def stop(self, exit_code: int) -> None:
        """Stop all workers, and end with this exit code."""
        if self._stopping.is_set():
            return
        self._exit_code = exit_code
        self._stopping.set()
        # The workers have copies for as long as they accept connections.
        self._listeners.close()
        self._end_workers(stopping_s(self._settings))

    def _end_workers(self, limit_s: float) -> None:
        for slot in self._slots:
            if slot.child is not None:
                slot.child.send(signal.SIGTERM)
        asyncio.get_running_loop().call_later(limit_s, self._kill_workers)

    def _kill_workers(self) -> None:
        for slot in self._slots:
            if slot.child is not None and not slot.child.has_ended:
                logger.error("worker %d has not ended in time and is killed", slot.number)
                self._exit_code = self._exit_code or EXIT_KILLED
                slot.child.send(signal.SIGKILL)


def _describe(code: int) -> str:
    """Return how a process has ended.

    >>> _describe(2), _describe(-9)
    ('exit code 2', 'killed by SIGKILL')
    """
    return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
