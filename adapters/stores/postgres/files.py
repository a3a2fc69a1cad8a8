"""Uploaded files that servers share: a list in PostgreSQL, and contents there or elsewhere.

A file has a row before its content is written and after its content is deleted, so a content never
exists without a row. Readers see the rows of complete files alone. Rows in other states are what a
killed server has left; any server sweeps them, with their contents, once they are old enough.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress

import msgspec

from antiphon.adapters.stores.files.contents import ContentKey, FileContents
from antiphon.adapters.stores.postgres.contents import PostgresContents
from antiphon.adapters.stores.postgres.server import READ_IN_ORDER, Connection, PostgresServer, Row
from antiphon.application.ports import FilePageQuery, FileStore, FileUsage, StoredFile
from antiphon.application.support.fair_queue import FairQueue
from antiphon.application.support.periodic import run_periodically
from antiphon.application.support.tasks import run_to_completion
from antiphon.domain.errors import FilesFull, NotFound, SettingsError, StoreError

logger = logging.getLogger("antiphon.files")

POOL = 6
"""Connections for files, apart from those that runs need; half of them at most for one tenant."""

SWEEP_AFTER_S = 3600.0
"""The age of leftovers that are swept: newer ones may be another server's work."""

SWEEP_EVERY_S = 600.0
SWEEP_LIMIT = 100
"""Files that one sweep erases."""

_decode = msgspec.json.Decoder(StoredFile).decode

START_UPLOAD = """
INSERT INTO files (tenant, id, created_at, purpose, bytes, body, place, state, changed_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, 'writing', clock_timestamp())
RETURNING number
"""

# Locks the tenant's row, so that the limit is exact.
LOCK_USAGE = """
INSERT INTO file_usage (tenant, files, bytes) VALUES ($1, 0, 0)
ON CONFLICT (tenant) DO UPDATE SET files = file_usage.files
RETURNING files, bytes
"""

FINISH_UPLOAD = """
WITH stored AS (
    UPDATE files SET state = 'stored', changed_at = clock_timestamp()
    WHERE number = $2 AND state = 'writing' RETURNING bytes
)
UPDATE file_usage SET files = files + 1, bytes = file_usage.bytes + stored.bytes
FROM stored WHERE tenant = $1
RETURNING 1
"""

MARK_DELETED = """
WITH old AS (
    SELECT number, tenant, bytes, state FROM files WHERE {condition} FOR UPDATE
), usage AS (
    UPDATE file_usage SET files = files - 1, bytes = file_usage.bytes - old.bytes
    FROM old WHERE file_usage.tenant = old.tenant AND old.state = 'stored'
)
UPDATE files SET state = 'deleted', changed_at = clock_timestamp() FROM old
WHERE files.number = old.number
RETURNING files.number, files.tenant, files.id, files.bytes
"""
DELETE_STORED = MARK_DELETED.format(condition="tenant = $1 AND id = $2 AND state = 'stored'")
DISCARD_UPLOAD = MARK_DELETED.format(condition="number = $1")
DISCARD_LEFTOVER = MARK_DELETED.format(condition="number = $1 AND state <> 'stored'")

FORGET = "DELETE FROM files WHERE number = $1 AND state = 'deleted'"

GET_FILE = "SELECT number, body FROM files WHERE tenant = $1 AND id = $2 AND state = 'stored'"

POSITION_OF = """
SELECT created_at, number, purpose FROM files WHERE tenant = $1 AND id = $2 AND state = 'stored'
"""

USAGE = "SELECT files, bytes FROM file_usage WHERE tenant = $1"
TOTAL_BYTES = "SELECT coalesce(sum(bytes), 0) FROM file_usage"

LEFTOVERS = """
SELECT number FROM files
WHERE state <> 'stored' AND place = $1
    AND changed_at < clock_timestamp() - make_interval(secs => $2)
ORDER BY changed_at LIMIT $3
"""

SWEEP_USAGE = "DELETE FROM file_usage WHERE files = 0"


class PostgresFileStore(FileStore):
    """Files in the schema of the PostgreSQL store, with a pool of connections of their own.

    `contents` keeps the contents, or the database does. All servers that share the schema must name
    the same place for them.
    """

    def __init__(
        self, dsn: str, *, schema: str = "antiphon", contents: FileContents | None = None
    ) -> None:
        self._server = PostgresServer(
            dsn,
            schema=schema,
            pool=POOL,
            start_timeout_s=5.0,
            run_timeout_s=20.0,
            planner=READ_IN_ORDER,
        )
        self._slots = FairQueue(POOL, per_tenant=POOL // 2)
        self._contents = contents or PostgresContents(self._server, self._slots)
        self._sweeping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._server.start()
        try:
            await self._contents.start()
            await self.sweep()
        except (SettingsError, StoreError) as error:
            await self._server.aclose()
            raise SettingsError(str(error)) from error
        self._sweeping = asyncio.create_task(
            run_periodically("deleted files stay longer", self.sweep, every_s=SWEEP_EVERY_S)
        )

    async def aclose(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait([self._sweeping])
        await self._server.aclose()

    async def create_file(
        self, tenant: str, file: StoredFile, content: bytes, *, limit: FileUsage | None = None
    ) -> None:
        if limit is not None:
            _check_room(await self.get_usage(tenant), file, limit)  # before anything is written
        # A canceled upload would leave its content behind until it is swept.
        await run_to_completion(self._add(tenant, file, content, limit))

    async def get_usage(self, tenant: str) -> FileUsage:
        rows = await self._read(tenant, USAGE, tenant)
        return FileUsage(files=rows[0][0], bytes=rows[0][1]) if rows else FileUsage()

    async def get_total_bytes(self) -> int:
        [(size,)] = await self._server.fetch(TOTAL_BYTES, idempotent=True)
        return int(size)

    async def list_files(self, tenant: str, query: FilePageQuery) -> list[StoredFile]:
        conditions = ["tenant = $1", "state = 'stored'"]
        values: list[object] = [tenant]
        bind = _binder(values)
        if query.purpose is not None:
            conditions.append(f"purpose = {bind(query.purpose)}")
        sign, direction = ("<", "DESC") if query.is_descending else (">", "ASC")
        if query.after is not None:
            created_at, number = await self._position_of(tenant, query.after, query.purpose)
            conditions.append(
                f"(created_at, number) {sign} ({bind(created_at)}::bigint, {bind(number)}::bigint)"
            )
        limit = None if query.limit < 0 else query.limit
        rows = await self._read(
            tenant,
            f"SELECT body FROM files WHERE {' AND '.join(conditions)}"
            f" ORDER BY created_at {direction}, number {direction} LIMIT {bind(limit)}::bigint",
            *values,
        )
        return [_decode(body) for (body,) in rows]

    async def list_all_files(self, tenant: str) -> list[StoredFile]:
        return await self.list_files(tenant, FilePageQuery(limit=-1))

    async def get_file(self, tenant: str, file_id: str) -> StoredFile:
        return (await self._find(tenant, file_id))[1]

    async def get_content(self, tenant: str, file_id: str) -> bytes:
        async with aclosing(self.stream_content(tenant, file_id)) as pieces:
            return b"".join([piece async for piece in pieces])

    async def stream_content(self, tenant: str, file_id: str) -> AsyncGenerator[bytes]:
        key, _ = await self._find(tenant, file_id)
        async with aclosing(self._contents.read(key)) as pieces:
            try:
                async for piece in pieces:
                    yield piece
            except NotFound:
                await self._find(tenant, file_id)  # it is known unless it was deleted meanwhile
                raise StoreError(
                    f"The content of file {file_id!r} is missing from {self._contents.place}."
                ) from None

    async def delete_file(self, tenant: str, file_id: str) -> None:
        await run_to_completion(self._delete(tenant, file_id))

    async def sweep(self) -> None:
        """Erase what killed servers have left, and what could not be erased at first."""
        rows = await self._server.fetch(
            LEFTOVERS, self._contents.place, SWEEP_AFTER_S, SWEEP_LIMIT, idempotent=True
        )
        for (number,) in rows:
            await self._discard(DISCARD_LEFTOVER, number)
        await self._server.fetch(SWEEP_USAGE, idempotent=True)

    # --- uploads ----------------------------------------------------------------------------------

    async def _add(
        self, tenant: str, file: StoredFile, content: bytes, limit: FileUsage | None
    ) -> None:
        row = (file.created_at, file.purpose, file.bytes, msgspec.json.encode(file))
        [(number,)] = await self._write(
            tenant, START_UPLOAD, tenant, file.id, *row, self._contents.place
        )
        key = ContentKey(number=number, tenant=tenant, file_id=file.id, bytes=len(content))
        try:
            await self._contents.write(key, content)
            async with self._slots.slot(tenant):
                await self._finish_upload(key, file, limit)
        except BaseException:
            with suppress(StoreError):  # it is swept later
                # Also a file that is stored after all: the answer to the commit may be lost.
                await self._discard(DISCARD_UPLOAD, number)
            raise

    async def _finish_upload(
        self, key: ContentKey, file: StoredFile, limit: FileUsage | None
    ) -> None:
        async def work(db: Connection) -> None:
            files, size = await db.fetchrow(LOCK_USAGE, key.tenant)
            if limit is not None:
                _check_room(FileUsage(files=files, bytes=size), file, limit)
            if not await db.fetch(FINISH_UPLOAD, key.tenant, key.number):
                raise StoreError(f"The upload of {file.id!r} took too long and was discarded.")

        await self._server.in_transaction(work, timeouts=self._server.run_timeouts)

    # --- deletion ---------------------------------------------------------------------------------

    async def _delete(self, tenant: str, file_id: str) -> None:
        rows = await self._write(tenant, DELETE_STORED, tenant, file_id)
        if not rows:
            raise _not_found()
        try:
            await self._erase(rows[0])
        except StoreError as error:
            logger.warning("a deleted file will be erased later: %s", error)

    async def _discard(self, statement: str, number: int) -> None:
        for row in await self._server.fetch(statement, number):
            await self._erase(row)

    async def _erase(self, row: Row) -> None:
        number, tenant, file_id, size = row
        key = ContentKey(number=number, tenant=tenant, file_id=file_id, bytes=size)
        await self._contents.delete(key)
        await self._server.fetch(FORGET, number, idempotent=True)

    # --- rows -------------------------------------------------------------------------------------

    async def _find(self, tenant: str, file_id: str) -> tuple[ContentKey, StoredFile]:
        rows = await self._read(tenant, GET_FILE, tenant, file_id)
        if not rows:
            raise _not_found()
        number, body = rows[0]
        file = _decode(body)
        return ContentKey(number=number, tenant=tenant, file_id=file_id, bytes=file.bytes), file

    async def _position_of(self, tenant: str, file_id: str, purpose: str | None) -> tuple[int, int]:
        rows = await self._read(tenant, POSITION_OF, tenant, file_id)
        if not rows or purpose not in (None, rows[0][2]):
            raise _not_found()
        return rows[0][0], rows[0][1]

    async def _read(self, tenant: str, query: str, *values: object) -> list[Row]:
        async with self._slots.slot(tenant):
            return await self._server.fetch(query, *values, idempotent=True)

    async def _write(self, tenant: str, statement: str, *values: object) -> list[Row]:
        async with self._slots.slot(tenant):
            return await self._server.fetch(statement, *values, timeouts=self._server.run_timeouts)


def _check_room(used: FileUsage, file: StoredFile, limit: FileUsage) -> None:
    if not limit.includes(FileUsage(files=used.files + 1, bytes=used.bytes + file.bytes)):
        raise FilesFull(files=used.files, used_bytes=used.bytes)


def _binder(values: list[object]) -> Callable[[object], str]:
    def bind(value: object) -> str:
        values.append(value)
        return f"${len(values)}"

    return bind


def _not_found() -> NotFound:
    return NotFound("There is no such file.")
