"""Write the files of a batch: the answers to its requests, and the errors."""

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


class WriteFiles:
    """Writes the results of a batch to files. What is done already is not done again."""

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
        self, claim: BatchClaim, progress: BatchProgress
    ) -> tuple[str | None, str | None]:
        """Return the ids of the output file and of the error file, None for one without a line.

        Raises: RequestError if there is no room for a file now; StoreError.
        """
        output = await self._write(claim, progress.output_bytes, failures=False)
        return output, await self._write(claim, progress.error_bytes, failures=True)

    async def _write(self, claim: BatchClaim, size: int, *, failures: bool) -> str | None:
        if not size:
            return None
        # The id follows from the batch: a server that goes on after another finds its file.
        kind = "errors" if failures else "output"
        file_id = f"file-{claim.batch_id.removeprefix('batch_')}-{kind}"
        if await self._exists(claim.tenant, file_id):
            return file_id
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
