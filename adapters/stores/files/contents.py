"""Where a shared file store keeps the contents of files."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from msgspec import Struct


class ContentKey(Struct, frozen=True, kw_only=True):
    """Which file a content belongs to. `number` is unique in the store, `file_id` in the world."""

    number: int
    tenant: str
    file_id: str
    bytes: int


class FileContents(Protocol):
    """The contents of files. Raises: StoreError, from any method."""

    place: str
    """Where the contents are, without secrets: contents of other places are not touched."""

    async def start(self) -> None:
        """Check that contents can be written and read. Raises: SettingsError."""

    async def write(self, key: ContentKey, content: bytes) -> None:
        """Write the content. After a failure, parts of it may be there."""

    def read(self, key: ContentKey) -> AsyncGenerator[bytes]:
        """Yield the content in pieces.

        Raises: NotFound, with the first piece; StoreError if the content ends too early.
        """

    async def delete(self, key: ContentKey) -> None:
        """Delete what there is of the content, which may be nothing."""
