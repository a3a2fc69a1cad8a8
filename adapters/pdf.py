"""The text of PDFs, extracted by pypdf in a separate process.

A malicious PDF can take endless time, or all memory, and may find a flaw in its reader. A process
can be limited, confined and killed; a thread cannot.
"""

from __future__ import annotations

import asyncio
import math
import os
from importlib.util import find_spec

from antiphon.adapters.extras import packages_of
from antiphon.adapters.sandboxes.confined_python import ConfinedPython
from antiphon.application.support.fair_queue import FairQueue
from antiphon.domain.errors import DocumentError, SandboxError

MEMORY_BYTES = 1 << 30
MAX_TEXT_BYTES = 32 * 1024 * 1024
MAX_CONCURRENT = max(2, os.cpu_count() or 1)
UNREADABLE = "The PDF cannot be read: it is damaged, encrypted or too complex."


READ_TEXT = """
from io import BytesIO
import pypdf

for page in pypdf.PdfReader(BytesIO(sys.stdin.buffer.read())).pages:
    text = page.extract_text()
    sys.stdout.buffer.write(f"{text}\\n".encode("utf-8", "replace"))
"""
"""Reads a PDF from stdin, and writes its text to stdout."""


class PdfReader:
    """Extracts text from up to `concurrent` PDFs at a time, each within `timeout_s`.

    One tenant never takes all of them.
    """

    def __init__(self, *, timeout_s: float = 20.0, concurrent: int = MAX_CONCURRENT) -> None:
        self._timeout_s = timeout_s
        self._python = ConfinedPython(
            ["pypdf"], memory_bytes=MEMORY_BYTES, cpu_s=math.ceil(timeout_s) + 1
        )
        self._slots = FairQueue(concurrent)

    async def __call__(self, content: bytes, *, tenant: str = "") -> str:
        """Return the text of all pages. Raises: DocumentError."""
        if find_spec("pypdf") is None:
            raise DocumentError(
                "This server cannot read PDFs: its operator has not installed "
                f"{' '.join(packages_of('pdf'))}."
            )
        async with self._slots.slot(tenant):
            try:
                async with asyncio.timeout(self._timeout_s):
                    output = await self._python.run(READ_TEXT, content, max_bytes=MAX_TEXT_BYTES)
            except TimeoutError:
                raise DocumentError(
                    f"Reading the PDF took more than {self._timeout_s:g} seconds."
                ) from None
            except SandboxError:
                raise DocumentError(UNREADABLE) from None
        text = output.decode("utf-8", "replace")
        if not text.strip():
            raise DocumentError("The PDF contains no text; its pages may be images.")
        return text
