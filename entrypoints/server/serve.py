"""Serve: open the sockets of a server on its running app, and stop on a signal.

`lifetime.py` starts and stops everything else.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from math import ceil
from typing import cast

import uvicorn
from litestar.types import ASGIApp
from msgspec import Struct

from antiphon.application.ports import Model
from antiphon.application.runs.active_runs import ActiveRuns
from antiphon.application.support.loop_watchdog import LoopWatchdog
from antiphon.domain.errors import EngineDead, ModelsFailed
from antiphon.entrypoints.container import Container
from antiphon.entrypoints.http.access.auth import Authentication
from antiphon.entrypoints.http.access.cors import Cors
from antiphon.entrypoints.http.access.refusals import RefuseEarly
from antiphon.entrypoints.http.api.metrics import meter_requests
from antiphon.entrypoints.http.app import create_app
from antiphon.entrypoints.http.request_log import RequestLog
from antiphon.entrypoints.http.websocket.protocol import WebSocketProtocol
from antiphon.entrypoints.http.wire.connections import Connections
from antiphon.entrypoints.http.wire.dialects import DIALECTS
from antiphon.entrypoints.http.wire.plain_requests import PlainRequests
from antiphon.entrypoints.http.wire.protocol import BoundedProtocol
from antiphon.entrypoints.http.wire.tls import Certificate, TlsProtocol
from antiphon.entrypoints.process.event_loop import new_event_loop
from antiphon.entrypoints.process.log_format import set_up_logs
from antiphon.entrypoints.process.memory import keep_little_free_memory, trimming_memory
from antiphon.entrypoints.process.peers import Peers
from antiphon.entrypoints.process.vllm_logs import configure_vllm_logs
from antiphon.entrypoints.server import banner
from antiphon.entrypoints.server.admin import serving_admin
from antiphon.entrypoints.server.first_key import first_key_command
from antiphon.entrypoints.server.lifetime import in_background, running_app
from antiphon.entrypoints.server.listener import Acceptor, Listeners
from antiphon.entrypoints.server.process import Process
from antiphon.entrypoints.server.relaying import start_relay
from antiphon.entrypoints.services import App
from antiphon.entrypoints.settings import Settings
from antiphon.entrypoints.wiring.metrics import Watched
from antiphon.entrypoints.wiring.transport import raise_open_files_limit

logger = logging.getLogger("antiphon.server")
MAX_UNANSWERED_PINGS = 3
"""Ping intervals that a WebSocket client may be silent before it counts as disconnected."""
STREAM_END_S = 1
"""Seconds to send clients the end of their streams after the runs have ended."""


class RunningServer(Struct, frozen=True, kw_only=True):
    """A running server. `url` is its URL on this machine."""

    url: str
    app: App
    server: _Server
    serving: asyncio.Task[None]


class _Server(uvicorn.Server):
    """A uvicorn server without signal handlers, stopped by `stop`.

    uvicorn's own handlers raise the signal again at the end, which would skip our cleanup. The
    server stops accepting requests `drain_delay_s` after `stop`; the time limit of its runs starts
    immediately.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        stopping: asyncio.Event,
        runs: ActiveRuns,
        drain: Callable[[], Awaitable[None]],
        drain_delay_s: float,
        accept: Callable[..., Acceptor],
        worker_protocol: Callable[..., asyncio.Protocol],
    ) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()
        self._leaving = asyncio.Event()
        self._stopping = stopping
        self._runs = runs
        self._drain = drain
        self._drain_delay_s = drain_delay_s
        self._accept = accept
        self._worker_protocol = worker_protocol
        self._draining: asyncio.Future[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if sys.platform == "win32":  # its event loop has no `add_reader`
            await super().startup(sockets)
        else:
            await super().startup([])
            acceptors = [
                self._accept(listener, self._protocol_at(listener), backlog=self.config.backlog)
                for listener in sockets or []
            ]
            self.servers = acceptors  # type: ignore[assignment]  # it closes them like others
        self.ready.set()

    def _protocol_at(self, listener: socket.socket) -> Callable[[], asyncio.Protocol]:
        """Return what makes the protocol of a connection. TLS stays at the server's port."""
        at_port = cast("Callable[..., asyncio.Protocol]", self.config.http_protocol_class)
        return partial(
            self._worker_protocol if listener.family == socket.AF_UNIX else at_port,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    @property
    def running(self) -> int:
        """The number of running responses."""
        return len(self._runs)

    @property
    def answering(self) -> int:
        """The number of open requests."""
        return len(self.server_state.tasks)

    def stop(self) -> None:
        """Start no new runs, and let the running ones finish. A second call ends them."""
        if self.is_stopping:
            self._runs.stop_draining()
            self.force_exit = True
            self._stop_accepting()
            return
        self._stopping.set()
        self._runs.close()
        self._draining = asyncio.ensure_future(self._drain())
        asyncio.get_running_loop().call_later(self._drain_delay_s, self._stop_accepting)

    def _stop_accepting(self) -> None:
        self.should_exit = True
        self._leaving.set()

    async def main_loop(self) -> None:
        """Renew the date each second; uvicorn's own wakes ten times a second and stops later."""
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._leaving.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting requests. Each open stream still gets its terminal event."""
        await super().shutdown(sockets)
        if self._draining is not None:
            await self._draining

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run(settings: Settings, process: Process | None = None, peers: Peers | None = None) -> None:
    """Serve in this process until a signal stops it. Raises: SettingsError; ModelsFailed.

    `process` is by default that of a server without workers; `peers` are the workers of one.
    """
    process = process or Process(settings)
    number = None if peers is None else peers.number
    set_up_logs(settings.log_level, settings.log_format, worker=number)
    raise_open_files_limit()
    keep_little_free_memory()
    with (
        configure_vllm_logs(settings.log_level, settings.log_format),
        trimming_memory(),
        asyncio.Runner(loop_factory=new_event_loop) as runner,
        suppress(asyncio.CancelledError),  # stopped before startup was complete
    ):
        runner.run(_serve(Container(settings=settings, peers=peers), process))


@asynccontextmanager
async def serving(
    container: Container, process: Process | None = None
) -> AsyncIterator[RunningServer]:
    """Start everything, yield while the server runs, stop everything. Raises: SettingsError."""
    settings = container.settings()
    process = process or Process(settings)
    certificate = container.certificate()  # first, since models take long to start
    async with AsyncExitStack() as stack:
        listeners = stack.enter_context(process.listening())
        if certificate is not None:
            await stack.enter_async_context(in_background(certificate.watch_forever()))
        served, app = await start_app(container, stack, process)
        await process.check_store(container)
        await stack.enter_async_context(
            serving_admin(settings, listeners.admin, app.check_ready, container.expose_metrics())
        )
        connections = app.transport.connections
        server = _Server(
            _uvicorn_config(served, app, settings, certificate),
            stopping=app.services.stopping,
            runs=app.runs.active,
            drain=partial(drain, app, settings.graceful_shutdown_s),
            drain_delay_s=settings.drain_delay_s,
            accept=partial(_accept, listeners, process, connections),
            worker_protocol=BoundedProtocol.sharing(app.transport),
        )
        await stack.enter_async_context(in_background(connections.abort_stalled_forever()))
        process.tune()
        ready = asyncio.ensure_future(server.ready.wait())
        sockets = [listeners.api]
        if (own := app.relaying.sockets) is not None:
            sockets.append(stack.enter_context(own.listening()))
        task = asyncio.create_task(server.serve(sockets=sockets))
        await asyncio.wait((task, ready), return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        host, port = listeners.api.getsockname()[:2]
        # Only now: a start may block the loop, since nobody waits for anything yet.
        stack.enter_context(LoopWatchdog(settings.loop_watchdog_ms / 1000))
        try:
            yield RunningServer(
                url=banner.url_of(host, port, is_tls=settings.tls_cert is not None),
                app=app,
                server=server,
                serving=task,
            )
        finally:
            if not task.done():
                server.stop()
            await task


def _accept(
    listeners: Listeners,
    process: Process,
    connections: Connections,
    listener: socket.socket,
    make_protocol: Callable[[], asyncio.Protocol],
    *,
    backlog: int,
) -> Acceptor:
    accept = partial(
        Acceptor,
        listener,
        make_protocol,
        backlog=backlog,
        max_waiting=connections.limits.max_arrivals,
    )
    if not listeners.are_shared or listener is not listeners.api:
        return accept()
    # One at a time leaves the next one to another worker.
    return accept(portion=1, is_turn=lambda: process.is_turn(len(connections)))


async def start_app(
    container: Container, stack: AsyncExitStack, process: Process | None = None
) -> tuple[ASGIApp, App]:
    """Start what the settings choose, and return the ASGI app that serves it, with its services.

    The stack stops it. Raises: SettingsError.
    """
    settings, dialect = container.settings(), DIALECTS[container.settings().dialect]
    app = await stack.enter_async_context(running_app(container, process or Process(settings)))
    asgi = create_app(
        app.services,
        app.conversations,
        app.models,
        app.files,
        app.containers,
        app.skills,
        app.vector_stores,
        app.batches,
        app.check_ready,
        app.access.console,
        app.server_state,
        started_at=app.server_state.started_at,
        max_file_bytes=settings.max_file_bytes,
        needs_keys=settings.needs_keys,
        error_stacks=settings.error_stacks,
        expose=container.expose_metrics() if settings.admin_port is None else None,
    )
    inner = RefuseEarly(asgi, app.services.admission, dialect=dialect)
    app.own_requests.app = RequestLog(inner)
    await stack.enter_async_context(in_background(app.run_batches.run_forever()))
    served = await start_relay(
        app,
        settings,
        stack,
        inner,
        lambda inner: Authentication(
            PlainRequests(inner, dialect=dialect),
            app.access.identities,
            sites=app.access.sites,
            dialect=dialect,
        ),
    )
    if settings.cors_origin:
        served = Cors(served, settings.cors_origin)
    if not settings.metrics:
        return RequestLog(served), app
    meter = container.meter()
    Watched(app.server_state, app.models).watch(meter)
    return RequestLog(served, meter_requests(meter)), app


async def _serve(container: Container, process: Process) -> None:
    settings = container.settings()
    startup = asyncio.current_task()
    assert startup is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, startup.cancel)
    process.take_signals()
    async with serving(container, process) as running:
        # Before the banner, which invites signals.
        _handle_signals(running.server, settings, process)
        process.announce(
            {
                "models": list(running.app.models.by_name),
                "url": running.url,
                "engine": ", ".join(settings.engines),
                "format": ", ".join(map(_format_of, running.app.models.all)),
                "store": settings.shown_store,
                "durability": getattr(container.store(), "durability", None),
                "containers": getattr(container.sandboxes(), "limited_by", None),
                "first_key_command": await first_key_command(container),
            }
        )
        await _serve_until_models_fail(running)


async def _serve_until_models_fail(running: RunningServer) -> None:
    """Return when the server has been stopped. Raises: ModelsFailed."""
    failure = asyncio.create_task(running.app.supervise_models.wait_until_all_failed())
    try:
        await asyncio.wait((failure, running.serving), return_when=asyncio.FIRST_COMPLETED)
        if failure.done():
            running.server.stop()
            await running.serving
            raise ModelsFailed("No model works, and starting them again has not helped.")
        await running.serving
    finally:
        failure.cancel()


def _format_of(model: Model) -> str:
    try:
        return model.format_name
    except EngineDead:
        return f"({model.names[0]} is not ready)"


async def drain(app: App, limit_s: float) -> None:
    """Wait up to `limit_s` for the runs to end. End the others, and all readers."""
    await app.runs.active.drain(limit_s)
    app.services.drained.trigger()


def _uvicorn_config(
    served: ASGIApp, app: App, settings: Settings, certificate: Certificate | None
) -> uvicorn.Config:
    http: Callable[..., asyncio.Protocol] = BoundedProtocol.sharing(app.transport)
    if certificate is not None:
        http = TlsProtocol.before(http, certificate, app.transport.connections)
    return uvicorn.Config(
        served,
        http=http,  # type: ignore[arg-type]
        ws=WebSocketProtocol.sharing(app.transport),
        ws_max_size=app.services.options.limits.max_bytes,
        ws_per_message_deflate=False,  # events are too small to benefit
        ws_ping_interval=settings.keepalive_s,
        ws_ping_timeout=MAX_UNANSWERED_PINGS * settings.keepalive_s,
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        date_header=False,
        # It starts when the server stops accepting requests: `drain_delay_s` after the runs' limit.
        timeout_graceful_shutdown=STREAM_END_S
        + ceil(max(settings.graceful_shutdown_s - settings.drain_delay_s, 0)),
    )


def _handle_signals(server: _Server, settings: Settings, process: Process) -> None:
    def stop() -> None:
        message = banner.stopping(
            running=server.running,
            answering=server.answering,
            limit_s=settings.graceful_shutdown_s,
            drain_delay_s=settings.drain_delay_s,
            is_repeated=server.is_stopping,
        )
        if message is not None:
            process.say(message)
        server.stop()

    loop = asyncio.get_running_loop()
    for number in process.stop_signals:
        loop.add_signal_handler(number, stop)
