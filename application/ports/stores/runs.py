"""The runs of all servers: who owns which, and who may write it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from msgspec import Struct

from antiphon.domain.responses.response import Response


class Lease(Struct, frozen=True, kw_only=True):
    """The right of a run's owner to write it. A waiting run has no lease.

    A lease is void after the run has ended, was deleted, given back, or leased under a higher
    epoch. It is the only fence: the writes of a server that resumes after a pause have no effect.
    """

    tenant: str
    response_id: str
    epoch: int = 1


class LeasedRun(Struct, frozen=True, kw_only=True):
    """A run under a new lease, with `response` and `job` as they were created."""

    lease: Lease
    response: Response
    job: bytes | None = None


NO_RUNS: Mapping[str, int] = MappingProxyType({})


class RunStore(Protocol):
    """The runs of all servers: each unfinished response waits, or one server owns it.

    An owner is a server's name from one start to its stop. It is alive for the seconds of its last
    heartbeat, by a clock that is never set.
    """

    @property
    def outlives_server(self) -> bool:
        """Whether what it has is still there when this server is not: another may go on then."""
        return True

    @abstractmethod
    def record_heartbeat(self, owner: str, ttl_s: float) -> None:
        """Keep the owner alive for `ttl_s` from now.

        Blocks: the caller is a separate thread, so that it runs while the event loop is busy.
        """

    @abstractmethod
    async def end_heartbeat(self, owner: str) -> None:
        """Declare the owner dead: other servers may lease its runs immediately."""

    @abstractmethod
    async def lease_runs(
        self,
        owner: str,
        *,
        limit: int,
        waiting: bool = True,
        held: Mapping[str, int] = NO_RUNS,
        per_tenant: int | None = None,
    ) -> list[LeasedRun]:
        """Lease waiting runs, and runs whose owner is dead, under higher epochs. Return the oldest
        first.

        Tenants take turns: in each round, each tenant gets its oldest run. A tenant that has runs
        already (`held`: their number, by tenant) joins as many rounds later, and gets none after
        round `per_tenant`. Without `waiting`, only runs whose owner is dead. Only one of several
        concurrent callers gets a run. An owner never gets its own runs, even if it is dead: it may
        only have lost its connection to the store and still be running them.
        """

    @abstractmethod
    async def count_waiting_runs(self) -> int:
        """Return how many runs of all tenants wait for a server."""

    @abstractmethod
    async def take_over_run(self, owner: str, tenant: str, response_id: str) -> LeasedRun | None:
        """Lease a run under a higher epoch, even if its owner is alive; None if it has ended.

        Several concurrent callers get it one after another, and the last one keeps it. Raises:
        NotFound.
        """

    @abstractmethod
    async def give_back_run(self, lease: Lease) -> bool:
        """Let the run wait for another owner. Return False if the lease is void."""

    @abstractmethod
    async def list_leases(self, owner: str) -> list[Lease]:
        """Return the owner's valid leases."""
