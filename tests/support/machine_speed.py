"""How slow this machine is, by work that is always the same: limits of time hold for a usual one.

One that is shared with others, or older, takes two to three times as long for everything.
"""

from __future__ import annotations

import json
import time

USUAL_S = 0.0015
"""The processor time of `_work` on a machine for which the limits of the tests hold."""

TRIES = 5
_TEXT = json.dumps([{"role": "user", "content": f"word {number}"} for number in range(200)])


def slowness() -> float:
    """Return how many times longer this machine takes than a usual one: at least 1."""
    return max(1.0, min(_work_s() for _ in range(TRIES)) / USUAL_S)


def _work_s() -> float:
    started_at = time.thread_time()
    for _ in range(20):
        sum(len(item["content"].split()) for item in json.loads(_TEXT))
    return time.thread_time() - started_at
