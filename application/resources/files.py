"""Uploaded files: create, list, get, read, delete."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Sequence
from typing import Literal

from msgspec import Struct

from antiphon.application.ports import (
    Clock,
    FilePageQuery,
    FileStore,
    FileUsage,
    NewId,
    StoredFile,
    VectorStores,
)
from antiphon.domain.errors import BodyTooLarge, FilesFull, NotFound, RequestError

PURPOSES = ("assistants", "batch", "fine-tune", "vision", "user_data", "evals")

Order = Literal["asc", "desc"]


class FileLimits(Struct, frozen=True, kw_only=True):
    """`max_bytes` limits a file; `quota_bytes` and `max_files` limit all files of a tenant, and
    `total_bytes` those of all tenants.

    The bytes of the archives of skills count in both. The number is limited too since empty files
    take no bytes. The total is not exact: files that are added at the same time may exceed it
    together.
    """

    max_bytes: int
    quota_bytes: int
    total_bytes: int = sys.maxsize
    max_files: int = 10_000


def skills_space(tenant: str) -> str:
    """Return the space of a tenant's skills in the file store. No tenant has such a name."""
    return f"/skills/{tenant}"


class CreateFile:
    def __init__(self, files: FileStore, *, limits: FileLimits, new_id: NewId, now: Clock) -> None:
        self._files = files
        self._limits = limits
        self._new_id = new_id
        self._now = now

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
        await self.add(tenant, file, content)
        return file

    async def add(self, tenant: str, file: StoredFile, content: bytes) -> None:
        """Add a file that the server has made. Raises: RequestError if there is no room."""
        await self._add(tenant, skills_space(tenant), file, content, self._limits.max_files)

    async def add_skill(
        self, tenant: str, file: StoredFile, content: bytes, *, max_files: int
    ) -> None:
        """Add the archive of a skill. Raises: RequestError if there is no room."""
        await self._add(skills_space(tenant), tenant, file, content, max_files, param="files")

    async def _add(
        self,
        space: str,
        other_space: str,
        file: StoredFile,
        content: bytes,
        max_files: int,
        *,
        param: str = "file",
    ) -> None:
        """Add a file to a space; a tenant's bytes in the other one count in the same quota."""
        limits = self._limits
        if await self._files.get_total_bytes() + len(content) > limits.total_bytes:
            raise RequestError(
                f"The files of all tenants may take {limits.total_bytes} bytes together, and there "
                "is no room for this one. Ask the operator of this server.",
                param=param,
                code="file_quota_exceeded",
            )
        elsewhere = (await self._files.get_usage(other_space)).bytes
        limit = FileUsage(files=max_files, bytes=max(0, limits.quota_bytes - elsewhere))
        try:
            await self._files.create_file(space, file, content, limit=limit)
        except FilesFull as full:
            raise _full_error(
                FilesFull(files=full.files, used_bytes=full.used_bytes + elsewhere),
                max_files=max_files,
                quota_bytes=limits.quota_bytes,
                param=param,
            ) from None


def _full_error(full: FilesFull, *, max_files: int, quota_bytes: int, param: str) -> RequestError:
    reason = (
        f"You have {full.files} files, which is the maximum."
        if full.files >= max_files
        else f"Your files may take {quota_bytes} bytes together, and {full.used_bytes} are in use."
    )
    return RequestError(
        f"{reason} Delete files that you no longer need.", param=param, code="file_quota_exceeded"
    )


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
        query = FilePageQuery(
            limit=limit + 1, after=after, is_descending=order == "desc", purpose=purpose
        )
        try:
            files = await self._files.list_files(tenant, query)
        except NotFound:
            raise RequestError(
                f"File with id {(after or '')[:100]!r} not found.",
                param="after",
                code="invalid_value",
            ) from None
        return FilePage(files=files[:limit], has_more=len(files) > limit)


class GetFile:
    def __init__(self, files: FileStore) -> None:
        self._files = files

    async def __call__(self, tenant: str, file_id: str) -> StoredFile:
        """Raises: NotFound."""
        try:
            return await self._files.get_file(tenant, file_id)
        except NotFound:
            raise _not_found(file_id) from None


class GetFileContent:
    def __init__(self, files: FileStore) -> None:
        self._files = files

    async def __call__(self, tenant: str, file_id: str) -> tuple[StoredFile, AsyncGenerator[bytes]]:
        """Return the file and its content in chunks. Raises: NotFound."""
        try:
            file = await self._files.get_file(tenant, file_id)
        except NotFound:
            raise _not_found(file_id) from None
        return file, self._files.stream_content(tenant, file_id)


class DeleteFile:
    def __init__(self, files: FileStore, vector_stores: VectorStores) -> None:
        self._files = files
        self._vector_stores = vector_stores

    async def __call__(self, tenant: str, file_id: str) -> None:
        """Delete the file and remove it from all vector stores. Raises: NotFound."""
        # The vector stores come first: once the file is gone, a repeated request ends as not found.
        await self._vector_stores.delete_file_everywhere(tenant, file_id)
        try:
            await self._files.delete_file(tenant, file_id)
        except NotFound:
            raise _not_found(file_id) from None


def _not_found(file_id: str) -> NotFound:
    return NotFound(f"File with id {file_id[:100]!r} not found.", param="file_id")
