"""Extract the text of an uploaded file: plain text, the visible text of HTML, or a PDF's text."""

from __future__ import annotations

import codecs
import re
from html import unescape

from antiphon.application.ports import ReadPdf
from antiphon.application.support.threads import run_in_thread
from antiphon.domain.errors import DocumentError, UnsupportedDocument

PDF = b"%PDF-"
HTML_NAMES = (".html", ".htm", ".xhtml")
HIDDEN_UNTIL = {
    "<!--": "-->",
    **{name: f"/{name}" for name in ("script", "style", "template", "noscript")},
}
"""Marks that start hidden text, and the marks that end it."""

BLOCK_TAGS = frozenset(
    {"title", "p", "div", "br", "li", "tr", "table", "pre", "section", "article", "header"}
    | {"footer", "h1", "h2", "h3", "h4", "h5", "h6"}
)
# The quantifiers are possessive, so that an unclosed tag is scanned only once. Otherwise a tag name
# of a hundred thousand letters would block the server for minutes.
_MARK = re.compile(r"<!--|-->|<(?P<slash>/?)(?P<name>[a-zA-Z][a-zA-Z0-9-]*+)[^<>]*+>|<![^<>]*+>")
_HUGE_REFERENCE = re.compile(r"&#[0-9]{20,};?")
"""A number too big for any character; `unescape` fails on numbers with thousands of digits."""

HTML_COST = 16
"""Reading HTML takes as long as decoding so many times its length of JSON."""

BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


async def text_of(filename: str, content: bytes, read_pdf: ReadPdf, *, tenant: str) -> str:
    """Return the text of a file. Raises: DocumentError."""
    if content.startswith(PDF):
        return await read_pdf(content, tenant=tenant)
    text = await run_in_thread(len(content), _decode, content)
    if filename.lower().endswith(HTML_NAMES):
        text = await run_in_thread(len(text) * HTML_COST, _visible_text_of, text)
    if not text.strip():
        raise DocumentError("The file has no text.")
    return text


def _decode(content: bytes) -> str:
    encoding = next((name for mark, name in BOMS if content.startswith(mark)), "utf-8")
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise UnsupportedDocument(
            "The file is neither a PDF nor text in UTF-8 or UTF-16: no other format is supported."
        )
    return text


def _visible_text_of(html: str) -> str:
    """Return the visible text of a page.

    This takes a single pass, however broken the page is: HTML parsers can take quadratic time for
    a malicious one.
    """
    texts: list[str] = []
    hidden_until = ""
    position = 0
    for mark in _MARK.finditer(html):
        if not hidden_until:
            texts.append(html[position : mark.start()])
        position = mark.end()
        name = mark[0] if mark["name"] is None else f"{mark['slash']}{mark['name'].lower()}"
        if hidden_until:
            hidden_until = "" if name == hidden_until else hidden_until
        elif name in HIDDEN_UNTIL:
            hidden_until = HIDDEN_UNTIL[name]
        elif name.lstrip("/") in BLOCK_TAGS:
            texts.append("\n")
        elif name == "-->":
            texts.append(name)
    if not hidden_until:
        texts.append(html[position:])
    return unescape(_HUGE_REFERENCE.sub("\ufffd", "".join(texts)))
