"""Uploaded files, and the text of PDFs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator
from typing import Protocol

from msgspec import Struct


class StoredFile(Struct, frozen=True, kw_only=True):
    """An uploaded file without its content."""

    id: str
    filename: str
    purpose: str
    bytes: int
    created_at: int


class FileUsage(Struct, frozen=True, kw_only=True):
    """A number of files and the bytes of their contents."""

    files: int = 0
    bytes: int = 0

    def includes(self, other: FileUsage) -> bool:
        """Return whether `other` has neither more files nor more bytes."""
        return other.files <= self.files and other.bytes <= self.bytes


class FilePageQuery(Struct, frozen=True, kw_only=True):
    """Up to `limit` files after the file `after`, by age; those of one purpose, if it is set."""

    limit: int
    after: str | None = None
    is_descending: bool = False
    purpose: str | None = None


class FileStore(Protocol):
    """Files and their content, by tenant. Reads return every write that has finished.

    Ids of other tenants are unknown, and so are strings that are not ids: they may contain slashes,
    dots or null characters, and have any length. Names of tenants and files may be any text. A file
    has its whole content, which may be empty, or it does not exist. Calls may run concurrently, and
    those of one tenant do not keep the others waiting. Raises: StoreError, from any method, when
    the store fails.
    """

    @abstractmethod
    async def start(self) -> None:
        """Open the store and check that it is writable. Raises: SettingsError."""

    @abstractmethod
    async def aclose(self) -> None: ...

    async def check(self) -> None:
        """Raises: StoreError when no file can be added now. The default checks nothing: files whose
        contents are in the store, or far away."""
        return

    @abstractmethod
    async def create_file(
        self, tenant: str, file: StoredFile, content: bytes, *, limit: FileUsage | None = None
    ) -> None:
        """Add a file, unless the tenant would then have more than `limit`. Raises: FilesFull.

        The limit is exact, however many files are added at the same time.
        """

    @abstractmethod
    async def get_usage(self, tenant: str) -> FileUsage:
        """Return what the tenant has."""

    @abstractmethod
    async def get_total_bytes(self) -> int:
        """Return the bytes of the files of all tenants."""

    @abstractmethod
    async def list_files(self, tenant: str, query: FilePageQuery) -> list[StoredFile]:
        """Return a page of the tenant's files, in the order of their ages.

        Files of the same second have an order too, which stays the same. The cost is in proportion
        to the page. Raises: NotFound if there is no file `after` with the purpose.
        """

    @abstractmethod
    async def list_all_files(self, tenant: str) -> list[StoredFile]:
        """Return all files, oldest first."""

    @abstractmethod
    async def get_file(self, tenant: str, file_id: str) -> StoredFile:
        """Raises: NotFound."""

    @abstractmethod
    async def get_content(self, tenant: str, file_id: str) -> bytes:
        """Raises: NotFound."""

    @abstractmethod
    def stream_content(self, tenant: str, file_id: str) -> AsyncGenerator[bytes]:
        """Yield the content in pieces, only a few of them in memory at a time.

        Raises: NotFound, with the first piece.
        """

    @abstractmethod
    async def delete_file(self, tenant: str, file_id: str) -> None:
        """Raises: NotFound."""


class ReadPdf(Protocol):
    """Reads PDFs, of which those of one tenant do not keep the others waiting."""

    @abstractmethod
    async def __call__(self, content: bytes, *, tenant: str) -> str:
        """Return the text of all pages. Raises: DocumentError, which says what to do."""
