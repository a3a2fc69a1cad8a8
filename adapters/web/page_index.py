"""A full-text index of pages: SQLite FTS5 with BM25 ranking, in a temporary file."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import apsw
import msgspec

from antiphon.application.ports import WebPage, WebResult

T = TypeVar("T")

MAX_WORDS = 32
SNIPPET_WORDS = 48
TITLE_WEIGHT = 4.0

TABLES = """
create virtual table words using fts5(title, text, tokenize = 'porter unicode61');
create table pages(id integer primary key, url text unique not null, page blob not null);
"""

SEARCH = f"""
select pages.url, words.title, snippet(words, 1, '', '', ' … ', {SNIPPET_WORDS})
from words join pages on pages.id = words.rowid
where words match ? order by bm25(words, {TITLE_WEIGHT}, 1.0), pages.id limit ?
"""

_LINK = re.compile("【[0-9]+†([^【】†]*)】")


class PageIndex:
    """Pages by URL and by their words. A separate thread does all work, in order."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="pages")
        self._db: apsw.Connection | None = None

    async def start(self) -> None:
        await self._run(self._open)

    async def aclose(self) -> None:
        await self._run(self._close)
        self._thread.shutdown(wait=False)

    async def add(self, page: WebPage) -> None:
        await self._run(lambda: self._add(page))

    async def search(self, query: str, limit: int) -> list[WebResult]:
        """Return the pages that contain any of the words, best first."""
        words = dict.fromkeys(re.findall(r"\w+", query.lower()))
        match = " OR ".join(f'"{word}"' for word in list(words)[:MAX_WORDS])
        return await self._run(lambda: self._search(match, limit)) if match else []

    async def page(self, url: str) -> WebPage | None:
        return await self._run(lambda: self._page(url))

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _open(self) -> None:
        self._db = apsw.Connection("")  # SQLite deletes this temporary file on close
        self._db.execute(TABLES)

    def _close(self) -> None:
        if self._db is not None:
            self._db.close()

    @property
    def _open_db(self) -> apsw.Connection:
        assert self._db is not None
        return self._db

    def _add(self, page: WebPage) -> None:
        db = self._open_db
        db.execute(
            "insert into pages(url, page) values(?, ?)", (page.url, msgspec.msgpack.encode(page))
        )
        words = (db.last_insert_rowid(), page.title, _LINK.sub(r"\1", page.text))
        db.execute("insert into words(rowid, title, text) values(?, ?, ?)", words)

    def _search(self, match: str, limit: int) -> list[WebResult]:
        rows = self._open_db.execute(SEARCH, (match, limit))
        return [WebResult(url=url, title=title, text=text) for url, title, text in rows]

    def _page(self, url: str) -> WebPage | None:
        row = self._open_db.execute("select page from pages where url = ?", (url,)).fetchone()
        return None if row is None else msgspec.msgpack.decode(row[0], type=WebPage)
