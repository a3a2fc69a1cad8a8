"""Metrics for Prometheus: counted in memory, read as text."""

from __future__ import annotations

import asyncio
import logging
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import Any

from antiphon.adapters.extras import install_command
from antiphon.application.ports import Instrument, Labels, Meter, ReadGauge
from antiphon.domain.errors import SettingsError

try:
    import prometheus_client as prometheus
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
    from prometheus_client.registry import Collector
    from prometheus_client.utils import floatToGoString

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
"""The time limit of a gauge; after it, the gauge has no value."""


class PrometheusMeter(Meter):
    """Counts in a registry of its own, which also has what vLLM counts in this process."""

    def __init__(self) -> None:
        # They would add a series to each other one, which no dashboard reads.
        prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = prometheus.CollectorRegistry()
        prometheus.ProcessCollector(registry=self._registry)
        self._registry.register(_VllmMetrics())
        self._counters: dict[str, _Counter] = {}
        self._histograms: dict[str, _Histogram] = {}
        self._gauges: list[tuple[Instrument, prometheus.Gauge, ReadGauge]] = []
        self._lock = asyncio.Lock()
        self._before_reading: list[Callable[[], None]] = []

    def add(self, counter: Instrument, value: float = 1, labels: Labels = ()) -> None:
        made = self._counters.get(counter.name)
        if made is None:
            made = self._counters[counter.name] = _Counter(counter)
            self._registry.register(made)
        made.add(value, labels)

    def observe(self, histogram: Instrument, value: float, labels: Labels = ()) -> None:
        made = self._histograms.get(histogram.name)
        if made is None:
            made = self._histograms[histogram.name] = _Histogram(histogram)
            self._registry.register(made)
        made.observe(value, labels)

    def before_reading(self, callback: Callable[[], None]) -> None:
        """Call `callback`, which adds what waits, whenever somebody asks for the metrics."""
        self._before_reading.append(callback)

    def watch(self, gauge: Instrument, read: ReadGauge) -> None:
        described = _described(gauge)
        labels = described.pop("labels")
        made = prometheus.Gauge(**described, labelnames=labels, registry=self._registry)
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
            for callback in self._before_reading:
                callback()
            # In a thread: some hundred histograms take some milliseconds.
            return await asyncio.to_thread(encode, self._registry)


class _VllmMetrics(Collector):
    """The metrics of vLLM, under its own names."""

    def collect(self) -> Iterator[Metric]:
        if "vllm" in sys.modules:
            yield from (each for each in prometheus.REGISTRY.collect() if "vllm" in each.name)


# The library's own counters and histograms take three times as long: each has a lock.


class _Counter(Collector):
    def __init__(self, instrument: Instrument) -> None:
        self._instrument = instrument
        self._values: dict[Labels, float] = {}

    def add(self, value: float, labels: Labels) -> None:
        try:
            self._values[labels] += value
        except KeyError:
            labels = _bounded(labels, self._values)
            self._values[labels] = self._values.get(labels, 0) + value

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(**_described(self._instrument))
        for labels, value in self._values.copy().items():
            family.add_metric(labels, value)
        yield family


class _Histogram(Collector):
    """Each series has the counts of its buckets, and at the end its sum."""

    def __init__(self, instrument: Instrument) -> None:
        self._instrument = instrument
        self._bounds = instrument.buckets
        self._series: dict[Labels, list[float]] = {}

    def observe(self, value: float, labels: Labels) -> None:
        series = self._series.get(labels)
        if series is None:
            labels = _bounded(labels, self._series)
            series = self._series.setdefault(labels, [0] * (len(self._bounds) + 2))
        series[bisect_left(self._bounds, value)] += 1
        series[-1] += value

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(**_described(self._instrument))
        bounds = [*map(floatToGoString, self._bounds), "+Inf"]
        for labels, series in self._series.copy().items():
            *counts, total = series.copy()
            family.add_metric(labels, list(zip(bounds, accumulate(counts), strict=True)), total)
        yield family


def _bounded(labels: Labels, known: Mapping[Labels, Any]) -> Labels:
    """Return the labels of a new series, or OTHER for each if there are too many already."""
    return labels if len(known) < MAX_SERIES else (OTHER,) * len(labels)


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
        "labels": [label.replace(".", "_") for label in instrument.labels],
        "unit": instrument.unit,
    }
