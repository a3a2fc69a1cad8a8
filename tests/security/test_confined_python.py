"""A file that breaks the library that reads it finds a process without rights."""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pypdf
import pytest

from antiphon.adapters.pdf import PdfReader
from antiphon.adapters.sandboxes.confined_python import ConfinedPython
from antiphon.domain.errors import SandboxError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="limits and sandboxes of Linux"),
]

MEMORY_BYTES = 256 * 1024**2


@pytest.fixture(params=[True, False], ids=["bubblewrap", "without bubblewrap"])
def python(request: pytest.FixtureRequest) -> ConfinedPython:
    if request.param and shutil.which("bwrap") is None:
        pytest.skip("bwrap is not installed: apt-get install bubblewrap")
    return ConfinedPython(["json"], memory_bytes=MEMORY_BYTES, cpu_s=1, is_sandboxed=request.param)


async def output_of(python: ConfinedPython, program: str, content: bytes = b"") -> str:
    async with asyncio.timeout(30):
        return (await python.run(program, content, max_bytes=10_000)).decode()


async def test_the_content_goes_in_and_the_text_comes_out(python: ConfinedPython) -> None:
    program = "sys.stdout.buffer.write(sys.stdin.buffer.read()[::-1])"
    assert await output_of(python, program, b"abc") == "cba"


async def test_it_has_a_lower_priority_than_the_server(python: ConfinedPython) -> None:
    assert int(await output_of(python, "print(os.nice(0))")) == min(19, os.nice(0) + 10)


async def test_it_has_neither_the_environment_nor_the_descriptors_of_the_server(
    python: ConfinedPython, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ANTIPHON_CANARY", "sesame-4711")
    with (tmp_path / "open").open("w") as inheritable:
        os.set_inheritable(inheritable.fileno(), True)
        program = """
import os
print(any("sesame" in value for value in os.environ.values()))
for descriptor in range(3, 64):
    try:
        os.fstat(descriptor)
        print(descriptor)
    except OSError:
        pass
print(os.getsid(0) == os.getpid())
"""
        assert await output_of(python, program) == "False\nTrue\n"


async def test_without_bubblewrap_it_reads_no_files_and_not_the_servers_environment() -> None:
    python = ConfinedPython(["json"], memory_bytes=MEMORY_BYTES, cpu_s=1, is_sandboxed=False)
    program = """
import os, socket
for path in (f"/proc/{os.getppid()}/environ", "/etc/passwd", f"/proc/{os.getppid()}/maps"):
    try:
        print(len(open(path, "rb").read()))
    except PermissionError:
        print("refused")
try:
    socket.create_connection(("127.0.0.1", 9))
except OSError as error:
    print(type(error).__name__)
"""
    lines = (await output_of(python, program)).splitlines()
    if not has_landlock():
        pytest.skip("this kernel has no Landlock")
    assert lines[:3] == ["refused"] * 3
    assert lines[3] in ("PermissionError", "ConnectionRefusedError")  # a kernel may not limit TCP


def has_landlock() -> bool:
    return int(ctypes.CDLL(None).syscall(444, None, 0, 1)) > 0


async def test_it_sees_no_other_process_in_its_sandbox(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if shutil.which("bwrap") is None:
        pytest.skip("bwrap is not installed: apt-get install bubblewrap")
    monkeypatch.setenv("ANTIPHON_CANARY", "sesame-4711")
    python = ConfinedPython(["json"], memory_bytes=MEMORY_BYTES, cpu_s=1)
    file = tmp_path / "file"
    file.touch()
    # Not their folders: this Python may be in one of them.
    program = f"""
import glob, os, socket
environments = [open(path, "rb").read() for path in glob.glob("/proc/[0-9]*/environ")]
print(len(environments), b"sesame" in b"".join(environments), os.getuid())
for path in ("/etc/passwd", {str(file)!r}, "/var/log", "/root/.ssh"):
    print(os.path.exists(path), end=" ")
try:
    socket.socket(socket.AF_INET)
except PermissionError:
    print("no network")
"""
    expected = "1 False 65534\nFalse False False False no network\n"
    assert await output_of(python, program) == expected


@pytest.mark.parametrize(
    ("program", "error"),
    [
        ("os.write(os.open('/dev/shm', os.O_TMPFILE | os.O_WRONLY), b'x')", "OSError"),
        ("bytearray(1 << 30)", "MemoryError"),
        ("[os.open('/dev/null', os.O_RDONLY) for _ in range(100)]", "OSError"),
    ],
)
async def test_it_can_take_no_files_memory_or_descriptors(
    python: ConfinedPython, program: str, error: str
) -> None:
    attempt = f"""
import os, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try:
    {program}
    print("taken")
except {error}:
    print("refused")
"""
    assert await output_of(python, attempt) == "refused\n"


async def test_one_that_computes_forever_or_fails_is_an_error(python: ConfinedPython) -> None:
    for program in ("while True: pass", "raise ValueError", "print('x' * 100_000)"):
        with pytest.raises(SandboxError):
            await output_of(python, program)


def pdf_of_many_pages() -> bytes:
    writer, written = pypdf.PdfWriter(), BytesIO()
    for _ in range(4000):
        writer.add_blank_page(10, 10)
    writer.write(written)
    return written.getvalue()


async def test_the_process_that_reads_a_pdf_cannot_see_a_secret_of_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ANTIPHON_CANARY", "sesame-4711")
    reading = asyncio.ensure_future(PdfReader()(pdf_of_many_pages()))
    environments: set[bytes] = set()
    while not reading.done():
        environments |= set(environments_of_descendants(os.getpid()))
        await asyncio.wait({reading}, timeout=0.005)
    reading.exception()
    assert environments
    assert not any(b"sesame" in environment for environment in environments)


def environments_of_descendants(pid: int) -> Iterator[bytes]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            children = (task / "children").read_text().split()
            for child in map(int, children):
                # Until it runs its program, a child process is a copy of this one.
                if (
                    Path(f"/proc/{child}/cmdline").read_bytes()
                    != Path(f"/proc/{os.getpid()}/cmdline").read_bytes()
                ):
                    yield Path(f"/proc/{child}/environ").read_bytes()
                yield from environments_of_descendants(child)
        except OSError:
            continue
