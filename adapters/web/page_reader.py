"""Content of a URL as a page of text, by its type.

HTML is read in processes of their own, like PDFs: hostile HTML can take for ever, or all memory,
and only a process can be bounded and ended. They are used again, for to begin one takes longer than
to read a page; one that failed is not.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import re
import struct
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from importlib.util import find_spec
from urllib.parse import unquote, urljoin, urlsplit

import msgspec

from antiphon.adapters.extras import install_command
from antiphon.adapters.web.text import PageLinks, clean, cut, one_line
from antiphon.adapters.web.time_limit import time_limit
from antiphon.application.ports import ReadPdf, WebPage
from antiphon.domain.errors import DocumentError, SettingsError, WebError

MAX_CONCURRENT = 4
HTML_S = 10.0
"""Seconds for one page of HTML, so that a few hostile ones do not keep others waiting for long."""

ENVIRONMENT = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LANG", "SYSTEMROOT")
"""All that such a process is given of our environment, which can hold keys."""

Work = tuple[str, str]
"""HTML and its address: what such a process is sent. It answers with a Page."""

LENGTH = struct.Struct("!I")
"""Before each message: the bytes that it has."""

MAX_PAGE_BYTES = 32 * 1024 * 1024
"""More than any page has: 1 MB of text, and 5000 links."""

BYTE_ORDER_MARKS = {b"\xef\xbb\xbf": "utf-8", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}

NO_CHARSETS = frozenset({"idna", "punycode", "raw-unicode-escape", "unicode-escape", "utf-7"})
"""What Python can decode too, but no page is written in; Punycode takes hours for some megabytes,
in which nothing else runs."""

_CHARSET = re.compile(r"charset=\s*[\"']?([\w.:-]+)", re.IGNORECASE)
_MARKDOWN_LINK = re.compile(
    r"(?<!!)\[([^\[\]\n]{1,300})\]\(<?([^()\s<>]{1,2000})>?(?:[ \t]+\"[^\"\n]{0,300}\")?\)"
)
_MARKDOWN_TITLE = re.compile(r"^#[ \t]+(.{1,300})$", re.MULTILINE)


class _Process:
    """A process that reads HTML, one page at a time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pages = 0

    @classmethod
    async def begin(cls) -> _Process:
        return cls(
            await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # what lies in the working folder is no module of ours
                "-m",
                "antiphon.adapters.web.html",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
            )
        )

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    async def read(self, html: str, url: str) -> WebPage:
        """Raises: OSError, EOFError or ValueError; the process is then of no more use."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        work: Work = (html, url)
        sent = msgspec.msgpack.encode(work)
        stdin.write(LENGTH.pack(len(sent)) + sent)
        await stdin.drain()
        (length,) = LENGTH.unpack(await stdout.readexactly(LENGTH.size))
        if length > MAX_PAGE_BYTES:  # the process may not be ours any more
            raise ValueError("no page is as large")
        self.pages += 1
        return msgspec.msgpack.decode(await stdout.readexactly(length), type=WebPage)

    async def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()


class PageReader:
    """Makes pages of what was fetched. How long it may take, its callers say.

    A process that has read `pages_each` is not used again: what libraries lose is given back.
    """

    def __init__(self, read_pdf: ReadPdf, *, pages_each: int = 200) -> None:
        self._read_pdf = read_pdf
        self._pages_each = pages_each
        self._places = asyncio.Semaphore(MAX_CONCURRENT)
        self._idle: list[_Process] = []
        self._by_type: Mapping[str, Callable[[bytes, str, str], Awaitable[WebPage]]] = {
            "text/html": self._html,
            "application/xhtml+xml": self._html,
            "text/markdown": self._markdown,
            "text/x-markdown": self._markdown,
            "application/pdf": self._pdf,
        }

    def start(self) -> None:
        """Raises: SettingsError if what it needs is not installed."""
        if find_spec("trafilatura") is None:
            raise SettingsError(
                f"Web search needs a package. Install it with: {install_command('web')}"
            )

    async def aclose(self) -> None:
        """End all processes; nothing is read any more."""
        while self._idle:
            await self._idle.pop().end()

    async def read(self, content: bytes, content_type: str, url: str) -> WebPage:
        """Return the page of content with this header. Raises: WebError, if it is no text."""
        kind = content_type.partition(";")[0].strip().lower() or _guessed(content)
        read = self._by_type.get(kind, self._plain if _is_text(kind) else None)
        if read is None:
            raise WebError(f"What is at this address is no text, but {one_line(kind, 60)!r}.")
        page = await read(content, content_type, url)
        if not page.text.strip():
            raise WebError("The page at this address has no text.")
        return page

    async def _html(self, content: bytes, content_type: str, url: str) -> WebPage:
        html = _decoded(content, content_type, declared=content[:2048])
        try:
            async with self._places, time_limit(HTML_S), self._process() as process:
                page = await process.read(html, url)
        except (OSError, EOFError, ValueError):
            raise WebError("The page at this address cannot be read.") from None
        return page if page.title else msgspec.structs.replace(page, title=_name(url))

    @asynccontextmanager
    async def _process(self) -> AsyncGenerator[_Process]:
        """Yield a process; it is kept for others if all went well with it."""
        process = self._idle.pop() if self._idle else None
        if process is None or not process.is_alive:
            process = await _Process.begin()
        try:
            yield process
        except BaseException:
            await process.end()
            raise
        if process.pages < self._pages_each:
            self._idle.append(process)
        else:
            await process.end()

    async def _markdown(self, content: bytes, content_type: str, url: str) -> WebPage:
        text = clean(cut(_decoded(content, content_type)))
        links = PageLinks()

        def marked(found: re.Match[str]) -> str:
            try:
                target = urljoin(url, found[2])
            except ValueError:
                return found[0]
            is_page = target.startswith(("http://", "https://")) and not found[2].startswith("#")
            return links.mark(found[1], target) if is_page else found[0]

        heading = _MARKDOWN_TITLE.search(text)
        title = one_line(heading[1] if heading else "") or _name(url)
        text = _MARKDOWN_LINK.sub(marked, text)
        return WebPage(url=url, title=title, text=text, links=links.urls)

    async def _plain(self, content: bytes, content_type: str, url: str) -> WebPage:
        if b"\0" in content and not content.startswith(tuple(BYTE_ORDER_MARKS)):
            raise WebError("What is at this address is no text.")
        text = clean(cut(_decoded(content, content_type)))
        return WebPage(url=url, title=_name(url), text=text)

    async def _pdf(self, content: bytes, _content_type: str, url: str) -> WebPage:
        try:
            text = await self._read_pdf(content)
        except DocumentError as error:
            raise WebError(str(error)) from None
        return WebPage(url=url, title=_name(url), text=clean(cut(text)))


def _is_text(kind: str) -> bool:
    return kind.startswith("text/") or kind.endswith(("/json", "+json", "/xml", "+xml", "/yaml"))


def _guessed(content: bytes) -> str:
    start = content[:512].lstrip().lower()
    return "text/html" if start.startswith((b"<!doctype html", b"<html")) else "text/plain"


def _decoded(content: bytes, content_type: str, *, declared: bytes = b"") -> str:
    """Return the text in the encoding that the header says, or its first bytes, or UTF-8."""
    for mark, encoding in (
        (b"\xef\xbb\xbf", "utf-8"),
        (b"\xff\xfe", "utf-16"),
        (b"\xfe\xff", "utf-16"),
    ):
        if content.startswith(mark):
            return content.decode(encoding, "replace")
    found = _CHARSET.search(content_type) or _CHARSET.search(declared.decode("latin-1"))
    try:
        charset = codecs.lookup(found[1] if found else "utf-8").name
        if charset.replace("_", "-") in NO_CHARSETS:
            charset = "utf-8"
        return content.decode(charset, "replace")
    except (LookupError, ValueError):  # no encoding of texts has this name
        return content.decode("utf-8", "replace")


def _name(url: str) -> str:
    """Return what a page without a title is called."""
    split = urlsplit(url)
    return one_line(unquote(split.path).rstrip("/").rpartition("/")[2]) or split.netloc
