"""The metrics of several processes on one page: each series has the number of its process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec
import prometheus_client as prometheus
from msgspec import Struct
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

LABEL = "worker"


class _Sample(Struct, frozen=True, array_like=True):
    name: str
    labels: Mapping[str, str]
    value: float


class _Family(Struct, frozen=True, array_like=True):
    name: str
    help: str
    type: str
    unit: str
    samples: list[_Sample]


def encode_families(metrics: Iterable[Metric]) -> bytes:
    """Return the metrics of this process for `merge` in another one."""
    return msgspec.msgpack.encode(
        [
            _Family(
                metric.name,
                metric.documentation,
                metric.type,
                metric.unit,
                [_Sample(each.name, each.labels, each.value) for each in metric.samples],
            )
            for metric in metrics
        ]
    )


def merge(encoded: Mapping[int, bytes], accept: str) -> tuple[bytes, str]:
    """Return all metrics in the format that a scraper accepts, and their content type.

    They are not summed up: a process that is started again begins at zero, and Prometheus sees
    that in its own series only.
    """
    registry = prometheus.CollectorRegistry()
    registry.register(_Merged(encoded))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Merged(Collector):
    def __init__(self, encoded: Mapping[int, bytes]) -> None:
        self._encoded = encoded

    def describe(self) -> Iterable[Metric]:
        return []  # or registering it would read all metrics

    def collect(self) -> Iterator[Metric]:
        merged: dict[str, Metric] = {}
        for number, families in sorted(self._encoded.items()):
            for family in msgspec.msgpack.decode(families, type=list[_Family]):
                metric = merged.get(family.name)
                if metric is None:
                    metric = Metric(family.name, family.help, family.type, family.unit)
                    merged[family.name] = metric
                for sample in family.samples:
                    labels = {**sample.labels, LABEL: str(number)}
                    metric.add_sample(sample.name, labels, sample.value)
        yield from merged.values()
