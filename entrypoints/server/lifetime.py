"""The lifetime of a server: its parts start in this order, and stop in the reverse order.

An adapter or a service that starts is registered here, where it starts, to be stopped. The sockets
are in `serve.py`: they open after all this has started, and close before anything here stops.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Protocol, TypeVar

from antiphon.application.model.supervision import SuperviseModels
from antiphon.application.resources.vector_stores import SweepVectorStores
from antiphon.application.resources.webhooks import SendDeliveries
from antiphon.application.responses.sweep import Sweep
from antiphon.application.runs.background import StartBackgroundRuns
from antiphon.application.runs.heartbeat import Heartbeat
from antiphon.application.runs.ownership import WatchLeases
from antiphon.application.support.periodic import run_periodically
from antiphon.domain.errors import StoreError
from antiphon.entrypoints.container import Container
from antiphon.entrypoints.server.first_key import start_keys
from antiphon.entrypoints.server.process import Process
from antiphon.entrypoints.server.seal_key import start_sealing
from antiphon.entrypoints.services import App, Runs
from antiphon.entrypoints.wiring.access import check_access
from antiphon.entrypoints.wiring.file_search import index_files
from antiphon.entrypoints.wiring.stores import hidden_places

logger = logging.getLogger("antiphon.server")

DELIVERY_INTERVAL_S = 1.0
"""Seconds between searches for webhook deliveries that are due."""
LEAVE_S = 0.5
"""Seconds to tell the store that this server is leaving. Otherwise its lease expires."""


class Startable(Protocol):
    async def start(self) -> None: ...
    async def aclose(self) -> None: ...


S = TypeVar("S", bound=Startable)


def parts_that_read(ports: Container) -> Mapping[str, Callable[[], Startable | None]]:
    """Return the parts whose start only looks for what they need: None for one that is off.

    `antiphon doctor` starts them as a server does, and so finds what would stop the server.
    """
    return {
        "identity provider": ports.issuer_keys,
        "prompt templates": ports.prompts,
        "embeddings": ports.embeddings,
        "web search": ports.web,
        "image generator": ports.image_generator,
    }


@asynccontextmanager
async def running_app(ports: Container, process: Process) -> AsyncIterator[App]:
    """Start what the settings choose, and stop it at the end. Raises: SettingsError, StoreError."""
    settings, now = ports.settings(), ports.now()
    check_access(settings)  # first, to report invalid settings before anything is opened
    endpoints = ports.webhook_endpoints()
    async with AsyncExitStack() as stack:
        store = await _start(stack, ports.store())
        await process.join(store)
        if (traces := ports.traces()) is not None:
            stack.push_async_callback(traces.aclose)
        if (ended_runs := ports.ended_runs()) is not None:
            stack.callback(ended_runs.flush)  # before the last export of traces
        await start_sealing(ports)  # before anything else uses the store
        sweep = Sweep(store, keep_events_s=settings.keep_events_s)
        await _run(stack, sweep.run_every(settings.sweep_s))
        deliveries = SendDeliveries(
            store,
            ports.webhook_fetcher(),
            endpoints,
            now=now,
            clock=ports.clock(),
            propagation=ports.propagation(),
        )
        await _run(stack, deliveries.run_every(DELIVERY_INTERVAL_S))
        await start_keys(ports)
        files = await _start(stack, ports.files())
        vector_stores = await _start(stack, ports.vector_stores())
        await _start(stack, ports.batches())
        for sentence in hidden_places(settings):
            logger.warning("%s", sentence)
        for part in parts_that_read(ports).values():
            await _start_if_any(stack, part())
        if (issuer_keys := ports.issuer_keys()) is not None:
            await _run(stack, issuer_keys.run_forever())
        index = index_files(settings, vector_stores, files, ports.read_pdf(), ports.embeddings())
        await _run(stack, index.run_forever())
        sweep_vector_stores = SweepVectorStores(vector_stores, now=now)
        await _run(stack, sweep_vector_stores.run_every(settings.sweep_s))
        if (audit_log := ports.audit_log()) is not None:
            await _start(stack, audit_log)
        await _start_if_any(stack, ports.guards())
        if (tool_servers := ports.tool_servers()) is not None:
            stack.push_async_callback(tool_servers.aclose)
        await _start_if_any(stack, ports.sandboxes())
        await _start_if_any(stack, ports.programs())
        supervise_models = SuperviseModels(ports.supervised_models())
        stack.push_async_callback(supervise_models.aclose)
        if (peers := ports.peers()) is not None:
            await _start(stack, peers)
        names = ", ".join(ports.models().by_name)
        with process.starting(f"starting {', '.join(settings.engines)}: {names}"):
            await supervise_models.start()
        app = App(ports, index, supervise_models)
        await _own_runs(stack, ports, app.runs)
        sweep_batches = run_periodically(
            "batches that have ended stay in the store",
            app.run_batches.sweep,
            every_s=settings.sweep_s,
        )
        await _run(stack, sweep_batches)
        yield app


async def _own_runs(stack: AsyncExitStack, ports: Container, runs: Runs) -> None:
    """Start the heartbeat, and what watches and starts runs. These stop before all else."""
    settings, store, owner = ports.settings(), ports.store(), ports.owner()
    heartbeat = Heartbeat(store, owner, lease_s=settings.lease_s)

    async def leave() -> None:
        """Give up this server's leases, so that other servers take over its runs immediately."""
        await asyncio.to_thread(heartbeat.stop)
        try:
            async with asyncio.timeout(LEAVE_S):
                await store.end_heartbeat(owner)
        except (StoreError, TimeoutError) as exc:
            logger.warning(
                "could not give up this server's leases; they expire in %g s: %s",
                settings.lease_s,
                exc,
            )

    heartbeat.start()
    stack.push_async_callback(leave)
    watch_leases = WatchLeases(store, runs.active, owner=owner)
    start_runs = StartBackgroundRuns(
        store,
        ports.log(),
        runs.active,
        ports.models(),
        runs.restore,
        runs.run_response,
        owner=owner,
        may_take=heartbeat.is_healthy,
    )
    for work in (watch_leases.run_forever(), start_runs.run_forever()):
        task = asyncio.create_task(work)
        stack.callback(task.cancel)


async def _start(stack: AsyncExitStack, adapter: S) -> S:
    """Start an adapter. It is closed if it has started."""
    await adapter.start()
    stack.push_async_callback(adapter.aclose)
    return adapter


async def _start_if_any(stack: AsyncExitStack, adapter: S | None) -> S | None:
    """Start an adapter, if there is one. It is closed even if its start fails, which may leave
    processes and connections behind."""
    if adapter is not None:
        stack.push_async_callback(adapter.aclose)
        await adapter.start()
    return adapter


async def _run(stack: AsyncExitStack, work: Coroutine[Any, Any, None]) -> None:
    await stack.enter_async_context(in_background(work))


@asynccontextmanager
async def in_background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run endless work in a task until the block ends."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
