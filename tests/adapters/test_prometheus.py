"""How the meter for Prometheus counts, and what bounds it."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Mapping
from types import ModuleType

import prometheus_client
import pytest
from prometheus_client.parser import text_string_to_metric_families

from antiphon.adapters.telemetry.prometheus import MAX_SERIES, OTHER, PrometheusMeter
from antiphon.application.ports import Instrument, Labels
from antiphon.domain.errors import StoreError

COUNTER = Instrument(name="a.count", kind="counter", help="A count.", labels=("who",))
HISTOGRAM = Instrument(
    name="a_time", kind="histogram", help="A time.", unit="seconds", buckets=(1, 10)
)
GAUGE = Instrument(name="a_level", kind="gauge", help="A level.")
LABELLED = Instrument(name="a_state", kind="gauge", help="A state.", labels=("state",))


async def samples_of(meter: PrometheusMeter) -> Mapping[tuple[str, ...], float]:
    text, _ = await meter.expose()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


async def test_a_counter_adds_up_by_its_labels() -> None:
    meter = PrometheusMeter()
    meter.add(COUNTER, 2, ("x",))
    meter.add(COUNTER, labels=("x",))
    meter.add(COUNTER, labels=("y",))
    samples = await samples_of(meter)
    assert (samples["a_count_total", "x"], samples["a_count_total", "y"]) == (3, 1)


async def test_a_histogram_has_the_buckets_of_its_instrument() -> None:
    meter = PrometheusMeter()
    for seconds in (0.5, 5, 50):
        meter.observe(HISTOGRAM, seconds)
    samples = await samples_of(meter)
    assert [samples["a_time_seconds_bucket", le] for le in ("1.0", "10.0", "+Inf")] == [1, 2, 3]
    assert samples["a_time_seconds_sum",] == 55.5


async def test_more_series_than_a_metric_may_have_are_counted_together() -> None:
    meter = PrometheusMeter()
    for number in range(MAX_SERIES + 100):
        meter.add(COUNTER, labels=(str(number),))
    samples = await samples_of(meter)
    counted = {key: value for key, value in samples.items() if key[0] == "a_count_total"}
    assert len(counted) == MAX_SERIES + 1
    assert counted["a_count_total", OTHER] == 100
    meter.add(COUNTER, labels=("0",))
    assert (await samples_of(meter))["a_count_total", "0"] == 2


async def test_what_waits_is_counted_before_the_metrics_are_read() -> None:
    meter = PrometheusMeter()
    meter.before_reading(lambda: meter.add(COUNTER, labels=("x",)))
    assert (await samples_of(meter))["a_count_total", "x"] == 1


async def test_a_gauge_that_cannot_be_read_costs_only_its_own_value(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail() -> Mapping[Labels, float]:
        raise StoreError("the store is gone")

    meter = PrometheusMeter()
    meter.watch(GAUGE, fail)
    meter.add(COUNTER, labels=("x",))
    samples = await samples_of(meter)
    assert math.isnan(samples["a_level",])
    assert samples["a_count_total", "x"] == 1
    assert "a_level" in caplog.text


async def test_a_state_that_has_ended_is_not_shown_anymore() -> None:
    states = iter((("starting",), ("ok",)))

    async def read() -> Mapping[Labels, float]:
        return {next(states): 1}

    meter = PrometheusMeter()
    meter.watch(LABELLED, read)
    await meter.expose()
    samples = await samples_of(meter)
    assert [key[1] for key in samples if key[0] == "a_state"] == ["ok"]


async def test_scrapes_at_the_same_time_see_whole_gauges() -> None:
    reading = 0

    async def read() -> Mapping[Labels, float]:
        nonlocal reading
        reading += 1
        assert reading == 1
        await asyncio.sleep(0)
        reading -= 1
        return {("ok",): 1}

    meter = PrometheusMeter()
    meter.watch(LABELLED, read)
    for text, _ in await asyncio.gather(*(meter.expose() for _ in range(5))):
        assert b'a_state{state="ok"} 1.0' in text


async def test_what_vllm_counts_in_this_process_comes_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running = prometheus_client.Gauge("vllm:num_requests_running", "Requests.", ["model_name"])
    try:
        running.labels("tiny").set(3)
        meter = PrometheusMeter()
        assert ("vllm:num_requests_running", "tiny") not in await samples_of(meter)
        monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
        assert (await samples_of(meter))["vllm:num_requests_running", "tiny"] == 3
    finally:
        prometheus_client.REGISTRY.unregister(running)
