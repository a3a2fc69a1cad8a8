"""One replica: a whole server without a socket, in an actor of Ray."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack

from litestar.types import ASGIApp

from antiphon.application.support.loop_watchdog import LoopWatchdog
from antiphon.entrypoints.container import Container
from antiphon.entrypoints.process.log_format import set_up_logs
from antiphon.entrypoints.process.vllm_logs import configure_vllm_logs
from antiphon.entrypoints.ray_serve.asgi import ServedByRay
from antiphon.entrypoints.ray_serve.checks import check_nodes
from antiphon.entrypoints.ray_serve.scaling import BACKGROUND_RUNS, WAITING_RUNS
from antiphon.entrypoints.ray_serve.stop_notice import stop_flag
from antiphon.entrypoints.server.admin import serving_admin
from antiphon.entrypoints.server.listener import bind_admin
from antiphon.entrypoints.server.process import tune_interpreter
from antiphon.entrypoints.server.serve import drain, start_app
from antiphon.entrypoints.services import App
from antiphon.entrypoints.settings import Settings

logger = logging.getLogger("antiphon.server")

NOTICE_S = 0.2
"""Seconds between looks whether Serve stops this replica."""
REROUTE_S = 1.0
"""Seconds in which requests may still arrive that were sent here before Serve's proxies knew."""


class NotReady(Exception):
    """The replica cannot serve. If this lasts, Serve replaces it."""


class Replica:
    """The deployment that Serve calls: all that `antiphon serve` starts but the listener."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._draining: asyncio.Task[None] | None = None

    async def __serve_build_asgi_app__(self) -> ASGIApp:
        """Start the server. Raises: SettingsError; StoreError; ModelsFailed."""
        set_up_logs(self._settings.log_level, self._settings.log_format)
        check_nodes(self._settings)
        async with AsyncExitStack() as stack:
            served, self._app = await self._start(stack)
            self._running = stack.pop_all()
        self._watching = asyncio.create_task(self._stop_with_serve(stop_flag()))
        return ServedByRay(
            served,
            arrival_s=self._settings.arrival_s,
            max_bytes=self._app.services.options.limits.max_bytes,
            shut_down=self._shut_down,
        )

    async def check_health(self) -> None:
        """Raises: NotReady for what makes `/readyz` answer 503."""
        readiness = await self._app.check_ready()
        if not readiness.is_ready:
            raise NotReady(
                f"not ready: server {readiness.server}, store {readiness.store}, "
                f"engine {readiness.engine}"
            )

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the load that no open request shows, for `scale_by_load`. Raises: StoreError."""
        return {
            BACKGROUND_RUNS: self._app.runs.active.background,
            WAITING_RUNS: await self._app.server_state.store.count_waiting_runs(),
        }

    async def _start(self, stack: AsyncExitStack) -> tuple[ASGIApp, App]:
        settings, container = self._settings, Container(settings=self._settings)
        stack.enter_context(configure_vllm_logs(settings.log_level, settings.log_format))
        served, app = await start_app(container, stack)
        if (admin := bind_admin(settings)) is not None:
            stack.enter_context(admin)
        await stack.enter_async_context(
            serving_admin(settings, admin, app.check_ready, container.expose_metrics())
        )
        tune_interpreter()
        stack.enter_context(LoopWatchdog(settings.loop_watchdog_ms / 1000))
        return served, app

    async def _stop_with_serve(self, is_stopping: Callable[[], bool] | None) -> None:
        """Begin to stop when Serve does: it waits until the streams have ended."""
        if is_stopping is None:
            logger.warning("this version of Ray Serve does not say when it stops a replica")
            return
        while not is_stopping():  # noqa: ASYNC110 - a flag of Serve's
            await asyncio.sleep(NOTICE_S)
        await asyncio.sleep(REROUTE_S)
        self._stop()

    def _stop(self) -> asyncio.Task[None]:
        """Start no new runs, and let the running ones finish; their streams end with them."""
        if self._draining is None:
            self._app.services.stopping.set()
            self._app.runs.active.close()
            limit_s = self._settings.graceful_shutdown_s
            self._draining = asyncio.create_task(drain(self._app, limit_s))
        return self._draining

    async def _shut_down(self) -> None:
        self._watching.cancel()
        await self._stop()
        await self._running.aclose()
