"""Metrics for Prometheus: counted in memory, read as text."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from antiphon.adapters.extras import install_command
from antiphon.application.ports import Instrument, Labels, Meter, ReadGauge
from antiphon.domain.errors import SettingsError

try:
    import prometheus_client as prometheus
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector

    from antiphon.adapters.telemetry.merged import encode_families
except ModuleNotFoundError as missing:
    raise SettingsError(
        f"Metrics need prometheus-client. Install it with: {install_command('metrics')}"
    ) from missing

logger = logging.getLogger("antiphon.metrics")

MAX_SERIES = 500
"""Combinations of labels of one metric. Any more are counted together, as OTHER."""
OTHER = "other"
READ_S = 2.0
"""How long a gauge may take; then it has no value."""

_Record = Callable[[Instrument, float, Labels], None]

MAX_PENDING = 512
"""Counts and times that wait to be added: in a row, each takes less than half of what it would
take between two steps of a response."""

M = TypeVar("M", prometheus.Counter, prometheus.Histogram)


class PrometheusMeter(Meter):
    """Counts in a registry of its own, which also has what vLLM counts in this process."""

    def __init__(self) -> None:
        # They would add a series to each other one, which no dashboard reads.
        prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = prometheus.CollectorRegistry()
        prometheus.ProcessCollector(registry=self._registry)
        self._registry.register(_VllmMetrics())
        self._counters: dict[str, _Series[prometheus.Counter]] = {}
        self._histograms: dict[str, _Series[prometheus.Histogram]] = {}
        self._gauges: list[tuple[Instrument, prometheus.Gauge, ReadGauge]] = []
        self._lock = asyncio.Lock()
        self._pending: list[tuple[_Record, Instrument, float, Labels]] = []

    def add(self, counter: Instrument, value: float = 1, labels: Labels = ()) -> None:
        self._note(self._add, counter, value, labels)

    def observe(self, histogram: Instrument, value: float, labels: Labels = ()) -> None:
        self._note(self._observe, histogram, value, labels)

    def _note(self, record: _Record, instrument: Instrument, value: float, labels: Labels) -> None:
        self._pending.append((record, instrument, value, labels))
        if len(self._pending) >= MAX_PENDING:
            self._record_pending()

    def _record_pending(self) -> None:
        pending, self._pending = self._pending, []
        for record, instrument, value, labels in pending:
            record(instrument, value, labels)

    def _add(self, counter: Instrument, value: float, labels: Labels) -> None:
        series = self._counters.get(counter.name)
        if series is None:
            made = prometheus.Counter(**_described(counter), registry=self._registry)
            series = self._counters[counter.name] = _Series(made)
        series.of(labels).inc(value)

    def _observe(self, histogram: Instrument, value: float, labels: Labels) -> None:
        series = self._histograms.get(histogram.name)
        if series is None:
            made = prometheus.Histogram(
                **_described(histogram), buckets=histogram.buckets, registry=self._registry
            )
            series = self._histograms[histogram.name] = _Series(made)
        series.of(labels).observe(value)

    def watch(self, gauge: Instrument, read: ReadGauge) -> None:
        made = prometheus.Gauge(**_described(gauge), registry=self._registry)
        self._gauges.append((gauge, made, read))

    async def expose(self, accept: str = "") -> tuple[bytes, str]:
        """Return all metrics in the format that a scraper accepts, and their content type."""
        encode, content_type = choose_encoder(accept)
        return await self._read_all(encode), content_type

    async def export(self) -> bytes:
        """Return all metrics as another process takes them (`merged.merge`)."""
        return await self._read_all(lambda registry: encode_families(registry.collect()))

    async def _read_all(self, encode: Callable[[prometheus.CollectorRegistry], bytes]) -> bytes:
        async with self._lock:  # or two scrapes would read gauges that are half set
            await asyncio.gather(*(_read(*each) for each in self._gauges))
            self._record_pending()
            # In a thread: some hundred histograms take some milliseconds.
            return await asyncio.to_thread(encode, self._registry)


class _VllmMetrics(Collector):
    """What vLLM counts, under its own names."""

    def collect(self) -> Iterator[Metric]:
        if "vllm" in sys.modules:
            yield from (each for each in prometheus.REGISTRY.collect() if "vllm" in each.name)


class _Series(Generic[M]):
    """The series of one metric, by the values of their labels."""

    def __init__(self, metric: M) -> None:
        self._metric: M = metric
        self._by_labels: dict[Labels, M] = {}

    def of(self, labels: Labels) -> M:
        series = self._by_labels.get(labels)
        if series is None:
            if len(self._by_labels) >= MAX_SERIES:
                labels = (OTHER,) * len(labels)
            series = self._metric.labels(*labels) if labels else self._metric
            self._by_labels[labels] = series
        return series


async def _read(gauge: Instrument, made: prometheus.Gauge, read: ReadGauge) -> None:
    values: Mapping[Labels, float] = {}
    try:
        async with asyncio.timeout(READ_S):
            values = await read()
    except Exception as exc:  # of the store, say: then the other metrics are wanted all the more
        logger.warning("the metric %s cannot be read: %r", gauge.name, exc)
    if not gauge.labels:
        made.set(values.get((), float("nan")))
        return
    made.clear()
    for labels, value in values.items():
        made.labels(*labels).set(value)


def _described(instrument: Instrument) -> dict[str, Any]:
    return {
        "name": instrument.name.replace(".", "_"),
        "documentation": instrument.help,
        "labelnames": [label.replace(".", "_") for label in instrument.labels],
        "unit": instrument.unit,
    }
