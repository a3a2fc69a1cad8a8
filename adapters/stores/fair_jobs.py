"""A queue of jobs for threads, which take those of all tenants in turn."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from typing import Generic, TypeVar

J = TypeVar("J")


class FairJobs(Generic[J]):
    """Jobs by tenant: threads take one of each tenant in turn, and each tenant's in order.

    At most `per_tenant` jobs of a tenant run at the same time, if it is not None. A tenant whose
    jobs take long then leaves a thread to the others. Any thread may call any method.
    """

    def __init__(self, *, per_tenant: int | None = None) -> None:
        self._per_tenant = per_tenant
        # In the order of their turns: a tenant whose job is taken goes to the end.
        self._jobs: OrderedDict[str, deque[J]] = OrderedDict()
        self._running: dict[str, int] = {}
        self._is_closed = False
        self._changed = threading.Condition()

    def put(self, tenant: str, job: J) -> None:
        with self._changed:
            self._jobs.setdefault(tenant, deque()).append(job)
            self._changed.notify()

    def take(self) -> tuple[str, J] | None:
        """Wait for a job that may run, and return it with its tenant. None: closed, and all taken.

        Call `end` once the job has run.
        """
        with self._changed:
            while (tenant := self._next_tenant()) is None:
                if self._is_closed and not self._jobs:
                    return None
                self._changed.wait()
            return tenant, self._take(tenant)

    def take_now(self) -> tuple[str, J] | None:
        """Return a job that may run now, with its tenant, or None."""
        with self._changed:
            tenant = self._next_tenant()
            return None if tenant is None else (tenant, self._take(tenant))

    def end(self, tenant: str) -> None:
        """Report that a tenant's job has run."""
        with self._changed:
            self._running[tenant] -= 1
            if not self._running[tenant]:
                del self._running[tenant]
            self._changed.notify_all()

    def close(self) -> None:
        """Let threads take what is queued and then None."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _next_tenant(self) -> str | None:
        if self._per_tenant is None:
            return next(iter(self._jobs), None)
        limit = self._per_tenant
        return next((each for each in self._jobs if self._running.get(each, 0) < limit), None)

    def _take(self, tenant: str) -> J:
        jobs = self._jobs[tenant]
        job = jobs.popleft()
        self._jobs.move_to_end(tenant)
        if not jobs:
            del self._jobs[tenant]
        self._running[tenant] = self._running.get(tenant, 0) + 1
        return job
