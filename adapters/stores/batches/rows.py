"""Conversion of batches to and from rows, for all databases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from antiphon.application.ports import BatchClaim, BatchProgress, ClaimedBatch, LineResult
from antiphon.domain.access.callers import Caller
from antiphon.domain.batches.batch import Batch
from antiphon.domain.errors import NotFound

_decode_batch = msgspec.json.Decoder(Batch).decode
_decode_caller = msgspec.json.Decoder(Caller).decode
encode = msgspec.json.Encoder().encode


def not_found(batch_id: str) -> NotFound:
    return NotFound(f"Batch with id {batch_id[:100]!r} not found.", param="batch_id")


def batch_of(body: bytes, completed: int, failed: int) -> Batch:
    """Return the batch of a row, with the counts that the store keeps."""
    batch = _decode_batch(body)
    counts = replace(batch.request_counts, completed=completed, failed=failed)
    return replace(batch, request_counts=counts)


def claimed_of(row: Any) -> ClaimedBatch:
    """Return the claimed batch of a row: body, counts, key, attempt, tenant, id, caller."""
    body, completed, failed, key, attempt, tenant, batch_id, caller = row
    return ClaimedBatch(
        claim=BatchClaim(key=key, attempt=attempt, tenant=tenant, batch_id=batch_id),
        caller=_decode_caller(caller),
        batch=batch_of(body, completed, failed),
    )


def progress_of(rows: Sequence[Any]) -> BatchProgress:
    """Return the progress that rows tell of: line, whether it is a failure, bytes."""
    return BatchProgress(
        lines=frozenset(line for line, _, _ in rows),
        output_bytes=sum(size for _, is_failure, size in rows if not is_failure),
        error_bytes=sum(size for _, is_failure, size in rows if is_failure),
    )


def results_of(rows: Iterable[Any]) -> list[LineResult]:
    return [
        LineResult(line=line, is_failure=bool(is_failure), body=body)
        for line, is_failure, body in rows
    ]


def fitting(rows: Iterable[Any], limit_bytes: int) -> Iterator[int]:
    """Yield the numbers of lines that fit in so many bytes, and the first in any case.

    >>> [*fitting([(1, 90), (2, 20), (3, 5)], 100)]
    [1]
    """
    size = 0
    for line, length in rows:
        size += length
        if size > limit_bytes and size > length:
            return
        yield line
