"""Converts the content of a URL to a page of text, by its content type.

HTML is converted in separate processes, like PDFs: malicious HTML can take endless time or all
memory, and only a process can be limited and killed. A process serves several pages, because its
start takes longer than a page; after a failure it is not used again.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import re
import struct
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import NamedTuple
from urllib.parse import unquote, urljoin, urlsplit

import msgspec

from antiphon.adapters.extras import install_command
from antiphon.adapters.processes import end_process, start_process
from antiphon.adapters.web.text import PageLinks, clean, one_line, truncate
from antiphon.adapters.web.time_limit import time_limit
from antiphon.application.ports import ReadPdf, WebPage
from antiphon.application.support.fair_queue import FairQueue
from antiphon.domain.errors import DocumentError, SettingsError, WebError

MAX_CONCURRENT = 4
HTML_CPU_S = 10.0
"""The CPU time of one HTML page, limited so that a few malicious ones do not block others."""

HTML_S = 30.0
"""The time limit of one HTML page. Its process has a low priority, so a page that needs a second
can take many on a busy machine."""

ENVIRONMENT = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LANG", "SYSTEMROOT")
"""The environment variables that the processes inherit; others may contain keys."""

HtmlRequest = tuple[str, str]
"""HTML and its URL. A process answers with a WebPage."""

LENGTH_PREFIX = struct.Struct("!I")
"""Precedes each message: its length in bytes."""

MAX_PAGE_BYTES = 32 * 1024 * 1024
"""More than any valid page needs: 1 MB of text and 5000 links."""

BYTE_ORDER_MARKS = {b"\xef\xbb\xbf": "utf-8", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}

UNSUPPORTED_CHARSETS = frozenset(
    {"idna", "punycode", "raw-unicode-escape", "unicode-escape", "utf-7"}
)
"""Python can decode these, but no page uses them. A few megabytes of Punycode would block the
server for hours."""

_CHARSET = re.compile(r"charset=\s*[\"']?([\w.:-]+)", re.IGNORECASE)
_MARKDOWN_LINK = re.compile(
    r"(?<!!)\[([^\[\]\n]{1,300})\]\(<?([^()\s<>]{1,2000})>?(?:[ \t]+\"[^\"\n]{0,300}\")?\)"
)
_MARKDOWN_TITLE = re.compile(r"^#[ \t]+(.{1,300})$", re.MULTILINE)


class _HtmlProcess:
    """A process that converts HTML, one page at a time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pages = 0

    @classmethod
    async def start(cls, cpu_s: float) -> _HtmlProcess:
        """`cpu_s` is what a page may take of a processor."""
        return cls(
            await start_process(
                sys.executable,
                "-P",  # do not import modules from the working folder
                "-m",
                "antiphon.adapters.web.html",
                str(cpu_s),
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
        """Return the page. Raises: OSError, EOFError, ValueError; then the process is unusable."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        request: HtmlRequest = (html, url)
        body = msgspec.msgpack.encode(request)
        stdin.write(LENGTH_PREFIX.pack(len(body)) + body)
        await stdin.drain()
        (length,) = LENGTH_PREFIX.unpack(await stdout.readexactly(LENGTH_PREFIX.size))
        if length > MAX_PAGE_BYTES:  # malicious HTML may control the process
            raise ValueError("the answer is too large for a page")
        self.pages += 1
        return msgspec.msgpack.decode(await stdout.readexactly(length), type=WebPage)

    async def kill(self) -> None:
        await end_process(self._process)


class _Source(NamedTuple):
    """Fetched content, and the tenant that reads it."""

    content: bytes
    content_type: str
    url: str
    tenant: str


class PageReader:
    """Converts fetched content to pages. Callers limit the time; tenants share the processes.

    A process is replaced after `pages_per_process` pages, which frees memory that libraries leak.
    It ends if a page takes more than `html_cpu_s` of a processor.
    """

    def __init__(
        self,
        read_pdf: ReadPdf,
        *,
        pages_per_process: int = 200,
        html_cpu_s: float = HTML_CPU_S,
    ) -> None:
        self._read_pdf = read_pdf
        self._pages_per_process = pages_per_process
        self._html_cpu_s = html_cpu_s
        self._slots = FairQueue(MAX_CONCURRENT)
        self._idle: list[_HtmlProcess] = []
        self._readers: Mapping[str, Callable[[_Source], Awaitable[WebPage]]] = {
            "text/html": self._read_html,
            "application/xhtml+xml": self._read_html,
            "text/markdown": self._read_markdown,
            "text/x-markdown": self._read_markdown,
            "application/pdf": self._read_pdf_page,
        }

    def start(self) -> None:
        """Check that the needed package is installed. Raises: SettingsError."""
        if find_spec("trafilatura") is None:
            raise SettingsError(
                f"Web search needs a package. Install it with: {install_command('web')}"
            )

    async def aclose(self) -> None:
        """Kill all processes."""
        while self._idle:
            await self._idle.pop().kill()

    async def read(
        self, content: bytes, content_type: str, url: str, *, tenant: str = ""
    ) -> WebPage:
        """Return content of this type as a page. Raises: WebError if it has no readable text."""
        media_type = content_type.partition(";")[0].strip().lower() or _guess_type(content)
        read = self._readers.get(media_type, self._read_plain if _is_text(media_type) else None)
        if read is None:
            raise WebError(f"The content of this URL is not text but {one_line(media_type, 60)!r}.")
        page = await read(_Source(content, content_type, url, tenant))
        if not page.text.strip():
            raise WebError("The page at this URL has no text.")
        return page

    async def _read_html(self, source: _Source) -> WebPage:
        content, content_type, url, tenant = source
        html = _decode(content, content_type, beginning=content[:2048])
        try:
            async with (
                self._slots.slot(tenant),
                time_limit(HTML_S),
                self._html_process() as process,
            ):
                page = await process.read(html, url)
        except (OSError, EOFError, ValueError):
            raise WebError("The page at this URL cannot be read.") from None
        return page if page.title else msgspec.structs.replace(page, title=_title_from(url))

    @asynccontextmanager
    async def _html_process(self) -> AsyncGenerator[_HtmlProcess]:
        """Yield a process, and keep it for later pages unless it fails."""
        process = self._idle.pop() if self._idle else None
        if process is None or not process.is_alive:
            process = await _HtmlProcess.start(self._html_cpu_s)
        try:
            yield process
        except BaseException:
            await process.kill()
            raise
        if process.pages < self._pages_per_process:
            self._idle.append(process)
        else:
            await process.kill()

    async def _read_markdown(self, source: _Source) -> WebPage:
        content, content_type, url, _ = source
        text = clean(truncate(_decode(content, content_type)))
        links = PageLinks()

        def mark_link(match: re.Match[str]) -> str:
            try:
                target = urljoin(url, match[2])
            except ValueError:
                return match[0]
            is_page = target.startswith(("http://", "https://")) and not match[2].startswith("#")
            return links.mark(match[1], target) if is_page else match[0]

        heading = _MARKDOWN_TITLE.search(text)
        title = one_line(heading[1] if heading else "") or _title_from(url)
        text = _MARKDOWN_LINK.sub(mark_link, text)
        return WebPage(url=url, title=title, text=text, links=links.urls)

    async def _read_plain(self, source: _Source) -> WebPage:
        content, content_type, url, _ = source
        if b"\0" in content and not content.startswith(tuple(BYTE_ORDER_MARKS)):
            raise WebError("The content of this URL is not text.")
        text = clean(truncate(_decode(content, content_type)))
        return WebPage(url=url, title=_title_from(url), text=text)

    async def _read_pdf_page(self, source: _Source) -> WebPage:
        try:
            text = await self._read_pdf(source.content, tenant=source.tenant)
        except DocumentError as error:
            raise WebError(str(error)) from None
        return WebPage(url=source.url, title=_title_from(source.url), text=clean(truncate(text)))


def _is_text(media_type: str) -> bool:
    suffixes = ("/json", "+json", "/xml", "+xml", "/yaml")
    return media_type.startswith("text/") or media_type.endswith(suffixes)


def _guess_type(content: bytes) -> str:
    start = content[:512].lstrip().lower()
    return "text/html" if start.startswith((b"<!doctype html", b"<html")) else "text/plain"


def _decode(content: bytes, content_type: str, *, beginning: bytes = b"") -> str:
    """Decode text with its byte order mark, or the charset in its header or beginning, or UTF-8."""
    for mark, encoding in BYTE_ORDER_MARKS.items():
        if content.startswith(mark):
            return content.decode(encoding, "replace")
    match = _CHARSET.search(content_type) or _CHARSET.search(beginning.decode("latin-1"))
    try:
        charset = codecs.lookup(match[1] if match else "utf-8").name
        if charset.replace("_", "-") in UNSUPPORTED_CHARSETS:
            charset = "utf-8"
        return content.decode(charset, "replace")
    except (LookupError, ValueError):  # not the name of a text encoding
        return content.decode("utf-8", "replace")


def _title_from(url: str) -> str:
    """Return a title for a page without one: the last part of its path, or its host."""
    split = urlsplit(url)
    return one_line(unquote(split.path).rstrip("/").rpartition("/")[2]) or split.netloc
