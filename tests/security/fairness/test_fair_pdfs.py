"""PDFs of one tenant that take long to read do not keep another waiting."""

from __future__ import annotations

import asyncio
import os
import zlib

import pytest

from antiphon.adapters.pdf import PdfReader
from antiphon.domain.errors import DocumentError

PDFS = int(os.environ.get("ANTIPHON_TEST_SLOW_PDFS", "6"))
LIMIT_S = 30.0
SLOW = 8_000_000
"""The bytes of a page that pypdf reads for seconds, about 20 KB when they are compressed."""


def pdf(drawn: bytes) -> bytes:
    """Return a PDF with one page."""
    content = zlib.compress(b"BT /F1 12 Tf 20 20 Td " + drawn + b" ET", 9)
    font = "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
    head = f"<< /Length {len(content)} /Filter /FlateDecode >>"
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 200 200] /Contents 4 0 R "
        b"/Resources << /Font << /F1 %b >> >> >>" % font.encode(),
        b"%b\nstream\n%b\nendstream" % (head.encode(), content),
    ]
    body, offsets = b"%PDF-1.4\n", []
    for number, each in enumerate(objects, start=1):
        offsets.append(len(body))
        body += b"%d 0 obj\n%b\nendobj\n" % (number, each)
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    size = len(objects) + 1
    end = f"xref\n0 {size}\n0000000000 65535 f \n{table}trailer\n<< /Size {size} /Root 1 0 R >>\n"
    return body + f"{end}startxref\n{len(body)}\n%%EOF\n".encode()


async def test_slow_pdfs_of_one_tenant_leave_a_process_to_the_others() -> None:
    read = PdfReader(timeout_s=LIMIT_S, concurrent=2)
    slow = pdf(b"(a) Tj " * (SLOW // 7))
    assert len(slow) < 107_000
    attackers = [asyncio.create_task(read(slow, tenant="greedy")) for _ in range(PDFS)]
    await asyncio.sleep(0)
    try:
        assert await read(pdf(b"(hello) Tj"), tenant="other") == "hello\n"
        assert not any(task.done() for task in attackers)
    finally:
        for task in attackers:
            task.cancel()
        await asyncio.gather(*attackers, return_exceptions=True)


async def test_a_pdf_that_takes_too_long_gives_its_process_to_the_next() -> None:
    read = PdfReader(timeout_s=0.05, concurrent=1)
    for _ in range(2):
        with pytest.raises(DocumentError, match="more than 0.05 seconds"):
            await read(pdf(b"(a) Tj " * (SLOW // 7)), tenant="t")
