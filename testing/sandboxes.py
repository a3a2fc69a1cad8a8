"""Contract tests for the port `Sandboxes`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

import pytest

from antiphon.application.ports import (
    CommandExit,
    CommandOutput,
    MountedSkill,
    Sandbox,
    Sandboxes,
    SandboxFile,
    SandboxSpec,
)
from antiphon.application.resources.skills.archive import pack
from antiphon.domain.errors import SandboxError
from antiphon.domain.requests.skills import SkillInfo

US, THEM = "us", "them/../us"
CONTENT = bytes(range(256)) * 1000


async def content_of(sandbox: Sandbox, path: str, *, max_bytes: int | None = None) -> bytes:
    return b"".join([piece async for piece in sandbox.pieces(path, max_bytes=max_bytes)])


async def run_command(
    sandbox: Sandbox, command: str, *, timeout_s: float | None = None
) -> tuple[str, str, int | None]:
    """Return what the command printed, its errors and its exit code."""
    *pieces, end = [each async for each in sandbox.command(command, timeout_s=timeout_s)]
    assert isinstance(end, CommandExit)
    output = [piece for piece in pieces if isinstance(piece, CommandOutput)]
    assert output == pieces
    return (
        "".join(piece.stdout for piece in output),
        "".join(piece.stderr for piece in output),
        end.code,
    )


def names_of(files: Sequence[SandboxFile]) -> set[tuple[str, int, bool]]:
    return {(file.path, file.bytes, file.is_uploaded) for file in files}


async def _archive() -> bytes:
    return pack({"SKILL.md": b"Count.", "a/b.sh": b"#!/bin/sh\necho rows\n"})


@pytest.mark.asyncio
class SandboxesContract:
    """Subclass it where pytest collects tests. Its sandboxes run Python and shell commands.

    It checks what code and clients rely on, and one way out of a sandbox. That no other way leads
    out is for your own tests.

    class TestMySandboxes(SandboxesContract):
        @pytest_asyncio.fixture
        async def sandboxes(self):
            sandboxes = MySandboxes()
            await sandboxes.start()
            yield sandboxes
            await sandboxes.aclose()
    """

    @pytest.fixture
    def sandboxes(self) -> Sandboxes:
        raise NotImplementedError("override this fixture: return your sandboxes, started")

    @pytest.fixture
    def sandbox(self, sandboxes: Sandboxes) -> Sandbox:
        return sandboxes.open(US)

    # --- the sandboxes of a tenant ----------------------------------------------------------------

    async def test_a_sandbox_is_found_by_its_tenant_and_by_no_other(
        self, sandboxes: Sandboxes
    ) -> None:
        first, second = sandboxes.open(US), sandboxes.open(US)
        assert first.id != second.id
        assert sandboxes.find(US, first.id) is first
        assert sandboxes.find(THEM, first.id) is None
        assert sandboxes.find(US, "cntr_nowhere") is None
        assert sandboxes.list_all(US) == [first, second]
        assert sandboxes.list_all(THEM) == []

    async def test_a_sandbox_has_the_limits_of_its_spec_up_to_the_operators(
        self, sandboxes: Sandboxes
    ) -> None:
        usual = sandboxes.open(US)
        lower = SandboxSpec(
            name="mine", memory_bytes=usual.memory_bytes // 2, idle_s=usual.idle_s / 2
        )
        small = sandboxes.open(US, lower)
        assert (small.name, small.memory_bytes, small.idle_s) == (
            "mine",
            lower.memory_bytes,
            lower.idle_s,
        )
        higher = SandboxSpec(memory_bytes=usual.memory_bytes * 2, idle_s=usual.idle_s * 2)
        large = sandboxes.open(US, higher)
        assert (large.memory_bytes, large.idle_s) == (usual.memory_bytes, usual.idle_s)

    async def test_a_closed_sandbox_is_forgotten_and_runs_nothing(
        self, sandboxes: Sandboxes, sandbox: Sandbox
    ) -> None:
        await sandbox.start()
        await sandbox.aclose()
        assert sandboxes.find(US, sandbox.id) is None
        with pytest.raises(SandboxError):
            await sandbox.run("1")

    async def test_a_sandbox_says_when_it_was_used(self, sandbox: Sandbox) -> None:
        await sandbox.run("1")
        assert 0 <= sandbox.created_at <= sandbox.last_active_at + 1

    # --- code -------------------------------------------------------------------------------------

    async def test_variables_stay_between_calls(self, sandbox: Sandbox) -> None:
        await sandbox.run("x = 41")
        result = await sandbox.run("print(x + 1)")
        assert (result.logs, result.is_error) == ("42\n", False)

    @pytest.mark.parametrize("code", ["1 / 0", "1 +", "raise SystemExit", "\x00", "\udc80"])
    async def test_an_error_in_the_code_is_a_result(self, sandbox: Sandbox, code: str) -> None:
        assert (await sandbox.run(code)).is_error
        assert (await sandbox.run("print('on')")).logs == "on\n"

    async def test_a_cancelled_call_leaves_the_sandbox_working(self, sandbox: Sandbox) -> None:
        await sandbox.start()
        running = asyncio.create_task(sandbox.run("while True: pass"))
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running])
        assert (await sandbox.run("print('on')")).logs.endswith("on\n")

    async def test_sandboxes_share_neither_variables_nor_files(self, sandboxes: Sandboxes) -> None:
        ours, theirs = sandboxes.open(US), sandboxes.open(THEM)
        await asyncio.gather(ours.run("x = 1"), theirs.run("pass"))
        await ours.put("a.txt", b"a")
        assert (await theirs.run("x")).is_error
        assert (await theirs.run("open('a.txt')")).is_error
        assert await theirs.files() == []

    async def test_code_reaches_no_network(self, sandbox: Sandbox) -> None:
        reached = asyncio.Event()
        server = await asyncio.start_server(lambda *_: reached.set(), "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        async with server:
            code = f"import socket\nsocket.create_connection(({host!r}, {port}), 5)"
            assert (await sandbox.run(code)).is_error
        assert not reached.is_set()

    # --- files ------------------------------------------------------------------------------------

    async def test_an_unused_sandbox_has_no_files(self, sandbox: Sandbox) -> None:
        assert await sandbox.files() == []

    async def test_files_go_in_and_out(self, sandbox: Sandbox) -> None:
        await sandbox.put("in.bin", CONTENT)
        await sandbox.run("open('out.bin', 'wb').write(open('in.bin', 'rb').read()[::-1])")
        size = len(CONTENT)
        files = await sandbox.files()
        assert names_of(files) == {("in.bin", size, True), ("out.bin", size, False)}
        assert await content_of(sandbox, "out.bin") == CONTENT[::-1]
        assert await content_of(sandbox, "in.bin", max_bytes=1000) == CONTENT[:1000]

    async def test_a_file_may_be_empty_or_replaced(self, sandbox: Sandbox) -> None:
        await sandbox.put("ä b.txt", CONTENT)
        await sandbox.put("ä b.txt", b"")
        assert names_of(await sandbox.files()) == {("ä b.txt", 0, True)}
        assert await content_of(sandbox, "ä b.txt") == b""

    async def test_a_removed_file_is_gone(self, sandbox: Sandbox) -> None:
        await sandbox.put("a.txt", b"a")
        await sandbox.remove("a.txt")
        assert await sandbox.files() == []
        with pytest.raises(SandboxError):
            await sandbox.remove("a.txt")

    @pytest.mark.parametrize("path", ["nothing.txt", "../a", "/etc/passwd", "", "..", "\x00"])
    async def test_a_path_of_no_file_in_the_sandbox_is_an_error(
        self, sandbox: Sandbox, path: str
    ) -> None:
        await sandbox.start()
        with pytest.raises(SandboxError):
            await content_of(sandbox, path)

    @pytest.mark.parametrize("name", ["../a", "/a", "", ".", "a/../../b", "\x00", "x" * 300])
    async def test_a_file_can_only_be_put_into_the_folder(
        self, sandbox: Sandbox, name: str
    ) -> None:
        with pytest.raises(SandboxError):
            await sandbox.put(name, b"a")

    # --- skills -----------------------------------------------------------------------------------

    async def test_skills_are_mounted_and_stay_as_they_are_if_sandboxes_say_so(
        self, sandboxes: Sandboxes
    ) -> None:
        skill = MountedSkill(
            info=SkillInfo(name="rows", description="Counts rows.", path="/mnt/skills/rows"),
            version="1",
            unpacked_bytes=20,
            read=_archive,
        )
        sandbox = sandboxes.open(US, SandboxSpec(skills=(skill,)))
        assert list(sandbox.skills) == ([skill] if sandboxes.mounts_skills else [])
        for change in ("true", "echo no > SKILL.md", "rm -f SKILL.md a/b.sh", "touch new"):
            await run_command(sandbox, f"cd /mnt/skills/rows && {change}")
            read, _, _ = await run_command(sandbox, "cd /mnt/skills/rows && ls && a/b.sh")
            assert read == ("SKILL.md\na\nrows\n" if sandboxes.mounts_skills else "")

    # --- commands ---------------------------------------------------------------------------------

    async def test_a_command_has_output_errors_and_an_exit_code(self, sandbox: Sandbox) -> None:
        result = await run_command(sandbox, "echo out; echo error >&2; exit 3")
        assert result == ("out\n", "error\n", 3)

    async def test_commands_and_code_have_the_same_files(self, sandbox: Sandbox) -> None:
        await sandbox.run("open('a.txt', 'w').write('from code')")
        assert await run_command(sandbox, "cat a.txt") == ("from code", "", 0)
        await run_command(sandbox, "echo from a command > b.txt")
        assert await content_of(sandbox, "b.txt") == b"from a command\n"

    async def test_output_comes_while_the_command_runs(self, sandbox: Sandbox) -> None:
        async with aclosing(sandbox.command("echo first; sleep 60")) as running:
            assert await anext(running) == CommandOutput(stdout="first\n")
        assert await run_command(sandbox, "echo on") == ("on\n", "", 0)

    async def test_a_command_is_stopped_after_its_time(self, sandbox: Sandbox) -> None:
        *_, code = await run_command(sandbox, "sleep 60", timeout_s=0.2)
        assert code is None
        assert await run_command(sandbox, "echo on") == ("on\n", "", 0)
