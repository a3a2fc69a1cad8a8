"""Uploaded files as files of a folder, and in memory.

Of each file there are two: `ID` is its content, `ID.json` says what it is. The second one is moved
into place last and removed first, so a file is there with its whole content or not at all; content
without it is what a killed server left, and is swept at the next start.
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

SWEPT_AFTER_S = 3600
"""Another server of the same folder may be writing: only old remains are swept."""

PIECE_BYTES = 64 * 1024

_ID = re.compile(r"[A-Za-z0-9_-]{1,100}")
_decode = msgspec.json.Decoder(StoredFile).decode


class FolderFileStore(FileStore):
    """Safe for several servers of one machine. Names of files never come from clients."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def start(self) -> None:
        try:
            await asyncio.to_thread(self._open)
        except OSError as error:
            raise SettingsError(self._complaint(error)) from error

    async def aclose(self) -> None: ...

    async def add(self, tenant: str, file: StoredFile, content: bytes) -> None:
        await self._do(self._add, self._place(tenant, file.id), file, content)

    async def list_all(self, tenant: str) -> list[StoredFile]:
        found = await self._do(self._listed, self._of(tenant))
        return sorted(found, key=lambda file: (file.created_at, file.id))

    async def get(self, tenant: str, file_id: str) -> StoredFile:
        return _decode(await self._do(_described(self._place(tenant, file_id)).read_bytes))

    async def content(self, tenant: str, file_id: str) -> bytes:
        place = self._place(tenant, file_id)
        await self._do(_described(place).stat)  # half a file is none
        return await self._do(place.read_bytes)

    async def pieces(self, tenant: str, file_id: str) -> AsyncGenerator[bytes]:
        place = self._place(tenant, file_id)
        await self._do(_described(place).stat)  # half a file is none
        with await self._do(lambda: place.open("rb")) as content:
            while piece := await self._do(content.read, PIECE_BYTES):
                yield piece

    async def delete(self, tenant: str, file_id: str) -> None:
        place = self._place(tenant, file_id)
        await self._do(_described(place).unlink)
        await self._do(place.unlink)

    def _of(self, tenant: str) -> Path:
        # A tenant's name may hold anything; a digest is a name for every file system.
        return self._folder / hashlib.sha256(tenant.encode()).hexdigest()[:32]

    def _place(self, tenant: str, file_id: str) -> Path:
        if not _ID.fullmatch(file_id):
            raise NotFound("There is no such file.")
        return self._of(tenant) / file_id

    async def _do(self, work: Callable[..., T], *given: Any) -> T:
        try:
            return await asyncio.to_thread(work, *given)
        except FileNotFoundError:
            raise NotFound("There is no such file.") from None
        except OSError as error:
            raise StoreError(self._complaint(error)) from error

    def _complaint(self, error: OSError) -> str:
        reason = error.strerror or error
        return f"The folder for files {str(self._folder)!r} cannot be used: {reason}."

    # --- in threads -------------------------------------------------------------------------------

    def _open(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        proof = self._folder / f"proof-{os.getpid()}"
        proof.touch()
        proof.unlink()
        for remains in self._folder.glob("*/*"):
            is_old = time.time() - remains.stat().st_mtime > SWEPT_AFTER_S
            if is_old and remains.suffix != ".json" and not _described(remains).exists():
                remains.unlink(missing_ok=True)

    def _add(self, place: Path, file: StoredFile, content: bytes) -> None:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        described = _described(place)
        written = described.with_suffix(".new")
        try:
            _write(place, content)
            _write(written, msgspec.json.encode(file))
            written.rename(described)
        except BaseException:
            for remains in (written, place):
                remains.unlink(missing_ok=True)
            raise

    def _listed(self, folder: Path) -> list[StoredFile]:
        found = []
        for described in folder.glob("*.json"):
            try:
                found.append(_decode(described.read_bytes()))
            except FileNotFoundError:  # deleted while we looked
                continue
        return found


def _described(place: Path) -> Path:
    return place.with_name(f"{place.name}.json")


def _write(place: Path, content: bytes) -> None:
    with open(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())


class MemoryFileStore(FileStore):
    """Forgets its files at the end."""

    def __init__(self) -> None:
        self._files: dict[tuple[str, str], tuple[StoredFile, bytes]] = {}

    async def start(self) -> None: ...

    async def aclose(self) -> None: ...

    async def add(self, tenant: str, file: StoredFile, content: bytes) -> None:
        self._files[tenant, file.id] = (file, content)

    async def list_all(self, tenant: str) -> list[StoredFile]:
        return [file for (owner, _), (file, _) in self._files.items() if owner == tenant]

    async def get(self, tenant: str, file_id: str) -> StoredFile:
        return self._kept(tenant, file_id)[0]

    async def content(self, tenant: str, file_id: str) -> bytes:
        return self._kept(tenant, file_id)[1]

    async def pieces(self, tenant: str, file_id: str) -> AsyncGenerator[bytes]:
        yield self._kept(tenant, file_id)[1]

    async def delete(self, tenant: str, file_id: str) -> None:
        self._kept(tenant, file_id)
        del self._files[tenant, file_id]

    def _kept(self, tenant: str, file_id: str) -> tuple[StoredFile, bytes]:
        try:
            return self._files[tenant, file_id]
        except KeyError:
            raise NotFound("There is no such file.") from None
