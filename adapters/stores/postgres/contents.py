"""The contents of files in PostgreSQL, in parts."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from antiphon.adapters.stores.files.contents import ContentKey, FileContents
from antiphon.adapters.stores.postgres.server import PostgresServer
from antiphon.application.support.fair_queue import FairQueue
from antiphon.domain.errors import NotFound, StoreError

PART_BYTES = 512 * 1024
"""How much of a file one statement reads or writes."""

ADD_PART = "INSERT INTO file_parts (file, part, content) VALUES ($1, $2, $3)"
GET_PART = "SELECT content FROM file_parts WHERE file = $1 AND part = $2"
DELETE_PARTS = "DELETE FROM file_parts WHERE file = $1"


class PostgresContents(FileContents):
    """Contents as rows of parts, in the pool of `server`, which tenants share fairly."""

    place = "postgres"

    def __init__(self, server: PostgresServer, slots: FairQueue) -> None:
        self._server = server
        self._slots = slots

    async def start(self) -> None: ...

    async def write(self, key: ContentKey, content: bytes) -> None:
        view = memoryview(content)
        for part, first in enumerate(range(0, len(content), PART_BYTES)):
            async with self._slots.slot(key.tenant):
                await self._server.fetch(
                    ADD_PART,
                    key.number,
                    part,
                    view[first : first + PART_BYTES],
                    timeouts=self._server.run_timeouts,
                )

    async def read(self, key: ContentKey) -> AsyncGenerator[bytes]:
        for part, _ in enumerate(range(0, key.bytes, PART_BYTES)):
            async with self._slots.slot(key.tenant):
                rows = await self._server.fetch(GET_PART, key.number, part, idempotent=True)
            if not rows and part == 0:
                raise NotFound("There is no such file.")
            if not rows:
                raise StoreError(f"File {key.file_id!r} was deleted while it was read.")
            yield rows[0][0]

    async def delete(self, key: ContentKey) -> None:
        await self._server.fetch(
            DELETE_PARTS, key.number, timeouts=self._server.run_timeouts, idempotent=True
        )
