"""The text of PDFs, extracted by pypdf in a separate process.

A malicious PDF can take endless time, or all memory. A process can be limited and killed; a thread
cannot. Run as a module, this file reads a PDF from stdin and writes its text to stdout.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from importlib.util import find_spec
from io import BytesIO

from antiphon.adapters.extras import packages_of
from antiphon.application.support.fair_queue import FairQueue
from antiphon.domain.errors import DocumentError

MEMORY_BYTES = 1 << 30
MAX_TEXT_BYTES = 32 * 1024 * 1024
MAX_CONCURRENT = max(2, os.cpu_count() or 1)
UNREADABLE = "The PDF cannot be read: it is damaged, encrypted or too complex."


class PdfReader:
    """Extracts text from up to `concurrent` PDFs at a time, each within `timeout_s`.

    One tenant never takes all of them.
    """

    def __init__(self, *, timeout_s: float = 20.0, concurrent: int = MAX_CONCURRENT) -> None:
        self._timeout_s = timeout_s
        self._slots = FairQueue(concurrent)

    async def __call__(self, content: bytes, *, tenant: str = "") -> str:
        """Return the text of all pages. Raises: DocumentError."""
        if find_spec("pypdf") is None:
            raise DocumentError(
                "This server cannot read PDFs: its operator has not installed "
                f"{' '.join(packages_of('pdf'))}."
            )
        async with self._slots.slot(tenant):
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # do not import modules from the working folder
                "-m",
                __name__,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
            try:
                async with asyncio.timeout(self._timeout_s):
                    output, _ = await process.communicate(content)
            except TimeoutError:
                raise DocumentError(
                    f"Reading the PDF took more than {self._timeout_s:g} seconds."
                ) from None
            finally:
                if process.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        process.kill()
                    await process.wait()
        if process.returncode != 0:
            raise DocumentError(UNREADABLE)
        text = output.decode("utf-8", "replace")
        if not text.strip():
            raise DocumentError("The PDF contains no text; its pages may be images.")
        return text


def main() -> None:
    """Read a PDF from stdin and write its text to stdout, within limits of memory and size."""
    with contextlib.suppress(ImportError):  # not on Windows
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    import pypdf  # the `pdf` extra

    remaining_bytes = MAX_TEXT_BYTES
    for page in pypdf.PdfReader(BytesIO(sys.stdin.buffer.read())).pages:
        text = f"{page.extract_text()}\n".encode("utf-8", "replace")
        remaining_bytes -= len(text)
        if remaining_bytes < 0:
            sys.exit(1)
        sys.stdout.buffer.write(text)


if __name__ == "__main__":
    main()
