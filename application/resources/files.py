"""Uploaded files: create, list, get, read, delete."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Literal

from msgspec import Struct

from antiphon.application.ports import Clock, FileStore, NewId, StoredFile, VectorStores
from antiphon.domain.errors import BodyTooLarge, NotFound, RequestError

PURPOSES = ("assistants", "batch", "fine-tune", "vision", "user_data", "evals")

Order = Literal["asc", "desc"]


class FileLimits(Struct, frozen=True, kw_only=True):
    """`max_bytes` limits a file; `quota_bytes` and `max_files` limit all files of a tenant.

    The number is limited too since empty files take no bytes.
    """

    max_bytes: int
    quota_bytes: int
    max_files: int = 10_000


class CreateFile:
    def __init__(self, files: FileStore, *, limits: FileLimits, new_id: NewId, now: Clock) -> None:
        self._files = files
        self._limits = limits
        self._new_id = new_id
        self._now = now
        self._lock = asyncio.Lock()

    async def __call__(
        self, tenant: str, *, filename: str, purpose: str, content: bytes
    ) -> StoredFile:
        """Raises: RequestError; BodyTooLarge."""
        if purpose not in PURPOSES:
            raise RequestError(
                f"Invalid value: {purpose[:100]!r}. Supported values are: {', '.join(PURPOSES)}.",
                param="purpose",
                code="invalid_value",
            )
        if len(content) > self._limits.max_bytes:
            raise BodyTooLarge(
                f"The file has more than {self._limits.max_bytes} bytes.", param="file"
            )
        file = StoredFile(
            id=self._new_id("file").replace("_", "-"),
            filename=filename,
            purpose=purpose,
            bytes=len(content),
            created_at=int(self._now()),
        )
        async with self._lock:  # two uploads must not both take the last place
            files = await self._files.list_all(tenant)
            if len(files) >= self._limits.max_files:
                raise RequestError(
                    f"You have {len(files)} files, which is the maximum. Delete files that you no "
                    "longer need.",
                    param="file",
                    code="file_quota_exceeded",
                )
            used_bytes = sum(each.bytes for each in files)
            if used_bytes + file.bytes > self._limits.quota_bytes:
                raise RequestError(
                    f"Your files may take {self._limits.quota_bytes} bytes together, and "
                    f"{used_bytes} are in use. Delete files that you no longer need.",
                    param="file",
                    code="file_quota_exceeded",
                )
            await self._files.add(tenant, file, content)
        return file


class FilePage(Struct, frozen=True, kw_only=True):
    """One page of a list."""

    files: Sequence[StoredFile]
    has_more: bool


class ListFiles:
    def __init__(self, files: FileStore) -> None:
        self._files = files

    async def __call__(
        self, tenant: str, *, after: str | None, limit: int, order: Order, purpose: str | None
    ) -> FilePage:
        """Return up to `limit` files that follow `after`. Raises: RequestError."""
        files = await self._files.list_all(tenant)
        if order == "desc":
            files = files[::-1]
        files = [file for file in files if purpose in (None, file.purpose)]
        if after is not None:
            ids = [file.id for file in files]
            if after not in ids:
                raise RequestError(
                    f"File with id {after[:100]!r} not found.", param="after", code="invalid_value"
                )
            files = files[ids.index(after) + 1 :]
        return FilePage(files=files[:limit], has_more=len(files) > limit)


class GetFile:
    def __init__(self, files: FileStore) -> None:
        self._files = files

    async def __call__(self, tenant: str, file_id: str) -> StoredFile:
        """Raises: NotFound."""
        try:
            return await self._files.get(tenant, file_id)
        except NotFound:
            raise _not_found(file_id) from None


class GetFileContent:
    def __init__(self, files: FileStore) -> None:
        self._files = files

    async def __call__(self, tenant: str, file_id: str) -> tuple[StoredFile, AsyncGenerator[bytes]]:
        """Return the file and its content in chunks. Raises: NotFound."""
        try:
            file = await self._files.get(tenant, file_id)
        except NotFound:
            raise _not_found(file_id) from None
        return file, self._files.pieces(tenant, file_id)


class DeleteFile:
    def __init__(self, files: FileStore, vector_stores: VectorStores) -> None:
        self._files = files
        self._vector_stores = vector_stores

    async def __call__(self, tenant: str, file_id: str) -> None:
        """Delete the file and remove it from all vector stores. Raises: NotFound."""
        # The vector stores come first: once the file is gone, a repeated request ends as not found.
        await self._vector_stores.forget_file(tenant, file_id)
        try:
            await self._files.delete(tenant, file_id)
        except NotFound:
            raise _not_found(file_id) from None


def _not_found(file_id: str) -> NotFound:
    return NotFound(f"File with id {file_id[:100]!r} not found.", param="file_id")
