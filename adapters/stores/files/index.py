"""The index of uploaded files in SQLite: pages of lists, and how much each tenant has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import apsw
import msgspec

from antiphon.adapters.stores.sqlite.file import Row, SqliteFile, rows_of
from antiphon.application.ports import FilePageQuery, FileUsage, StoredFile
from antiphon.domain.errors import FilesFull, NotFound

_decode_page = msgspec.json.Decoder(list[StoredFile]).decode

# A file that a starting server has found in the folder meanwhile is in the index already.
_ADD = (
    "INSERT OR IGNORE INTO files (folder, id, created_at, purpose, bytes, body)"
    " VALUES (?, ?, ?, ?, ?, ?)"
)
_REMOVE = "DELETE FROM files WHERE folder = ? AND id = ?"


class FileIndex:
    """The content of each folder; one folder has the files of one tenant."""

    def __init__(self, path: Path) -> None:
        self._file = SqliteFile(path, migrations="files", readers=2)

    async def start(self) -> None:
        """Open. Raises: SettingsError."""
        await self._file.start()

    async def aclose(self) -> None:
        await self._file.aclose()

    async def add(self, folder: str, file: StoredFile, limit: FileUsage | None) -> None:
        """Add a file. Raises: FilesFull if the folder then has more than `limit`."""

        def work(db: apsw.Connection) -> None:
            before = _usage(db, folder)
            db.execute(_ADD, _row_of(folder, file))
            after = _usage(db, folder)
            if limit is not None and not limit.includes(after):
                raise FilesFull(files=before.files, used_bytes=before.bytes)

        await self._file.write(work)

    async def remove(self, folder: str, file_id: str) -> None:
        """Remove a file, if it is there, and every trace of its name."""
        if await self._file.read(lambda db: _find(db, folder, file_id), tenant=folder):
            await self._file.erase(lambda db: rows_of(db, _REMOVE, (folder, file_id)))

    async def usage(self, folder: str) -> FileUsage:
        return await self._file.read(lambda db: _usage(db, folder), tenant=folder)

    async def total_bytes(self) -> int:
        query = "SELECT coalesce(sum(bytes), 0) FROM usage"
        [(size,)] = await self._file.read(lambda db: rows_of(db, query, ()))
        return int(size)

    async def page(self, folder: str, query: FilePageQuery) -> list[StoredFile]:
        """Raises: NotFound for an unknown `after`."""
        return await self._file.read(lambda db: _page(db, folder, query), tenant=folder)

    async def folders(self) -> list[str]:
        rows = await self._file.read(lambda db: rows_of(db, "SELECT folder FROM usage", ()))
        return [folder for (folder,) in rows]

    async def ids(self, folder: str) -> set[str]:
        query = "SELECT id FROM files WHERE folder = ?"
        rows = await self._file.read(lambda db: rows_of(db, query, (folder,)), tenant=folder)
        return {file_id for (file_id,) in rows}

    async def repair(
        self, folder: str, *, missing: Sequence[StoredFile], gone: Sequence[str]
    ) -> None:
        """Add the files that the index does not know, and remove those that are gone."""

        def work(db: apsw.Connection) -> None:
            db.executemany(_ADD, [_row_of(folder, file) for file in missing])
            db.executemany(_REMOVE, [(folder, file_id) for file_id in gone])

        await self._file.write(work)


def _row_of(folder: str, file: StoredFile) -> Row:
    body = msgspec.json.encode(file)
    return folder, file.id, file.created_at, file.purpose, file.bytes, body


def _usage(db: apsw.Connection, folder: str) -> FileUsage:
    rows = rows_of(db, "SELECT files, bytes FROM usage WHERE folder = ?", (folder,))
    return FileUsage(files=rows[0][0], bytes=rows[0][1]) if rows else FileUsage()


def _find(db: apsw.Connection, folder: str, file_id: str) -> list[Row]:
    query = "SELECT created_at, key, purpose FROM files WHERE folder = ? AND id = ?"
    return rows_of(db, query, (folder, file_id))


def _page(db: apsw.Connection, folder: str, query: FilePageQuery) -> list[StoredFile]:
    conditions, values = ["folder = ?"], [folder]
    if query.purpose is not None:
        conditions.append("purpose = ?")
        values.append(query.purpose)
    sign, direction = ("<", "DESC") if query.is_descending else (">", "ASC")
    if query.after is not None:
        found = _find(db, folder, query.after)
        if not found or query.purpose not in (None, found[0][2]):
            raise NotFound("There is no such file.")
        conditions.append(f"(created_at, key) {sign} (?, ?)")
        values += found[0][:2]
    # One row of JSON: for each row, the interpreter's lock is given away and taken again. The
    # aggregate keeps the order of the subquery.
    [(body,)] = rows_of(
        db,
        "SELECT CAST(concat('[', group_concat(body), ']') AS BLOB)"
        f" FROM (SELECT body FROM files WHERE {' AND '.join(conditions)}"
        f" ORDER BY created_at {direction}, key {direction} LIMIT ?)",
        (*values, query.limit),
    )
    return _decode_page(body)
