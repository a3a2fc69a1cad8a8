"""The second port: metrics and health checks, for machines that have no key."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from litestar import Litestar
from litestar.di import Provide

from antiphon.application.runs.readiness import CheckReady
from antiphon.entrypoints.http.access.auth import Authentication
from antiphon.entrypoints.http.api.health import Health
from antiphon.entrypoints.http.api.metrics import Expose, metrics_page
from antiphon.entrypoints.http.wire.plain_requests import PlainRequests
from antiphon.entrypoints.http.wire.protocol import BoundedProtocol
from antiphon.entrypoints.settings import Settings
from antiphon.entrypoints.wiring.access import admin_sites
from antiphon.entrypoints.wiring.transport import admin_transport

CLOSE_S = 1


@asynccontextmanager
async def serving_admin(
    settings: Settings,
    listener: socket.socket | None,
    check_ready: CheckReady,
    expose: Expose | None,
) -> AsyncIterator[None]:
    """Serve the second port until the block ends, if there is one."""
    if listener is None:
        yield
        return
    transport = admin_transport(settings)
    app = Litestar(
        route_handlers=[Health, metrics_page],
        dependencies={
            "check_ready": Provide(lambda: check_ready, sync_to_thread=False),
            "expose": Provide(lambda: expose, sync_to_thread=False),
        },
        openapi_config=None,
        logging_config=None,
    )
    config = uvicorn.Config(
        Authentication(PlainRequests(app), None, sites=admin_sites(settings)),
        http=BoundedProtocol.sharing(transport),
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        timeout_graceful_shutdown=CLOSE_S,
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve([listener]))
    stalled = asyncio.create_task(transport.connections.abort_stalled_forever())
    try:
        yield
    finally:
        server.should_exit = True
        await serving
        stalled.cancel()
        await asyncio.wait([stalled])


class _Server(uvicorn.Server):
    """The process has one handler of signals, that of the API's server."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
