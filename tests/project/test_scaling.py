"""The simulation of docs/scaling.md keeps to what is known of it without a run."""

from __future__ import annotations

import pytest
from benchmarks import simulation

COSTS = {"wake_us": 100.0, "event_us": 40.0}


def test_an_event_costs_less_where_there_are_more_streams() -> None:
    costs = [simulation.simulate_core(streams, **COSTS).event_us for streams in (4, 32, 256, 1024)]
    assert costs == sorted(costs, reverse=True)
    assert COSTS["event_us"] < costs[-1] < costs[0] <= sum(COSTS.values())


def test_a_core_that_has_too_much_to_do_is_busy_all_the_time_and_late() -> None:
    few, many = (simulation.simulate_core(streams, **COSTS) for streams in (64, 2000))
    assert few.busy < 0.2
    assert many.busy == pytest.approx(1, abs=0.01)
    assert many.p99_ms > 100 * few.p99_ms


def test_the_streams_of_a_core_keep_it_as_busy_as_asked() -> None:
    found = simulation.streams_of_a_core(**COSTS, busy=0.5)
    assert simulation.simulate_core(found, **COSTS).busy == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("wake_us", [0.0, 25.0, 130.0])
def test_the_constants_are_found_again_in_what_they_cause(wake_us: float) -> None:
    core = simulation.simulate_core
    sizes = simulation.CALIBRATED
    caused = {size: core(size, wake_us=wake_us, event_us=40.0).event_us for size in sizes}
    assert simulation.calibrated(caused) == pytest.approx((wake_us, 40.0), abs=0.5)


@pytest.mark.parametrize("tick_s", [0.001, 0.002, 0.004])
def test_tokens_that_are_fast_share_a_write(tick_s: float) -> None:
    writes = simulation.simulate_journal(tick_s, write_s=0.001, tokens=10_000)
    assert writes == pytest.approx(tick_s / simulation.WRITE_EVERY_S, rel=0.25)


def test_a_slow_store_gets_fewer_writes() -> None:
    assert simulation.simulate_journal(0.002, write_s=0.05) < simulation.simulate_journal(
        0.002, write_s=0.001
    )


def test_tokens_that_are_slow_have_a_write_each() -> None:
    assert simulation.simulate_journal(0.05, write_s=0.002) == 1
