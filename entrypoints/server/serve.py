"""Start the adapters that the settings choose, serve, and stop them in reverse order."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from math import ceil
from typing import Any, cast

import uvicorn
from litestar.types import ASGIApp
from msgspec import Struct

from antiphon.application.model.models import Models
from antiphon.application.ports import Model
from antiphon.application.runs.active_runs import ActiveRuns
from antiphon.application.support.loop_watchdog import LoopWatchdog
from antiphon.domain.errors import EngineDead, ModelsFailed, StoreError
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
from antiphon.entrypoints.http.wire.protocol import BoundedProtocol
from antiphon.entrypoints.http.wire.tls import TlsProtocol
from antiphon.entrypoints.process.event_loop import new_event_loop
from antiphon.entrypoints.process.log_format import set_up_logs
from antiphon.entrypoints.process.memory import keep_little_free_memory, trimming_memory
from antiphon.entrypoints.process.peers import Peers
from antiphon.entrypoints.process.vllm_logs import configure_vllm_logs
from antiphon.entrypoints.server import banner
from antiphon.entrypoints.server.admin import serving_admin
from antiphon.entrypoints.server.first_key import first_key_command, start_keys
from antiphon.entrypoints.server.listener import Acceptor, Listeners
from antiphon.entrypoints.server.process import Process
from antiphon.entrypoints.server.relaying import start_relay
from antiphon.entrypoints.server.seal_key import start_sealing
from antiphon.entrypoints.settings import Settings
from antiphon.entrypoints.wiring.access import check_access
from antiphon.entrypoints.wiring.transport import raise_open_files_limit

logger = logging.getLogger("antiphon.server")
MAX_UNANSWERED_PINGS = 3
"""Ping intervals that a WebSocket client may be silent before it counts as disconnected."""
DELIVERY_INTERVAL_S = 1.0
"""Seconds between searches for webhook deliveries that are due."""
STREAM_END_S = 1
"""Seconds to send clients the end of their streams after the runs have ended."""
LEAVE_S = 0.5
"""Seconds to tell the store that this server is leaving. Otherwise its lease expires."""


class RunningServer(Struct, frozen=True, kw_only=True):
    """A running server. `url` is its URL on this machine."""

    url: str
    models: Models
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
            self.should_exit = self.force_exit = True
            return
        self._stopping.set()
        self._runs.close()
        self._draining = asyncio.ensure_future(self._drain())
        asyncio.get_running_loop().call_later(self._drain_delay_s, self._stop_accepting)

    def _stop_accepting(self) -> None:
        self.should_exit = True

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
    settings: Settings = container.settings()
    process = process or Process(settings)
    certificate = container.certificate()  # first, since models take long to start
    async with AsyncExitStack() as stack:
        listeners = stack.enter_context(process.listening())
        if certificate is not None:
            await stack.enter_async_context(_in_background(certificate.watch_forever()))
        app, models = await start_app(container, stack, process)
        await process.check_store(container)
        await stack.enter_async_context(
            serving_admin(settings, listeners.admin, container.ready(), container.expose_metrics())
        )
        connections = container.transport().connections
        server = _Server(
            _uvicorn_config(app, container),
            stopping=container.stopping(),
            runs=container.runs(),
            drain=partial(drain, container),
            drain_delay_s=settings.drain_delay_s,
            accept=partial(_accept, listeners, process, connections),
            worker_protocol=BoundedProtocol.sharing(container.transport()),
        )
        await stack.enter_async_context(_in_background(connections.abort_stalled_forever()))
        process.tune()
        ready = asyncio.ensure_future(server.ready.wait())
        sockets = [listeners.api]
        if (own := container.relaying().sockets) is not None:
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
                models=models,
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
) -> tuple[ASGIApp, Models]:
    """Start what the settings choose, and return the app that serves it, with its models.

    The stack stops it. Raises: SettingsError.
    """
    settings: Settings = container.settings()
    models = await _start(container, stack, process or Process(settings))
    server_state = container.server_state()
    app = create_app(
        container.services(),
        container.conversations(),
        models,
        container.file_services(),
        container.container_services(),
        container.vector_store_services(),
        container.ready(),
        container.console(),
        server_state,
        started_at=server_state.started_at,
        max_file_bytes=settings.max_file_bytes,
        needs_keys=settings.needs_keys,
        error_stacks=settings.error_stacks,
        expose=container.expose_metrics() if settings.admin_port is None else None,
    )
    dialect = DIALECTS[settings.dialect]
    served = await start_relay(
        container,
        stack,
        RefuseEarly(app, container.admission(), dialect=dialect),
        partial(Authentication, identities=container.identities(), dialect=dialect),
    )
    if settings.cors_origin:
        served = Cors(served, settings.cors_origin)
    if not settings.metrics:
        return RequestLog(served), models
    container.watched().watch(container.meter())
    return RequestLog(served, meter_requests(container.meter())), models


async def _serve(container: Container, process: Process) -> None:
    settings: Settings = container.settings()
    startup = asyncio.current_task()
    assert startup is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, startup.cancel)
    process.take_signals()
    async with serving(container, process) as running:
        # Before the banner, which invites signals.
        _handle_signals(running.server, settings, process)
        process.announce(
            {
                "models": list(running.models.by_name),
                "url": running.url,
                "engine": ", ".join(settings.engines),
                "format": ", ".join(map(_format_of, running.models.all)),
                "store": settings.shown_store,
                "durability": getattr(container.store(), "durability", None),
                "containers": getattr(container.sandboxes(), "limited_by", None),
                "first_key_command": await first_key_command(container),
            }
        )
        await _serve_until_models_fail(container, running)


async def _serve_until_models_fail(container: Container, running: RunningServer) -> None:
    """Return when the server has been stopped. Raises: ModelsFailed."""
    failure = asyncio.create_task(container.supervise_models().wait_until_all_failed())
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


async def _start(container: Container, stack: AsyncExitStack, process: Process) -> Models:
    """Start the chosen adapters, and register each of them in `stack` to be closed."""
    settings: Settings = container.settings()
    check_access(settings)  # first, to report invalid settings before anything is opened
    container.webhook_endpoints()
    store = container.store()
    await store.start()
    stack.push_async_callback(store.aclose)
    await process.join(store)
    traces = container.traces()
    if traces is not None:
        stack.push_async_callback(traces.aclose)
    ended_runs = container.ended_runs()
    if ended_runs is not None:
        stack.callback(ended_runs.flush)  # before the last export of traces
    await start_sealing(container)  # before anything else uses the store
    await stack.enter_async_context(_in_background(container.sweep().run_every(settings.sweep_s)))
    await stack.enter_async_context(
        _in_background(container.send_deliveries().run_every(DELIVERY_INTERVAL_S))
    )
    await start_keys(container)
    issuer_keys = container.issuer_keys()
    if issuer_keys is not None:
        stack.push_async_callback(issuer_keys.aclose)
        await issuer_keys.start()
        await stack.enter_async_context(_in_background(issuer_keys.run_forever()))
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
    await stack.enter_async_context(_in_background(container.index_files().run_forever()))
    await stack.enter_async_context(
        _in_background(container.sweep_vector_stores().run_every(settings.sweep_s))
    )
    audit_log = container.audit_log()
    if audit_log is not None:
        await audit_log.start()
        stack.push_async_callback(audit_log.aclose)
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
    supervise_models = container.supervise_models()
    stack.push_async_callback(supervise_models.aclose)
    peers: Any = container.peers()
    if peers is not None:
        await peers.start()
        stack.push_async_callback(peers.aclose)
    engines = ", ".join(settings.engines)
    with process.starting(f"starting {engines}: {', '.join(models.by_name)}"):
        await supervise_models.start()
    _start_owning_runs(container, stack)
    return models


@asynccontextmanager
async def _in_background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run endless work in a task until the block ends."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def _start_owning_runs(container: Container, stack: AsyncExitStack) -> None:
    """Start the heartbeat and the tasks that watch and start runs. They stop before all else."""
    heartbeat = container.heartbeat()
    heartbeat.start()
    stack.push_async_callback(_leave, container)
    for service in (container.watch_leases(), container.start_background_runs()):
        task = asyncio.create_task(service.run_forever())
        stack.callback(task.cancel)


async def _leave(container: Container) -> None:
    """Give up this server's leases, so that other servers take over its runs immediately."""
    await asyncio.to_thread(container.heartbeat().stop)
    try:
        async with asyncio.timeout(LEAVE_S):
            await container.store().leave(container.owner())
    except (StoreError, TimeoutError) as exc:
        logger.warning(
            "could not give up this server's leases; they expire in %g s: %s",
            container.settings().lease_s,
            exc,
        )


async def drain(container: Container) -> None:
    """Wait up to `graceful_shutdown_s` for the runs to end. End the others, and all readers."""
    await container.runs().drain(container.settings().graceful_shutdown_s)
    container.drained().trigger()


def _http_protocol(container: Container) -> Callable[..., asyncio.Protocol]:
    shared = container.transport()
    http = BoundedProtocol.sharing(shared)
    certificate = container.certificate()
    if certificate is None:
        return http
    return TlsProtocol.before(http, certificate, shared.connections)


def _uvicorn_config(app: object, container: Container) -> uvicorn.Config:
    settings: Settings = container.settings()
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        http=_http_protocol(container),  # type: ignore[arg-type]
        ws=WebSocketProtocol.sharing(container.transport()),
        ws_max_size=container.http_options().limits.max_bytes,
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
