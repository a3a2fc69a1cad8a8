"""Uploaded files, and the text of PDFs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Protocol

from msgspec import Struct


class StoredFile(Struct, frozen=True, kw_only=True):
    """What is known of an uploaded file; its content is kept apart."""

    id: str
    filename: str
    purpose: str
    bytes: int
    created_at: int


class FileStore(Protocol):
    """Files and their content, by tenant. What was written is read at once.

    Every id of another tenant is unknown, and so is every string that is no id: it may hold
    slashes, dots or null characters, and be of any length. Names of tenants and files are arbitrary
    texts too. A file is there with its whole content, which may be empty, or not at all. Calls may
    run at the same time.
    Raises: StoreError, from any method, when the store fails.
    """

    async def start(self) -> None:
        """Open, and prove that it can be written. Raises: SettingsError."""

    async def aclose(self) -> None: ...

    async def add(self, tenant: str, file: StoredFile, content: bytes) -> None: ...

    async def list_all(self, tenant: str) -> list[StoredFile]:
        """Return all files, oldest first."""

    async def get(self, tenant: str, file_id: str) -> StoredFile:
        """Raises: NotFound."""

    async def content(self, tenant: str, file_id: str) -> bytes:
        """Raises: NotFound."""

    def pieces(self, tenant: str, file_id: str) -> AsyncGenerator[bytes]:
        """Return the content in pieces, of which few are in memory at a time.

        Raises, with the first piece: NotFound.
        """

    async def delete(self, tenant: str, file_id: str) -> None:
        """Raises: NotFound."""


ReadPdf = Callable[[bytes], Awaitable[str]]
"""The text of a PDF. Raises: DocumentError, with what to do about it."""
