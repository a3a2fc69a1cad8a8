"""File stores for uploads: one keeps them in a folder, one in memory.

Each upload has two files: `ID` is its content, `ID.json` its description. The description is moved
into place last and removed first, so an upload exists with all of its content or not at all.
Content without a description is left over from a killed server; the next start removes it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from antiphon.application.ports import FileStore, StoredFile
from antiphon.domain.errors import NotFound, SettingsError, StoreError

T = TypeVar("T")

SWEEP_AFTER_S = 3600
"""The age of leftovers that are removed: newer ones may be another server's unfinished writes."""

READ_BYTES = 64 * 1024

_ID = re.compile(r"[A-Za-z0-9_-]{1,100}")
_decode = msgspec.json.Decoder(StoredFile).decode


class FolderFileStore(FileStore):
    """Uploads in a folder, which several servers of one machine may share.

    Clients never choose the names of files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def start(self) -> None:
        try:
            await asyncio.to_thread(self._open)
        except OSError as error:
            raise SettingsError(self._error_message(error)) from error

    async def aclose(self) -> None: ...

    async def add(self, tenant: str, file: StoredFile, content: bytes) -> None:
        await self._in_thread(
            self._write_upload, self._content_path(tenant, file.id), file, content
        )

    async def list_all(self, tenant: str) -> list[StoredFile]:
        files = await self._in_thread(self._read_descriptions, self._folder_of(tenant))
        return sorted(files, key=lambda file: (file.created_at, file.id))

    async def get(self, tenant: str, file_id: str) -> StoredFile:
        path = _description_path(self._content_path(tenant, file_id))
        return _decode(await self._in_thread(path.read_bytes))

    async def content(self, tenant: str, file_id: str) -> bytes:
        content_path = self._content_path(tenant, file_id)
        await self._check_exists(content_path)
        return await self._in_thread(content_path.read_bytes)

    async def pieces(self, tenant: str, file_id: str) -> AsyncGenerator[bytes]:
        content_path = self._content_path(tenant, file_id)
        await self._check_exists(content_path)
        with await self._in_thread(lambda: content_path.open("rb")) as content:
            while part := await self._in_thread(content.read, READ_BYTES):
                yield part

    async def delete(self, tenant: str, file_id: str) -> None:
        content_path = self._content_path(tenant, file_id)
        await self._in_thread(_description_path(content_path).unlink)
        await self._in_thread(content_path.unlink)

    def _folder_of(self, tenant: str) -> Path:
        # A tenant's name may contain any character; a digest is valid in every file system.
        return self._folder / hashlib.sha256(tenant.encode()).hexdigest()[:32]

    def _content_path(self, tenant: str, file_id: str) -> Path:
        if not _ID.fullmatch(file_id):
            raise NotFound("There is no such file.")
        return self._folder_of(tenant) / file_id

    async def _check_exists(self, content_path: Path) -> None:
        await self._in_thread(_description_path(content_path).stat)

    async def _in_thread(self, work: Callable[..., T], *args: Any) -> T:
        try:
            return await asyncio.to_thread(work, *args)
        except FileNotFoundError:
            raise NotFound("There is no such file.") from None
        except OSError as error:
            raise StoreError(self._error_message(error)) from error

    def _error_message(self, error: OSError) -> str:
        reason = error.strerror or error
        return f"The folder for files {str(self._folder)!r} cannot be used: {reason}."

    # --- in threads -------------------------------------------------------------------------------

    def _open(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = self._folder / f"proof-{os.getpid()}"
        probe.touch()
        probe.unlink()
        for path in self._folder.glob("*/*"):
            is_old = time.time() - path.stat().st_mtime > SWEEP_AFTER_S
            if is_old and path.suffix != ".json" and not _description_path(path).exists():
                path.unlink(missing_ok=True)

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

    def _read_descriptions(self, folder: Path) -> list[StoredFile]:
        files = []
        for path in folder.glob("*.json"):
            try:
                files.append(_decode(path.read_bytes()))
            except FileNotFoundError:  # deleted in the meantime
                continue
        return files


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
        self._files: dict[tuple[str, str], tuple[StoredFile, bytes]] = {}

    async def start(self) -> None: ...

    async def aclose(self) -> None: ...

    async def add(self, tenant: str, file: StoredFile, content: bytes) -> None:
        self._files[tenant, file.id] = (file, content)

    async def list_all(self, tenant: str) -> list[StoredFile]:
        return [file for (owner, _), (file, _) in self._files.items() if owner == tenant]

    async def get(self, tenant: str, file_id: str) -> StoredFile:
        return self._find(tenant, file_id)[0]

    async def content(self, tenant: str, file_id: str) -> bytes:
        return self._find(tenant, file_id)[1]

    async def pieces(self, tenant: str, file_id: str) -> AsyncGenerator[bytes]:
        yield self._find(tenant, file_id)[1]

    async def delete(self, tenant: str, file_id: str) -> None:
        self._find(tenant, file_id)
        del self._files[tenant, file_id]

    def _find(self, tenant: str, file_id: str) -> tuple[StoredFile, bytes]:
        try:
            return self._files[tenant, file_id]
        except KeyError:
            raise NotFound("There is no such file.") from None
