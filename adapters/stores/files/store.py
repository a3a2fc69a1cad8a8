"""File stores for uploads: one keeps them in a folder, one in memory.

Each upload has two files: `ID` is its content, `ID.json` its description. The description is moved
into place last and removed first, so an upload exists with all of its content or not at all.
Content without a description is left over from a killed server; the next start removes it.

An index beside the folder answers what would need all descriptions. A description is written before
its entry in the index and removed after it, so the next start can repair what a killed server left.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from antiphon.adapters.stores.files.index import FileIndex
from antiphon.application.ports import FilePageQuery, FileStore, FileUsage, StoredFile
from antiphon.application.support.fair_threads import FairThreads
from antiphon.application.support.tasks import run_to_completion
from antiphon.domain.errors import FilesFull, NotFound, SettingsError, StoreError

T = TypeVar("T")

SWEEP_AFTER_S = 3600
"""The age of leftovers that are removed: newer ones may be another server's unfinished writes."""
PROBE = bytes(65_536)
"""What a check writes: less than this counts as a full disk."""

READ_BYTES = 64 * 1024

MAX_THREADS = 16
"""Files that are read and written at the same time, half of them at most by one tenant."""

_ID = re.compile(r"[A-Za-z0-9_-]{1,100}")
_decode = msgspec.json.Decoder(StoredFile).decode


class FolderFileStore(FileStore):
    """Uploads in a folder, which several servers of one machine may share.

    Clients never choose the names of files. The index has the name of the folder, with `.db`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._index = FileIndex(folder.with_name(f"{folder.name}.db"))
        self._threads = FairThreads(MAX_THREADS, per_tenant=MAX_THREADS // 2, name="files")

    async def start(self) -> None:
        try:
            await asyncio.to_thread(self._open)
            await self._index.start()
            await self._repair_index()
        except (OSError, StoreError) as error:
            reason = self._error_message(error) if isinstance(error, OSError) else str(error)
            raise SettingsError(reason) from error

    async def aclose(self) -> None:
        await self._index.aclose()

    async def check(self) -> None:
        await self._in_thread("", self._open)

    async def create_file(
        self, tenant: str, file: StoredFile, content: bytes, *, limit: FileUsage | None = None
    ) -> None:
        if limit is not None:
            await self._check_room(tenant, file, limit)
        # A canceled upload would leave a file that no list shows.
        await run_to_completion(self._add(tenant, file, content, limit))

    async def get_usage(self, tenant: str) -> FileUsage:
        return await self._index.usage(_folder_name(tenant))

    async def get_total_bytes(self) -> int:
        return await self._index.total_bytes()

    async def list_files(self, tenant: str, query: FilePageQuery) -> list[StoredFile]:
        return await self._index.page(_folder_name(tenant), query)

    async def list_all_files(self, tenant: str) -> list[StoredFile]:
        return await self.list_files(tenant, FilePageQuery(limit=-1))

    async def get_file(self, tenant: str, file_id: str) -> StoredFile:
        path = _description_path(self._content_path(tenant, file_id))
        return _decode(await self._in_thread(tenant, path.read_bytes))

    async def get_content(self, tenant: str, file_id: str) -> bytes:
        content_path = self._content_path(tenant, file_id)
        await self._check_exists(tenant, content_path)
        return await self._in_thread(tenant, content_path.read_bytes)

    async def stream_content(self, tenant: str, file_id: str) -> AsyncGenerator[bytes]:
        content_path = self._content_path(tenant, file_id)
        await self._check_exists(tenant, content_path)
        with await self._in_thread(tenant, lambda: content_path.open("rb")) as content:
            while part := await self._in_thread(tenant, content.read, READ_BYTES):
                yield part

    async def delete_file(self, tenant: str, file_id: str) -> None:
        await run_to_completion(self._delete(tenant, self._content_path(tenant, file_id)))

    async def _check_room(self, tenant: str, file: StoredFile, limit: FileUsage) -> None:
        """Check before the content is written; only the index knows for certain."""
        used = await self.get_usage(tenant)
        if not limit.includes(FileUsage(files=used.files + 1, bytes=used.bytes + file.bytes)):
            raise FilesFull(files=used.files, used_bytes=used.bytes)

    async def _add(
        self, tenant: str, file: StoredFile, content: bytes, limit: FileUsage | None
    ) -> None:
        content_path = self._content_path(tenant, file.id)
        await self._in_thread(tenant, self._write_upload, content_path, file, content)
        try:
            await self._index.add(_folder_name(tenant), file, limit)
        except BaseException:
            await self._unlink(tenant, content_path)
            with contextlib.suppress(StoreError):
                await self._index.remove(_folder_name(tenant), file.id)
            raise

    async def _delete(self, tenant: str, content_path: Path) -> None:
        await self._index.remove(_folder_name(tenant), content_path.name)
        await self._unlink(tenant, content_path)

    async def _unlink(self, tenant: str, content_path: Path) -> None:
        await self._in_thread(tenant, _description_path(content_path).unlink)
        await self._in_thread(tenant, content_path.unlink)

    def _folder_of(self, tenant: str) -> Path:
        return self._folder / _folder_name(tenant)

    def _content_path(self, tenant: str, file_id: str) -> Path:
        if not _ID.fullmatch(file_id):
            raise NotFound("There is no such file.")
        return self._folder_of(tenant) / file_id

    async def _check_exists(self, tenant: str, content_path: Path) -> None:
        await self._in_thread(tenant, _description_path(content_path).stat)

    async def _in_thread(self, tenant: str, work: Callable[..., T], *args: Any) -> T:
        try:
            return await self._threads.run(tenant, work, *args)
        except FileNotFoundError:
            raise NotFound("There is no such file.") from None
        except OSError as error:
            raise StoreError(
                self._error_message(error), reason=(error.strerror or "").lower()
            ) from error

    def _error_message(self, error: OSError) -> str:
        reason = error.strerror or error
        return f"The folder for files {str(self._folder)!r} cannot be used: {reason}."

    # --- in threads -------------------------------------------------------------------------------

    def _open(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = self._folder / f"proof-{os.getpid()}-{secrets.token_hex(4)}"
        try:
            probe.write_bytes(PROBE)
        finally:
            probe.unlink(missing_ok=True)

    async def _repair_index(self) -> None:
        """Bring the index up to date with the folder, and sweep what killed servers have left."""
        names = await asyncio.to_thread(
            lambda: [path.name for path in self._folder.iterdir() if path.is_dir()]
        )
        for name in {*names, *await self._index.folders()}:
            found = await asyncio.to_thread(_ids_in, self._folder / name)
            indexed = await self._index.ids(name)
            missing = await asyncio.to_thread(
                _read_descriptions, self._folder / name, found - indexed
            )
            if missing or indexed - found:
                await self._index.repair(name, missing=missing, gone=[*(indexed - found)])

    def _write_upload(self, content_path: Path, file: StoredFile, content: bytes) -> None:
        content_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        description_path = _description_path(content_path)
        temporary_path = description_path.with_suffix(".new")
        try:
            _write(content_path, content)
            _write(temporary_path, msgspec.json.encode(file))
            temporary_path.rename(description_path)
        except BaseException:
            for path in (temporary_path, content_path):
                path.unlink(missing_ok=True)
            raise


def _folder_name(tenant: str) -> str:
    # A tenant's name may contain any character; a digest is valid in every file system.
    return hashlib.sha256(tenant.encode()).hexdigest()[:32]


def _ids_in(folder: Path) -> set[str]:
    """Return the ids of the files in a folder, and sweep old content without a description."""
    names = {path.name for path in folder.glob("*")}
    ids = {name.removesuffix(".json") for name in names if name.endswith(".json")}
    for name in names - ids:
        if name.endswith(".json"):
            continue
        with contextlib.suppress(FileNotFoundError):  # another server has moved it
            if time.time() - (folder / name).stat().st_mtime > SWEEP_AFTER_S:
                (folder / name).unlink()
    return ids


def _read_descriptions(folder: Path, ids: Collection[str]) -> list[StoredFile]:
    files = []
    for file_id in ids:
        with contextlib.suppress(FileNotFoundError):  # deleted in the meantime
            files.append(_decode((folder / f"{file_id}.json").read_bytes()))
    return sorted(files, key=lambda file: (file.created_at, file.id))


def _description_path(content_path: Path) -> Path:
    return content_path.with_name(f"{content_path.name}.json")


def _write(path: Path, content: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())


class MemoryFileStore(FileStore):
    """Uploads in memory, lost when the process ends."""

    def __init__(self) -> None:
        self._files: dict[str, dict[str, tuple[StoredFile, bytes]]] = {}

    async def start(self) -> None: ...

    async def aclose(self) -> None: ...

    async def create_file(
        self, tenant: str, file: StoredFile, content: bytes, *, limit: FileUsage | None = None
    ) -> None:
        used = await self.get_usage(tenant)
        new = FileUsage(files=used.files + 1, bytes=used.bytes + file.bytes)
        if limit is not None and not limit.includes(new):
            raise FilesFull(files=used.files, used_bytes=used.bytes)
        self._files.setdefault(tenant, {})[file.id] = (file, content)

    async def get_usage(self, tenant: str) -> FileUsage:
        files = [file for file, _ in self._files.get(tenant, {}).values()]
        return FileUsage(files=len(files), bytes=sum(file.bytes for file in files))

    async def get_total_bytes(self) -> int:
        return sum([(await self.get_usage(tenant)).bytes for tenant in self._files])

    async def list_files(self, tenant: str, query: FilePageQuery) -> list[StoredFile]:
        files = await self.list_all_files(tenant)
        if query.is_descending:
            files.reverse()
        files = [file for file in files if query.purpose in (None, file.purpose)]
        if query.after is not None:
            ids = [file.id for file in files]
            if query.after not in ids:
                raise _not_found()
            files = files[ids.index(query.after) + 1 :]
        return files[: query.limit]

    async def list_all_files(self, tenant: str) -> list[StoredFile]:
        files = [file for file, _ in self._files.get(tenant, {}).values()]
        return sorted(files, key=lambda file: file.created_at)

    async def get_file(self, tenant: str, file_id: str) -> StoredFile:
        return self._find(tenant, file_id)[0]

    async def get_content(self, tenant: str, file_id: str) -> bytes:
        return self._find(tenant, file_id)[1]

    async def stream_content(self, tenant: str, file_id: str) -> AsyncGenerator[bytes]:
        yield self._find(tenant, file_id)[1]

    async def delete_file(self, tenant: str, file_id: str) -> None:
        self._find(tenant, file_id)
        del self._files[tenant][file_id]
        if not self._files[tenant]:
            del self._files[tenant]

    def _find(self, tenant: str, file_id: str) -> tuple[StoredFile, bytes]:
        try:
            return self._files[tenant][file_id]
        except KeyError:
            raise _not_found() from None


def _not_found() -> NotFound:
    return NotFound("There is no such file.")
