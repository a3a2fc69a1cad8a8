"""The text of uploaded files."""

from __future__ import annotations

import time

import pytest

from antiphon.application.resources.file_texts import text_of
from antiphon.domain.errors import DocumentError, UnsupportedDocument


async def read_pdf(content: bytes, *, tenant: str) -> str:
    return f"a PDF of {len(content)} bytes"


TEXTS = [
    ("a.txt", "grün".encode(), "grün"),
    ("a.txt", "grün".encode("utf-8-sig"), "grün"),
    ("a.txt", "grün".encode("utf-16"), "grün"),
    ("a.json", b'{"a": "<b>"}', '{"a": "<b>"}'),
    ("a.py", b"if a < b: pass", "if a < b: pass"),
    ("whatever", b"%PDF-1.7", "a PDF of 8 bytes"),
    ("a.HTML", b"<p>One &amp; two<p>three", "\nOne & two\nthree"),
    ("a.html", b"a<!-- <p>hidden --> b --> c", "a b --> c"),
    ("a.html", b"a<script>if (a<b) '</p>'</script>b<style>p</style >c", "abc"),
    ("a.html", b"a<a href='x'>link</a><!DOCTYPE html>", "alink"),
    ("a.html", b"a < b", "a < b"),
    ("a.html", b"seen<script>hidden to the end", "seen"),
]


@pytest.mark.parametrize(("name", "content", "text"), TEXTS)
async def test_text_and_pages_and_pdfs_are_read(name: str, content: bytes, text: str) -> None:
    assert await text_of(name, content, read_pdf, tenant="t") == text


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"\x89PNG\r\n", b"PK\x03\x04\x00", b"a\0b"])
async def test_other_formats_are_not_supported(content: bytes) -> None:
    with pytest.raises(UnsupportedDocument):
        await text_of("a.txt", content, read_pdf, tenant="t")


@pytest.mark.parametrize("content", [b"", b" \n\t"])
async def test_an_empty_file_has_no_text(content: bytes) -> None:
    with pytest.raises(DocumentError, match="no text"):
        await text_of("a.txt", content, read_pdf, tenant="t")


@pytest.mark.parametrize("part", ["<", "<a", "<!--", "<script>", "<p>", "</", "&", "<!", "-->"])
async def test_no_page_takes_forever(part: str) -> None:
    start = time.process_time()
    await text_of("a.html", f"x{part * 400_000}".encode(), read_pdf, tenant="t")
    assert time.process_time() - start < 5


@pytest.mark.parametrize("opening", ["<", "<!", "</", "<a "])
async def test_an_unclosed_tag_takes_no_time_either(opening: str) -> None:
    start = time.process_time()
    await text_of("a.html", f"x{opening}{'a' * 400_000}".encode(), read_pdf, tenant="t")
    assert time.process_time() - start < 5


async def test_a_reference_to_no_character_becomes_the_replacement_character() -> None:
    html = f"a&#{'9' * 5000};b&#000000065;c"
    assert await text_of("a.html", html.encode(), read_pdf, tenant="t") == "a\ufffdbAc"
