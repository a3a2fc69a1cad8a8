"""Build what bounds callers, and shares this server's capacity between tenants."""

from __future__ import annotations

from antiphon.application.ports import Clock, Store
from antiphon.application.resources.limits import EnforceLimits
from antiphon.application.resources.quotas import CheckQuota, Quotas
from antiphon.application.responses.admission import Admission, AdmissionLimits
from antiphon.application.responses.create import CallerBounds
from antiphon.application.runs.active_runs import ActiveRuns
from antiphon.domain.access.limits import parse_limits
from antiphon.entrypoints.settings import Settings

RESERVE_DIVISOR = 4
"""A quarter of each capacity is kept for the other tenants."""


def tenant_share(total: int, settings: Settings) -> int:
    """Return how much of a capacity one tenant may use: all of it if there are no keys, since all
    requests are then of one tenant."""
    if not settings.needs_keys:
        return total
    return max(1, total - max(1, total // RESERVE_DIVISOR))


def admission(settings: Settings) -> Admission:
    """Return the admission of foreground responses, the same for all tenants."""
    return Admission(
        AdmissionLimits(
            max_runs=settings.max_runs,
            max_runs_per_tenant=tenant_share(settings.max_runs, settings),
            max_prompt_tokens=settings.max_prompt_tokens,
            max_prompt_tokens_per_tenant=tenant_share(settings.max_prompt_tokens, settings),
            max_waiting=settings.max_queued,
            max_waiting_per_tenant=tenant_share(settings.max_queued, settings),
            queue_s=settings.queue_s,
        )
    )


def active_runs(settings: Settings) -> ActiveRuns:
    """Return the runs of this server: none yet."""
    slots = settings.background_runs
    return ActiveRuns(slots=slots, slots_per_tenant=tenant_share(slots, settings))


def caller_bounds(
    settings: Settings, store: Store, owner: str, *, now: Clock, clock: Clock
) -> CallerBounds:
    responses, size = settings.tenant_quotas
    defaults = parse_limits(settings.default_limit)
    return CallerBounds(
        limits=EnforceLimits(store, owner=owner, now=now, defaults=defaults),
        check_quota=CheckQuota(store, Quotas(responses=responses, bytes=size), clock=clock),
    )
