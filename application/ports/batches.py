"""Batches of requests, and the results of their lines."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from msgspec import Struct

from antiphon.application.ports.vector_stores import VectorPageQuery
from antiphon.domain.access.callers import Caller
from antiphon.domain.batches.batch import Batch
from antiphon.domain.batches.lines import LineAnswer

ChangeBatch = Callable[[Batch], Batch]
"""Returns the new state of a batch. What it raises leaves the batch as it is."""


class BatchClaim(Struct, frozen=True, kw_only=True):
    """The right to work on a batch. `attempt` counts from 1.

    A claim is void after a later attempt has started, and after its batch has ended.
    """

    key: int
    attempt: int
    tenant: str
    batch_id: str


class ClaimedBatch(Struct, frozen=True, kw_only=True):
    """A batch under a new claim, and who has sent it."""

    claim: BatchClaim
    caller: Caller
    batch: Batch


class LineResult(Struct, frozen=True, kw_only=True):
    """The outcome of one line: `body` is a line of the output file, or of the error file."""

    line: int
    is_failure: bool
    body: bytes


class BatchProgress(Struct, frozen=True, kw_only=True):
    """The numbers of the lines that have results, and the bytes of these in each file."""

    lines: Collection[int]
    output_bytes: int = 0
    error_bytes: int = 0


class Batches(Protocol):
    """Batches by tenant, and the results of those that have not ended.

    Ids of other tenants are unknown. `request_counts.completed` and `failed` of a batch are counted
    by the store, from its results; those of the batch that is passed are ignored. Calls may run
    concurrently. Raises: StoreError, from any method, when the store fails.
    """

    @abstractmethod
    async def start(self) -> None:
        """Open. Raises: SettingsError."""

    @abstractmethod
    async def aclose(self) -> None: ...

    @abstractmethod
    async def create_batch(self, caller: Caller, batch: Batch) -> None:
        """Add a batch of the caller's tenant. It may be claimed immediately."""

    @abstractmethod
    async def get_batch(self, tenant: str, batch_id: str) -> Batch:
        """Raises: NotFound."""

    @abstractmethod
    async def list_batches(self, tenant: str, query: VectorPageQuery) -> list[Batch]:
        """Return a page of the tenant's batches, in the order of their creation.

        Raises: NotInList.
        """

    @abstractmethod
    async def count_open_batches(self, tenant: str) -> int:
        """Return how many batches of the tenant have not ended."""

    @abstractmethod
    async def update_batch(self, tenant: str, batch_id: str, change: ChangeBatch) -> Batch:
        """Replace a batch by what `change` makes of it, and return that.

        Nothing else changes the batch meanwhile. Raises: NotFound; what `change` raises.
        """

    @abstractmethod
    async def update_claimed(self, claim: BatchClaim, change: ChangeBatch) -> Batch | None:
        """Do the same for a claimed batch. Return None, and change nothing, if the claim is void.

        A batch that has ended cannot be claimed any more.
        """

    @abstractmethod
    async def claim_batch(
        self, *, claim_s: float, skip: Collection[str] = ()
    ) -> ClaimedBatch | None:
        """Claim the batch that has been due longest, or return None. A new batch is due at once.

        Tenants in `skip` get none now. Only one of several concurrent callers gets a batch. After
        `claim_s`, it is due again.
        """

    @abstractmethod
    async def extend_claim(self, claim: BatchClaim, seconds: float) -> Batch | None:
        """Extend the claim to `seconds` from now. Return the batch, or None if the claim is void.

        With 0 seconds, the batch is due for others.
        """

    @abstractmethod
    async def add_results(self, claim: BatchClaim, results: Sequence[LineResult]) -> bool:
        """Add results of lines. Return False, and add nothing, if the claim is void.

        A line that has a result keeps it.
        """

    @abstractmethod
    async def get_progress(self, claim: BatchClaim) -> BatchProgress:
        """Return which lines have results."""

    @abstractmethod
    async def read_results(
        self, claim: BatchClaim, *, failures: bool, after: int = 0, limit_bytes: int
    ) -> Sequence[LineResult]:
        """Return results of one file, in the order of their lines, from the first after `after`.

        At least one if there is any, then about as many as fit in `limit_bytes`.
        """

    @abstractmethod
    async def sweep(self, *, ended_before: float, limit: int) -> int:
        """Erase results of batches that have ended, and batches that ended before this time.

        Erase up to about `limit` rows, and return their number; 0 when nothing is left.
        """


class AnswerRequest(Protocol):
    """Answers the request of a line, as if its caller had sent it over HTTP."""

    @abstractmethod
    async def __call__(self, caller: Caller, url: str, body: bytes) -> LineAnswer:
        """Return the answer, also if it is an error."""
