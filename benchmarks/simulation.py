"""What benchmarks/scaling.py simulates: a core with many streams, and the writes of a journal."""

from __future__ import annotations

import heapq
import random
from collections.abc import Mapping, Sequence
from math import ceil, exp
from typing import NamedTuple

TICK_S = 0.05
"""Twenty tokens a second: a fast reader, and a usual speed of a large model."""
WRITE_EVERY_S = 0.010
"""Decision 32: a write starts at least so long after the one before it."""
GRID_S = 0.001
"""The scripted models sleep for whole milliseconds, rounded up: tokens of one come together."""
COLD_S = 0.002
"""After a sleep of this length, caches have lost about two thirds of what they had."""
BUSY = 0.7
"""How much of a core may be in use before a burst makes clients wait."""
SEED = 20261124
TOKENS = 100
CALIBRATED = (8, 192)


class CoreLoad(NamedTuple):
    """What one core does with so many streams. `event_us` is its time for each event."""

    busy: float
    event_us: float
    coldness: float
    """The wakes of an event; those after a short sleep count less."""
    p50_ms: float
    p99_ms: float


def simulate_core(
    streams: int, *, wake_us: float, event_us: float, tick_s: float = TICK_S, seconds: float = 4.0
) -> CoreLoad:
    """Return the load of a core whose streams get a token every `tick_s`, at times of their own."""
    chance = random.Random(SEED)
    due = [(chance.random() * tick_s, number) for number in range(streams)]
    heapq.heapify(due)
    now = busy = coldness = 0.0
    lags: list[float] = []
    while due[0][0] < seconds:
        slept = max(ceil(due[0][0] / GRID_S) * GRID_S - now, 0.0)
        cold = 1 - exp(-slept / COLD_S)
        now += slept
        ready: list[float] = []
        while due[0][0] <= now:
            at, number = due[0]
            heapq.heapreplace(due, (at + tick_s, number))
            ready.append(at)
        cost = (wake_us * cold + event_us * len(ready)) / 1e6
        now += cost
        busy += cost
        coldness += cold
        lags += [now - at for at in ready]
    return CoreLoad(
        busy=busy / max(now, seconds),
        event_us=busy / len(lags) * 1e6,
        coldness=coldness / len(lags),
        p50_ms=quantile(lags, 0.5) * 1e3,
        p99_ms=quantile(lags, 0.99) * 1e3,
    )


def simulate_journal(tick_s: float, *, write_s: float, tokens: int = TOKENS) -> float:
    """Return how many writes each token of a background response costs.

    >>> simulate_journal(0.05, write_s=0.002)
    1.0
    >>> round(simulate_journal(0.002, write_s=0.001), 1)
    0.2
    """
    started, ended, writes, token = -WRITE_EVERY_S, 0.0, 0, 0
    while token < tokens:
        started = max(token * tick_s, started + WRITE_EVERY_S, ended)
        ended = started + write_s
        token = max(token + 1, int(started / tick_s + 1e-9) + 1)
        writes += 1
    return writes / tokens


def streams_of_a_core(*, wake_us: float, event_us: float, busy: float = BUSY) -> int:
    """Return how many streams keep a core busy for this share of the time."""
    few, many = 1, 20_000
    while many - few > max(1, few // 100):
        middle = (few + many) // 2
        found = simulate_core(middle, wake_us=wake_us, event_us=event_us, seconds=0.5)
        few, many = (middle, many) if found.busy < busy else (few, middle)
    return few


def calibrated(token_us: Mapping[int, float]) -> tuple[float, float]:
    """Return `wake_us` and `event_us`, from the costs of a token at two sizes."""
    few, many = CALIBRATED
    wake_us = event_us = 0.0
    for _ in range(4):  # how cold it gets depends a little on the costs
        colder, warmer = (
            simulate_core(size, wake_us=wake_us, event_us=event_us).coldness for size in CALIBRATED
        )
        wake_us = max((token_us[few] - token_us[many]) / (colder - warmer), 0.0)
        event_us = max(token_us[many] - wake_us * warmer, 0.0)
    return wake_us, event_us


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
