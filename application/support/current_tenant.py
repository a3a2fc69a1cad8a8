"""The tenant whose work the current task does, and the tasks that it starts."""

from __future__ import annotations

from contextvars import ContextVar

_TENANT: ContextVar[str] = ContextVar("tenant", default="")


def work_for(tenant: str) -> None:
    """Let what the current task does from now on be this tenant's."""
    _TENANT.set(tenant)


def current_tenant() -> str:
    """Return whose work the current task does; "" if it is nobody's."""
    return _TENANT.get()
