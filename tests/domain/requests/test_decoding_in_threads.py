"""Bodies of one type that are first decoded in several threads at the same moment."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = '''
import sys
import threading
from types import ModuleType

from antiphon.domain.requests.decoding import decode_request_body

TYPES = """
from __future__ import annotations

import msgspec

class Leaf(msgspec.Struct):
    a: int | str | None = None
    b: list[dict[str, int | None]] | None = None

class Branch(msgspec.Struct):
    a: Leaf | None = None
    b: list[Leaf] | None = None
    c: dict[str, Leaf | None] | None = None

class Body(msgspec.Struct):
    a: Branch | None = None
    b: list[Branch] | None = None
    c: dict[str, Branch | None] | None = None
"""

def new_body_type(number):
    """Return a type that msgspec has not seen yet."""
    module = sys.modules[f"bodies_{number}"] = ModuleType(f"bodies_{number}")
    exec(TYPES, module.__dict__)
    return module.Body

def decode(kind, start):
    start.wait()
    decode_request_body(b'{"a": {"a": {"a": 1}}}', kind)

sys.setswitchinterval(1e-6)
for number in range(150):
    arguments = new_body_type(number), threading.Barrier(4)
    threads = [threading.Thread(target=decode, args=arguments) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
'''


def test_the_process_survives() -> None:
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, timeout=30, check=False, text=True
    )
    assert (finished.returncode, finished.stderr) == (0, "")
