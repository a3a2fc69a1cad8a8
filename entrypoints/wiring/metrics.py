"""Metrics for operators: the meter, and what is measured with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from antiphon import __version__
from antiphon.application.model.models import Models
from antiphon.application.ports import Fetcher, Labels, Meter, NullMeter, Store
from antiphon.application.telemetry import instruments as i
from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.http.api.metrics import Expose
from antiphon.entrypoints.http.console.state import ServerState
from antiphon.entrypoints.process.peers import Peers
from antiphon.entrypoints.settings import Settings

if TYPE_CHECKING:
    from antiphon.adapters.telemetry.prometheus import PrometheusMeter

METRICS = "metrics"


def prometheus_meter(settings: Settings) -> PrometheusMeter | None:
    """Return the meter, if the settings want metrics. Raises: SettingsError."""
    if not settings.metrics:
        if settings.metrics_tenants:
            raise SettingsError("metrics_tenants needs metrics: set both.")
        return None
    from antiphon.adapters.telemetry.prometheus import PrometheusMeter

    return PrometheusMeter()


def expose(meter: PrometheusMeter | None, peers: Peers | None) -> Expose | None:
    """Return what answers `/metrics`: of all workers, if there are several."""
    if meter is None or peers is None:
        return None if meter is None else meter.expose
    from antiphon.adapters.telemetry.merged import merge

    peers.offer(METRICS, meter.export)

    async def expose_all(accept: str) -> tuple[bytes, str]:
        return await asyncio.to_thread(merge, await peers.ask_all(METRICS), accept)

    return expose_all


def meter_or_none(meter: PrometheusMeter | None) -> Meter:
    return NullMeter() if meter is None else meter


def measured_store(store: Store, meter: Meter) -> Store:
    """Return the store, whose operations are timed if there is a meter."""
    if isinstance(meter, NullMeter):
        return store
    from antiphon.adapters.telemetry.measured import measure_store

    return measure_store(store, meter)


def measured_webhooks(fetcher: Fetcher, meter: Meter) -> Fetcher:
    """Return the fetcher that delivers webhooks, whose attempts are counted if there is a meter."""
    if isinstance(meter, NullMeter):
        return fetcher
    from antiphon.adapters.telemetry.measured import MeasuredWebhooks

    return MeasuredWebhooks(fetcher, meter)


class Watched(Struct, frozen=True):
    """The sources of the gauges."""

    state: ServerState
    models: Models

    def watch(self, meter: Meter) -> None:
        """Have the meter read the gauges."""
        for gauge, read in (
            (i.RUNNING, self._running),
            (i.PHASES, self._phases),
            (i.OLDEST, self._oldest),
            (i.WAITING, self._waiting),
            (i.QUEUED, self._queued),
            (i.STREAMS, self._streams),
            (i.WEBSOCKETS, self._websockets),
            (i.CONNECTIONS, self._connections),
            (i.UNSENT, self._unsent),
            (i.WORK, self._work),
            (i.MODEL_READY, self._model_states),
            (i.INFO, self._info),
        ):
            meter.watch(gauge, read)

    async def _running(self) -> Mapping[Labels, float]:
        background = self.state.runs.background
        foreground = max(
            len(self.state.runs) - background, 0
        )  # one may have a slot, and no task yet
        return {("background",): background, ("foreground",): foreground}

    async def _phases(self) -> Mapping[Labels, float]:
        return {(phase,): count for phase, count in self.state.runs.count_phases().items()}

    async def _oldest(self) -> Mapping[Labels, float]:
        received_at = self.state.runs.oldest_received_at
        return {(): 0.0 if received_at is None else max(time.time() - received_at, 0.0)}

    async def _waiting(self) -> Mapping[Labels, float]:
        admission = self.state.admission
        return {
            ("runs",): admission.runs.waiting,
            ("prompt_tokens",): admission.prompt_tokens.waiting,
        }

    async def _queued(self) -> Mapping[Labels, float]:
        return {(): await self.state.store.count_waiting_runs()}

    async def _streams(self) -> Mapping[Labels, float]:
        return {(): len(self.state.streams)}

    async def _websockets(self) -> Mapping[Labels, float]:
        return {(): len(self.state.websockets)}

    async def _connections(self) -> Mapping[Labels, float]:
        return {(): len(self.state.connections)}

    async def _unsent(self) -> Mapping[Labels, float]:
        unsent = self.state.connections.unsent_bytes()
        return {("all",): sum(unsent), ("slowest",): max(unsent, default=0)}

    async def _work(self) -> Mapping[Labels, float]:
        return {(name,): size for name, size in self.state.bytes_in_work.by_subject.items()}

    async def _model_states(self) -> Mapping[Labels, float]:
        return dict.fromkeys((await self.models.states()).items(), 1.0)

    async def _info(self) -> Mapping[Labels, float]:
        return {(__version__, self.state.store_kind, self.state.owner): 1.0}
