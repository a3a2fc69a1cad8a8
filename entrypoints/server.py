"""Start what the settings choose, serve it, and stop it in the opposite order."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from math import ceil
from typing import Any

import uvicorn
from litestar.types import ASGIApp
from msgspec import Struct

from antiphon.application.model.models import Models
from antiphon.application.runs.active_runs import ActiveRuns
from antiphon.domain.errors import SettingsError, StoreError
from antiphon.entrypoints import banner
from antiphon.entrypoints.container import Container
from antiphon.entrypoints.http.app import create_app
from antiphon.entrypoints.http.auth import Authentication
from antiphon.entrypoints.http.dialects import DIALECTS
from antiphon.entrypoints.http.protocol import BoundedProtocol, WebSocketProtocol
from antiphon.entrypoints.keys import first_key_command, start_keys
from antiphon.entrypoints.log_format import LogLines
from antiphon.entrypoints.seal_key import start_sealing
from antiphon.entrypoints.settings import Settings

logger = logging.getLogger("antiphon.server")
GC_THRESHOLDS = (50_000, 20, 100)
PINGS_UNANSWERED = 3
"""For as many intervals of its pings a WebSocket client may be silent before it counts as gone."""
LOOK_FOR_NOTICES_S = 1.0
SENDING_S = 1
"""For clients to be sent the end of their streams, after the runs were ended."""
LEAVING_S = 0.5
"""For the store to be told that this server is gone; it finds out by itself later."""


class RunningServer(Struct, frozen=True, kw_only=True):
    """A server that answers; `url` is where this machine reaches it."""

    url: str
    models: Models
    server: _Server
    serving: asyncio.Task[None]


class _Server(uvicorn.Server):
    """Leaves signals to us: uvicorn repeats them when it is done, which would skip our closing.

    It is told to stop by `stop`, and stops accepting `drain_delay_s` later; its runs get their time
    from the first moment on.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        stopping: asyncio.Event,
        runs: ActiveRuns,
        drain: Callable[[], Awaitable[None]],
        drain_delay_s: float,
    ) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()
        self._stopping = stopping
        self._runs = runs
        self._drain = drain
        self._drain_delay_s = drain_delay_s
        self._draining: asyncio.Future[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    @property
    def running(self) -> int:
        """How many responses run here."""
        return len(self._runs)

    @property
    def answering(self) -> int:
        """How many requests are being answered."""
        return len(self.server_state.tasks)

    def stop(self) -> None:
        """Begin nothing more, and give the runs their time; called again, give them none."""
        if self.is_stopping:
            self._runs.stop_draining()
            self.should_exit = self.force_exit = True
            return
        self._stopping.set()
        self._runs.close()
        self._draining = asyncio.ensure_future(self._drain())
        asyncio.get_running_loop().call_later(self._drain_delay_s, self._leave)

    def _leave(self) -> None:
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting; each stream still gets its terminal event."""
        await super().shutdown(sockets)
        if self._draining is not None:
            await self._draining

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run(settings: Settings) -> None:
    """Serve until the process is told to stop. Raises: SettingsError."""
    lines = logging.StreamHandler()
    lines.setFormatter(LogLines())
    logging.basicConfig(level=settings.log_level.upper(), handlers=[lines])
    if settings.log_level == "info":  # uvicorn tells of its own start what the banner tells better
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
    with (
        asyncio.Runner(loop_factory=_new_loop) as runner,
        suppress(asyncio.CancelledError),  # told to stop before it had started
    ):
        runner.run(_serve(settings))


@asynccontextmanager
async def serving(container: Container) -> AsyncIterator[RunningServer]:
    """Start everything, yield while it is served, stop everything. Raises: SettingsError."""
    settings: Settings = container.settings()
    listening = _listen(settings)
    async with AsyncExitStack() as stack:
        stack.callback(listening.close)
        app, models = await start_app(container, stack)
        server = _Server(
            _uvicorn_config(app, settings),
            stopping=container.stopping(),
            runs=container.runs(),
            drain=partial(_drain, container),
            drain_delay_s=settings.drain_delay_s,
        )
        _calm_collector()
        started = asyncio.ensure_future(server.ready.wait())
        task = asyncio.create_task(server.serve(sockets=[listening]))
        await asyncio.wait((task, started), return_when=asyncio.FIRST_COMPLETED)
        started.cancel()
        host, port = listening.getsockname()[:2]
        try:
            yield RunningServer(
                url=banner.url_of(host, port), models=models, server=server, serving=task
            )
        finally:
            if not task.done():
                server.stop()
            await task


async def start_app(container: Container, stack: AsyncExitStack) -> tuple[ASGIApp, Models]:
    """Start what the settings choose, and return the app that serves it, with its models.

    The stack stops it. Raises: SettingsError.
    """
    settings: Settings = container.settings()
    models = await _start(container, stack)
    app = create_app(
        container.services(),
        container.conversations(),
        models,
        container.file_services(),
        container.container_services(),
        container.vector_store_services(),
        container.ready(),
        started_at=int(time.time()),
        max_file_bytes=settings.max_file_bytes,
        needs_keys=settings.needs_keys,
        error_stacks=settings.error_stacks,
    )
    return Authentication(app, container.find_tenant(), dialect=DIALECTS[settings.dialect]), models


async def _serve(settings: Settings) -> None:
    container = Container(settings=settings)
    starting = asyncio.current_task()
    assert starting is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, starting.cancel)
    async with serving(container) as served:
        _on_signals(served.server, settings)  # before the banner: who reads it may send one
        banner.ready(
            settings,
            models=list(served.models.by_name),
            url=served.url,
            engine=settings.engine,
            format=", ".join(model.format_name for model in served.models.all),
            store=settings.shown_store,
            durability=getattr(container.store(), "durability", None),
            containers=getattr(container.sandboxes(), "limited_by", None),
            first_key_command=await first_key_command(container),
        )
        await served.serving


async def _start(container: Container, stack: AsyncExitStack) -> Models:
    """Start the chosen adapters; what was started is closed, whatever happens later."""
    settings: Settings = container.settings()
    container.webhook_endpoints()  # now: a wrong one is told before anything is opened
    store = container.store()
    await store.start()
    stack.push_async_callback(store.aclose)
    await start_sealing(container)  # before anything of the store is touched
    await stack.enter_async_context(_beside(container.sweep().run_every(settings.sweep_s)))
    await stack.enter_async_context(
        _beside(container.send_deliveries().run_every(LOOK_FOR_NOTICES_S))
    )
    await start_keys(container)
    prompts = container.prompts()
    if prompts is not None:
        await prompts.start()
    files = container.files()
    await files.start()
    stack.push_async_callback(files.aclose)
    vector_stores = container.vector_stores()
    await vector_stores.start()
    stack.push_async_callback(vector_stores.aclose)
    embeddings = container.embeddings()
    if embeddings is not None:
        stack.push_async_callback(embeddings.aclose)
        await embeddings.start()
    await stack.enter_async_context(_beside(container.index_files().run_forever()))
    await stack.enter_async_context(
        _beside(container.sweep_vector_stores().run_every(settings.sweep_s))
    )
    tool_servers = container.tool_servers()
    if tool_servers is not None:
        stack.push_async_callback(tool_servers.aclose)
    sandboxes = container.sandboxes()
    if sandboxes is not None:
        stack.push_async_callback(sandboxes.aclose)
        await sandboxes.start()
    web = container.web()
    if web is not None:
        stack.push_async_callback(web.aclose)
        await web.start()
    models: Models = container.models()
    for model in models.all:
        stack.push_async_callback(model.aclose)
        with banner.starting(f"starting {settings.engine}: {', '.join(model.names)}"):
            await model.start()
    _own(container, stack)
    return models


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Do what has no end of its own, until the block is left."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def _own(container: Container, stack: AsyncExitStack) -> None:
    """Be alive in the store, and look after runs, until all else has stopped."""
    heartbeat = container.heartbeat()
    heartbeat.start()
    stack.push_async_callback(_leave, container)
    for looking in (container.watch_leases(), container.start_background_runs()):
        task = asyncio.create_task(looking.run_forever())
        stack.callback(task.cancel)


async def _leave(container: Container) -> None:
    """Be dead for the others at once: what is left here is theirs."""
    await asyncio.to_thread(container.heartbeat().stop)
    try:
        async with asyncio.timeout(LEAVING_S):
            await container.store().leave(container.owner())
    except (StoreError, TimeoutError) as exc:
        logger.warning("other servers wait %g s for ours: %s", container.settings().lease_s, exc)


async def _drain(container: Container) -> None:
    await container.runs().drain(container.settings().graceful_shutdown_s)
    container.drained().trigger()


def _calm_collector() -> None:
    # What lives now lives as long as the process: no collection need look at it again. Nothing that
    # a response leaves behind is a cycle, so young objects need no search every 700 allocations:
    # that search was an eighth of the cost of a streamed token.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        # Bound now, to fail early; listened on by uvicorn, so that nobody connects before we serve.
        listening.bind((settings.host, settings.port))
    except OSError as exc:
        listening.close()
        raise SettingsError(
            f"Cannot listen on {settings.host} port {settings.port}: {_why_not(exc)}"
        ) from None
    return listening


def _why_not(exc: OSError) -> str:
    """Say why an address cannot be listened on, and what to change."""
    if exc.errno == errno.EADDRNOTAVAIL:
        return (
            "this machine does not have that address. Choose another with --host: 127.0.0.1 for "
            "this machine alone, 0.0.0.0 for the network."
        )
    if isinstance(exc, socket.gaierror):
        return f"{exc.strerror}. Choose another with --host."
    if exc.errno == errno.EACCES:
        return "only root may listen there. Choose a port above 1023 with --port."
    return f"{exc.strerror}. Choose another with --port."


def _uvicorn_config(app: object, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        http=BoundedProtocol.within(settings.arrival_s),
        ws=WebSocketProtocol,
        ws_max_size=settings.max_body_bytes,
        ws_per_message_deflate=False,  # an event is too small to win by it
        ws_ping_interval=settings.keepalive_s,
        ws_ping_timeout=PINGS_UNANSWERED * settings.keepalive_s,
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        date_header=False,
        # Counted from when no more is accepted, which is later than when the runs were told.
        timeout_graceful_shutdown=SENDING_S
        + ceil(max(settings.graceful_shutdown_s - settings.drain_delay_s, 0)),
    )


def _on_signals(server: _Server, settings: Settings) -> None:
    def stop() -> None:
        sentence = banner.stopping(
            running=server.running,
            answering=server.answering,
            limit_s=settings.graceful_shutdown_s,
            drain_delay_s=settings.drain_delay_s,
            is_repeated=server.is_stopping,
        )
        if sentence is not None:
            banner.say(sentence)
        server.stop()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # not on Windows
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
