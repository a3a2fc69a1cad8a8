"""Free memory goes back to the kernel, also from the middle of the heap."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only glibc has these options")

SCRIPT = """
import sys, time
from antiphon.entrypoints.process.memory import (
    _resident_bytes, keep_little_free_memory, trimming_memory
)

keep_little_free_memory()
before = _resident_bytes()
blocks = [bytes(1000) for _ in range(60_000)]
pinned = blocks[::600]
blocks.clear()  # what is pinned lies between the free blocks, up to the end of the heap
print(_resident_bytes() - before)
with trimming_memory(look_every_s=0.02):
    deadline = time.monotonic() + 20
    while _resident_bytes() - before > 10_000_000 and time.monotonic() < deadline:
        time.sleep(0.01)
print(_resident_bytes() - before)
"""


def test_memory_between_objects_that_live_on_goes_back_to_the_kernel() -> None:
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=True
    )
    kept, kept_after_trim = map(int, result.stdout.split())
    assert kept > 50_000_000  # otherwise the test proves nothing
    assert kept_after_trim < 10_000_000
