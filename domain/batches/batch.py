"""A batch: the object of the API, and its states.

    validating ── begin ──► in_progress ── finalize ──► finalizing ──► completed, or expired
        │                        │                          │
        └── fail ──► failed ◄────┴──────────────────────────┘
    cancel: ──► cancelling ──► cancelled

A batch is validated, run and finalized by one server at a time. `TRANSITIONS` has all that may
happen; what it does not name is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from antiphon.domain.bounds import Id
from antiphon.domain.errors import RequestError
from antiphon.domain.requests.request import Metadata

MAX_LINES = 50_000
"""Requests in a batch, as in the official API."""

WINDOW_S = 24 * 60 * 60

Endpoint = Literal["/v1/responses", "/v1/chat/completions", "/v1/completions", "/v1/embeddings"]
BatchStatus = Literal[
    "validating",
    "failed",
    "in_progress",
    "finalizing",
    "completed",
    "expired",
    "cancelling",
    "cancelled",
]
Step = Literal["begin", "finalize", "complete", "expire", "cancel", "fail"]

TRANSITIONS: Mapping[BatchStatus, Mapping[Step, BatchStatus]] = {
    "validating": {"begin": "in_progress", "cancel": "cancelling", "fail": "failed"},
    "in_progress": {"finalize": "finalizing", "cancel": "cancelling", "fail": "failed"},
    "finalizing": {"complete": "completed", "expire": "expired", "fail": "failed"},
    # Every batch that is cancelled ends so: also one whose last line is done, or whose time is up.
    "cancelling": {
        "cancel": "cancelling",
        "complete": "cancelled",
        "expire": "cancelled",
        "fail": "cancelled",
    },
    "completed": {},
    "failed": {},
    "expired": {},
    "cancelled": {"cancel": "cancelled"},
}
"""What each step leads to, from each status. A cancellation may be repeated."""

ENDED: frozenset[BatchStatus] = frozenset({"completed", "failed", "expired", "cancelled"})


class NewBatch(Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/batches`."""

    input_file_id: Id
    endpoint: Endpoint
    completion_window: Literal["24h"]
    metadata: Metadata | None = None


class BatchError(Struct, frozen=True, kw_only=True):
    """Why a batch failed; `line` is the number of the line at fault, from 1."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class BatchErrors(Struct, frozen=True, kw_only=True):
    data: Sequence[BatchError]
    object: Literal["list"] = "list"


class BatchRequestCounts(Struct, frozen=True, kw_only=True):
    """`completed` requests were answered with a status below 400, `failed` ones with another."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class Batch(Struct, frozen=True, kw_only=True):
    """A batch, as clients get it. Times are in seconds since the epoch."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    errors: BatchErrors | None = None
    input_file_id: str
    completion_window: str = "24h"
    status: BatchStatus = "validating"
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: BatchRequestCounts = BatchRequestCounts()
    metadata: Metadata | None = None

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED


def advance(batch: Batch, step: Step, now: float) -> Batch:
    """Return the batch after this step. A status that it has already keeps its time.

    Raises: RequestError if the step cannot follow, which only clients' cancellations may try.
    """
    status = TRANSITIONS[batch.status].get(step)
    if status is None:
        raise RequestError(f"Cannot {step} a batch with the status {batch.status!r}.")
    if status == batch.status:
        return batch
    return replace(batch, status=status, **{f"{status}_at": int(now)})


def may(batch: Batch, step: Step) -> bool:
    """Whether this step can follow."""
    return step in TRANSITIONS[batch.status]
