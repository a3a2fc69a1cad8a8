"""The archives of skills: files in a space of each tenant's that `/v1/files` does not show.

They count in the tenant's quota of files. A file is written before the index names it, and removed
after the index has forgotten it; what a killed server leaves is removed by a later upload.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection

from antiphon.application.ports import Clock, FileStore, FileUsage, StoredFile
from antiphon.application.resources.files import CreateFile, skills_space
from antiphon.application.resources.skills.index import MAX_VERSIONS
from antiphon.domain.errors import NotFound

LEFTOVER_AFTER_S = 3600
"""The age of files that are removed: newer ones may be those of an upload that is not done."""

MAX_FILES = MAX_VERSIONS + 100
"""Room for uploads at the same time, and for what killed servers leave."""

PURPOSE = "skill"


class SkillContents:
    """Keeps archives by the ids of their versions."""

    def __init__(self, files: FileStore, create_file: CreateFile, *, now: Clock) -> None:
        self._files = files
        self._create_file = create_file
        self._now = now

    async def add(self, tenant: str, version_id: str, filename: str, archive: bytes) -> None:
        """Raises: RequestError if there is no room; StoreError."""
        file = StoredFile(
            id=version_id,
            filename=filename,
            purpose=PURPOSE,
            bytes=len(archive),
            created_at=int(self._now()),
        )
        await self._create_file.add_skill(tenant, file, archive, max_files=MAX_FILES)

    async def read(self, tenant: str, version_id: str) -> bytes:
        """Raises: NotFound, StoreError."""
        return await self._files.get_content(skills_space(tenant), version_id)

    async def open(self, tenant: str, version_id: str) -> tuple[StoredFile, AsyncGenerator[bytes]]:
        """Return an archive, and its content in pieces. Raises: NotFound, StoreError."""
        space = skills_space(tenant)
        file = await self._files.get_file(space, version_id)
        return file, self._files.stream_content(space, version_id)

    async def remove(self, tenant: str, version_ids: Collection[str]) -> None:
        """Remove what there is of these. Raises: StoreError."""
        for version_id in version_ids:
            try:
                await self._files.delete_file(skills_space(tenant), version_id)
            except NotFound:
                continue

    async def sweep(self, tenant: str, known_ids: Collection[str]) -> None:
        """Remove old files that no version has. Raises: StoreError."""
        usage: FileUsage = await self._files.get_usage(skills_space(tenant))
        if usage.files <= len(known_ids):
            return
        files = await self._files.list_all_files(skills_space(tenant))
        oldest = self._now() - LEFTOVER_AFTER_S
        await self.remove(
            tenant,
            [each.id for each in files if each.id not in known_ids and each.created_at < oldest],
        )
