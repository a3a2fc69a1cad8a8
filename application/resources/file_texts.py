"""The text of an uploaded file: plain text as it is, of HTML what a reader would see, PDFs by the
port for them."""

from __future__ import annotations

import asyncio
import codecs
import re
from html import unescape

from antiphon.application.ports import ReadPdf
from antiphon.domain.errors import DocumentError, UnsupportedDocument

PDF = b"%PDF-"
HTML_NAMES = (".html", ".htm", ".xhtml")
HIDING = {
    "<!--": "-->",
    **{name: f"/{name}" for name in ("script", "style", "template", "noscript")},
}
"""What hides text, and what ends that."""

BLOCKS = frozenset(
    {"title", "p", "div", "br", "li", "tr", "table", "pre", "section", "article", "header"}
    | {"footer", "h1", "h2", "h3", "h4", "h5", "h6"}
)
# Possessive, so that what is never closed is gone through once: else a name of a hundred thousand
# letters takes minutes, in which nothing else runs.
_MARK = re.compile(r"<!--|-->|<(?P<slash>/?)(?P<name>[a-zA-Z][a-zA-Z0-9-]*+)[^<>]*+>|<![^<>]*+>")
_NO_CHARACTER = re.compile(r"&#[0-9]{20,};?")
"""The number of no character; `unescape` fails at thousands of digits."""

BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


async def text_of(filename: str, content: bytes, read_pdf: ReadPdf) -> str:
    """Return the text of a file. Raises: DocumentError."""
    if content.startswith(PDF):
        return await read_pdf(content)
    text = await asyncio.to_thread(_decoded, content)
    if filename.lower().endswith(HTML_NAMES):
        text = await asyncio.to_thread(_seen, text)
    if not text.strip():
        raise DocumentError("The file holds no text.")
    return text


def _decoded(content: bytes) -> str:
    encoding = next((name for mark, name in BOMS if content.startswith(mark)), "utf-8")
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise UnsupportedDocument(
            "The file is neither a PDF nor text in UTF-8 or UTF-16, which is what can be read."
        )
    return text


def _seen(html: str) -> str:
    """Return what of a page is text. In one pass, however broken it is: a parser of HTML can take
    quadratic time for what somebody made up.
    """
    seen: list[str] = []
    hidden_until = ""
    position = 0
    for mark in _MARK.finditer(html):
        if not hidden_until:
            seen.append(html[position : mark.start()])
        position = mark.end()
        name = mark[0] if mark["name"] is None else f"{mark['slash']}{mark['name'].lower()}"
        if hidden_until:
            hidden_until = "" if name == hidden_until else hidden_until
        elif name in HIDING:
            hidden_until = HIDING[name]
        elif name.lstrip("/") in BLOCKS:
            seen.append("\n")
        elif name == "-->":
            seen.append(name)
    if not hidden_until:
        seen.append(html[position:])
    return unescape(_NO_CHARACTER.sub("\ufffd", "".join(seen)))
