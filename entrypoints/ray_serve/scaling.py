"""How many replicas the load needs: Serve's controller asks every few seconds.

The controller imports this module, so it imports nothing that a server needs.
"""

from __future__ import annotations

from typing import Any

POLICY = f"{__name__}:scale_by_load"
BACKGROUND_RUNS = "background_runs"
"""The background runs of one replica, as it reports them."""
WAITING_RUNS = "waiting_runs"
"""The runs that wait in the store. Each replica reports those of all."""


def scale_by_load(context: Any) -> tuple[float, dict[str, Any]]:
    """Return how many replicas there should be, for Serve's own bounds and delays to apply.

    The load is what is open or waits: requests, and background runs, which no request holds open.
    """
    metrics = context.aggregated_metrics or {}
    background = sum(metrics.get(BACKGROUND_RUNS, {}).values())
    waiting = max(metrics.get(WAITING_RUNS, {}).values(), default=0.0)
    load = context.total_num_requests + background + waiting
    return load / context.config.get_target_ongoing_requests(), {}
