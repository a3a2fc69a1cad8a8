"""Write the files of a batch: one of answers to its requests, and one of errors."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.application.ports import (
    BatchClaim,
    Batches,
    BatchProgress,
    Clock,
    FileStore,
    StoredFile,
)
from antiphon.application.resources.files import CreateFile
from antiphon.application.support.bytes_in_work import BytesInWork
from antiphon.domain.errors import NotFound

OUTPUT_PURPOSE = "batch_output"
READ_BYTES = 1024 * 1024
"""Results that are read at once."""


class WriteFile:
    """Writes the results of a batch to a file. What is done already is not done again."""

    def __init__(
        self,
        batches: Batches,
        files: FileStore,
        create_file: CreateFile,
        bytes_in_work: BytesInWork,
        *,
        now: Clock,
    ) -> None:
        self._batches = batches
        self._files = files
        self._create_file = create_file
        self._bytes_in_work = bytes_in_work
        self._now = now

    async def __call__(
        self, claim: BatchClaim, progress: BatchProgress, *, failures: bool
    ) -> str | None:
        """Return the id of the output file or, for `failures`, of the error file; None for a file
        without a line.

        Raises: RequestError if there is no room for it now; StoreError.
        """
        size = progress.error_bytes if failures else progress.output_bytes
        if not size:
            return None
        kind = "errors" if failures else "output"
        ids = [_file_id(claim.batch_id, kind, attempt) for attempt in range(claim.attempt)]
        for file_id in ids:
            if await self._exists(claim.tenant, file_id):
                return file_id
        file_id = ids[-1]
        with self._bytes_in_work.hold(claim.tenant, "files") as held:
            await held.wait_for(min(size, held.most))
            content = b"".join(await self._read(claim, failures=failures))
            file = StoredFile(
                id=file_id,
                filename=f"{claim.batch_id}_{kind}.jsonl",
                purpose=OUTPUT_PURPOSE,
                bytes=len(content),
                created_at=int(self._now()),
            )
            await self._create_file.add(claim.tenant, file, content)
        return file_id

    async def _exists(self, tenant: str, file_id: str) -> bool:
        try:
            await self._files.get_file(tenant, file_id)
        except NotFound:
            return False
        return True

    async def _read(self, claim: BatchClaim, *, failures: bool) -> Sequence[bytes]:
        bodies: list[bytes] = []
        after = 0
        while results := await self._batches.read_results(
            claim, failures=failures, after=after, limit_bytes=READ_BYTES
        ):
            bodies += [each.body for each in results]
            after = results[-1].line
        return bodies


def _file_id(batch_id: str, kind: str, attempt: int) -> str:
    """Return an id that follows from the batch: a server that goes on finds an earlier one's file.

    Each attempt has its own, since a file that a killed server left half-written may keep its id
    from others for an hour.
    """
    name = f"file-{batch_id.removeprefix('batch_')}-{kind}"
    return f"{name}-{attempt}" if attempt else name
