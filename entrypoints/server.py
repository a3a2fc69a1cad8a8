"""Start what the settings choose, serve it, and stop it in the opposite order."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial

import uvicorn
from msgspec import Struct

from antiphon.application.models import Models
from antiphon.domain.errors import SettingsError
from antiphon.entrypoints import banner
from antiphon.entrypoints.container import Container
from antiphon.entrypoints.http.app import create_app
from antiphon.entrypoints.http.protocol import BoundedProtocol, WebSocketProtocol
from antiphon.entrypoints.settings import Settings
from antiphon.entrypoints.sole_use import sole_use

logger = logging.getLogger("antiphon.server")
GC_THRESHOLDS = (50_000, 20, 100)
PINGS_UNANSWERED = 3
"""For as many intervals of its pings a WebSocket client may be silent before it counts as gone."""
SENDING_S = 5
"""For clients to be sent the end of their streams, after the runs were ended."""


class Served(Struct, frozen=True, kw_only=True):
    """A server that answers; `url` is where this machine reaches it."""

    url: str
    models: Models
    server: uvicorn.Server
    serving: asyncio.Task[None]


class _Server(uvicorn.Server):
    """Leaves signals to us: uvicorn repeats them when it is done, which would skip our closing."""

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        stopping: asyncio.Event,
        drain: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()
        self._stopping = stopping
        self._drain = drain

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, and give the runs their time: each stream gets its terminal event."""
        self._stopping.set()
        draining = asyncio.ensure_future(self._drain())
        await super().shutdown(sockets)
        await draining

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run(settings: Settings) -> None:
    """Serve until the process is told to stop. Raises: SettingsError."""
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    if settings.log_level == "info":  # uvicorn tells of its own start what the banner tells better
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
    with (
        asyncio.Runner(loop_factory=_new_loop) as runner,
        suppress(asyncio.CancelledError),  # told to stop before it had started
    ):
        runner.run(_serve(settings))


@asynccontextmanager
async def serving(container: Container) -> AsyncIterator[Served]:
    """Start everything, yield while it is served, stop everything. Raises: SettingsError."""
    settings: Settings = container.settings()
    listening = _listen(settings)
    async with AsyncExitStack() as stack:
        stack.callback(listening.close)
        models = await _start(container, stack)
        app = create_app(
            container.services(),
            container.conversations(),
            models,
            container.file_services(),
            started_at=int(time.time()),
            max_file_bytes=settings.max_file_bytes,
            error_stacks=settings.error_stacks,
        )
        drain = partial(container.runs().drain, settings.graceful_shutdown_s)
        config = _uvicorn_config(app, settings)
        server = _Server(config, stopping=container.stopping(), drain=drain)
        _calm_collector()
        started = asyncio.ensure_future(server.ready.wait())
        task = asyncio.create_task(server.serve(sockets=[listening]))
        await asyncio.wait((task, started), return_when=asyncio.FIRST_COMPLETED)
        started.cancel()
        host, port = listening.getsockname()[:2]
        try:
            yield Served(url=banner.url_of(host, port), models=models, server=server, serving=task)
        finally:
            server.should_exit = True
            await task


async def _serve(settings: Settings) -> None:
    container = Container(settings=settings)
    starting = asyncio.current_task()
    assert starting is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, starting.cancel)
    async with serving(container) as served:
        _on_signals(served.server)  # before the banner: who reads it may send one
        banner.ready(
            settings,
            models=list(served.models.by_name),
            url=served.url,
            engine=settings.engine,
            format=", ".join(model.writes for model in served.models.all),
            store=settings.store,
        )
        await served.serving


async def _start(container: Container, stack: AsyncExitStack) -> Models:
    """Start the chosen adapters; what was started is closed, whatever happens later."""
    settings: Settings = container.settings()
    store = container.store()
    await store.start()
    stack.push_async_callback(store.aclose)
    prompts = container.prompts()
    if prompts is not None:
        await prompts.start()
    files = container.files()
    await files.start()
    stack.push_async_callback(files.aclose)
    models: Models = container.models()
    for model in models.all:
        stack.push_async_callback(model.aclose)
        with banner.starting(f"starting {settings.engine}: {', '.join(model.names)}"):
            await model.start()
    await _recover(container, stack)
    return models


async def _recover(container: Container, stack: AsyncExitStack) -> None:
    file = container.settings().sqlite_file
    if file is not None and not stack.enter_context(sole_use(file)):
        logger.warning("another server uses %s: what is unfinished there is left alone", file)
        return
    recovered = await container.recover()()
    if recovered:
        logger.warning("%d responses were unfinished at the last stop: now failed", recovered)


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
            f"Cannot listen on {settings.host} port {settings.port}: {exc.strerror}. "
            "Choose another with --port."
        ) from None
    return listening


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
        timeout_graceful_shutdown=settings.graceful_shutdown_s + SENDING_S,
    )


def _on_signals(server: uvicorn.Server) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, server.handle_exit, number, None)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # not on Windows
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
