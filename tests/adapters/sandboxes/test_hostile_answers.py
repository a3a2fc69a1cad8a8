"""Code in a sandbox can answer for its kernel; whatever it answers costs the server little."""

from __future__ import annotations

import os

import pytest
from tests.adapters.sandboxes.conftest import DISK, content_of
from tests.support.memory import PeakMemory

from antiphon.adapters.sandboxes.bubblewrap import BubblewrapSandboxes
from antiphon.adapters.sandboxes.request_channel import MAX_FILES, MAX_IMAGES
from antiphon.application.ports import Sandbox
from antiphon.domain.errors import SandboxError

pytestmark = [pytest.mark.faults, pytest.mark.asyncio(loop_scope="module")]

MAX_GROWTH_BYTES = 40 * 1024 * 1024
IMAGES = int(os.environ.get("ANTIPHON_TEST_SANDBOX_IMAGES", "4000000"))

KERNEL = "kernel = display.__self__"
ANSWERS = """
import os
answers = max(int(each) for each in os.listdir('/proc/self/fd') if
              os.path.lexists('/proc/self/fd/' + each) and
              'socket' in os.readlink('/proc/self/fd/' + each))
def send(head, body=b'', head_bytes=None, body_bytes=None):
    head_bytes = len(head) if head_bytes is None else head_bytes
    body_bytes = len(body) if body_bytes is None else body_bytes
    message = head_bytes.to_bytes(4, 'big') + body_bytes.to_bytes(4, 'big') + head + body
    while message:
        message = message[os.write(answers, message):]
"""


async def test_millions_of_tiny_images_cost_no_memory(sandbox: Sandbox) -> None:
    await sandbox.run("1")
    memory = PeakMemory()
    result = await sandbox.run(f"{KERNEL}\nkernel._images = [b''] * {IMAGES}")
    assert memory.growth_bytes() < MAX_GROWTH_BYTES
    assert len(result.images) <= MAX_IMAGES
    assert (await sandbox.run("1 + 1")).logs == "2\n"


async def test_a_file_that_never_ends_is_read_up_to_the_size_of_a_disk(sandbox: Sandbox) -> None:
    await sandbox.put("small", b"12345")
    await sandbox.run("import os; os.pread = lambda descriptor, size, offset: bytes(size)")
    read_bytes = 0
    async for piece in sandbox.pieces("small"):
        read_bytes += len(piece)
        assert read_bytes <= DISK
    assert read_bytes == DISK


async def test_a_file_is_read_up_to_the_size_that_it_was_announced_with(sandbox: Sandbox) -> None:
    await sandbox.put("small", b"12345")
    [file] = await sandbox.files()
    await sandbox.run("import os; os.pread = lambda descriptor, size, offset: bytes(size)")
    pieces = [piece async for piece in sandbox.pieces("small", max_bytes=file.bytes)]
    assert pieces == [bytes(5)]


@pytest.mark.parametrize(
    "answer",
    [
        "send(b'{}', head_bytes=2**32 - 1)",
        "send(b'{}', body_bytes=2**32 - 1)",
        "send(b'[' * 200_000)",
        "send(b'{\"x\":' * 40_000)",
        "send(b'{\"image_sizes\":[' + b'0,' * 100_000 + b'0]}')",
        "send(b'{\"image_sizes\":[1000]}', b'short')",
        "send(b'{\"image_sizes\":[-5, 10]}', b'short')",
        'send(b\'{"is_error":"yes"}\')',
        'send(b\'{"error":"\\\\ud800"}\')',
        "send(b'{\"exit_code\":' + b'9' * 5000 + b'}')",
    ],
)
async def test_an_invalid_answer_costs_the_container_and_nothing_else(
    sandbox: Sandbox, answer: str
) -> None:
    await sandbox.run("1")
    memory = PeakMemory()
    result = await sandbox.run(f"{ANSWERS}\n{answer}")
    assert "was restarted" in result.logs
    assert result.is_error
    assert memory.growth_bytes() < MAX_GROWTH_BYTES
    assert (await sandbox.run("1 + 1")).logs == "2\n"


async def test_images_together_have_a_limit_that_code_is_told_of(sandbox: Sandbox) -> None:
    code = """
png = b'\\x89PNG\\r\\n\\x1a\\n' + bytes(3 * 1024**2)
display(png, png, png, png)
"""
    result = await sandbox.run(code)
    assert [len(image) for image in result.images] == [3 * 1024**2 + 8] * 2
    assert result.logs.count("image dropped") == 2


async def test_a_long_list_of_files_is_cut_off(sandboxes: BubblewrapSandboxes) -> None:
    sandbox = sandboxes.open("a")
    code = """
for number in range(1500):
    open(f'/mnt/data/{number:04}' + 'é' * 100, 'w').close()
"""
    assert not (await sandbox.run(code)).is_error
    files = await sandbox.files()
    assert 300 < len(files) <= MAX_FILES
    await sandbox.aclose()


async def test_a_list_of_files_with_wrong_sizes_is_an_error(sandbox: Sandbox) -> None:
    await sandbox.run(f"{KERNEL}\nkernel._files = lambda request: {{'files': [('a', -1, 2**80)]}}")
    with pytest.raises(SandboxError):
        await sandbox.files()
    assert await sandbox.files() == []
    with pytest.raises(SandboxError):
        await content_of(sandbox, "a")
