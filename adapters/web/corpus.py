"""A folder of pages as the web: searches and reads use only its pages, and nothing is fetched.

The server reads the folder once, when it starts. Later it looks up pages by URL in the index, so a
URL never leads to a file.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote, urldefrag

from antiphon.adapters.web.page_index import PageIndex
from antiphon.adapters.web.page_reader import PageReader
from antiphon.adapters.web.text import filter_results, one_line
from antiphon.adapters.web.time_limit import time_limit
from antiphon.application.ports import DomainFilter, Json, Web, WebPage, WebResult
from antiphon.domain.errors import SettingsError, WebError

logger = logging.getLogger("antiphon.web")

TYPES: Mapping[str, str] = {
    ".html": "text/html",
    ".htm": "text/html",
    ".md": "text/markdown",
    ".txt": "text/plain",
}


class CorpusWeb(Web):
    """Serves the file `a/b.html` of `folder` as the page `a/b.html` below `base_url`.

    Hidden files, files with other suffixes, and files outside the folder are not pages, and a file
    above `max_bytes` is left out. A search or read takes at most `timeout_s`, and so does loading
    a file.
    """

    is_external = False

    def __init__(
        self,
        folder: Path,
        reader: PageReader,
        *,
        base_url: str,
        limit: int,
        max_bytes: int,
        timeout_s: float,
    ) -> None:
        self._folder = folder
        self._reader = reader
        self._base_url = base_url
        self._limit = limit
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._index = PageIndex()

    async def start(self) -> None:
        self._reader.start()
        if not self._folder.is_dir():
            raise SettingsError(f"There is no folder {str(self._folder)!r} to search.")
        await self._index.start()
        pages = 0
        for name, file in await asyncio.to_thread(lambda: list(_files(self._folder))):
            try:
                await self._index.add(await self._read(name, file))
                pages += 1
            except (OSError, WebError) as error:
                logger.warning("%s is left out of web search: %s", file, error)
        if not pages:
            raise SettingsError(
                f"The folder {str(self._folder)!r} has no pages to search ({', '.join(TYPES)})."
            )

    async def aclose(self) -> None:
        await self._reader.aclose()
        await self._index.aclose()

    async def search(
        self,
        query: str,
        *,
        tenant: str = "",  # noqa: ARG002
        limit: int,
        domains: DomainFilter,
        location: Json | None = None,  # noqa: ARG002
    ) -> Sequence[WebResult]:
        limit = min(limit, self._limit)
        async with time_limit(self._timeout_s):
            results = await self._index.search(query, limit)
            return filter_results(results, limit=limit, domains=domains)

    async def read(self, url: str, *, tenant: str = "") -> WebPage:  # noqa: ARG002
        async with time_limit(self._timeout_s):
            page = await self._index.page(urldefrag(url).url)
        if page is None:
            raise WebError(
                f"There is no page {one_line(url, 200)!r} here. All pages that can be read are "
                f"below {self._base_url}."
            )
        return page

    async def _read(self, name: str, file: Path) -> WebPage:
        content = await asyncio.to_thread(self._load, file)
        async with time_limit(self._timeout_s):
            return await self._reader.read(
                content, TYPES[Path(name).suffix.lower()], self._base_url + quote(os.fsencode(name))
            )

    def _load(self, file: Path) -> bytes:
        with file.open("rb") as stream:
            content = stream.read(self._max_bytes + 1)
        if len(content) > self._max_bytes:
            raise WebError(f"it has more than {self._max_bytes} bytes.")
        return content


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the names of the pages below the folder and their files, sorted."""
    root = folder.resolve()
    pages: list[tuple[str, Path]] = []
    for parent, subfolders, names in os.walk(root):  # does not follow links to folders
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        for name in names:
            file = Path(parent, name)
            target = file.resolve()
            is_page = not name.startswith(".") and file.suffix.lower() in TYPES
            # A link must lead to a file in this folder; Kubernetes mounts files that way.
            if is_page and target.is_file() and target.is_relative_to(root):
                pages.append((file.relative_to(root).as_posix(), target))
    return iter(sorted(pages))
