"""Local MCP servers as real processes, including ones that misbehave."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.processes import children_of, is_process_alive

from antiphon.adapters.tool_servers.configured import redact
from antiphon.adapters.tool_servers.process import MAX_EARLY_EXITS, RESTART_DELAY_S, ProcessServer
from antiphon.application.ports import ToolResult, ToolSession
from antiphon.domain.errors import ToolServerError

PROGRAM = str(Path(__file__).with_name("tool_process.py"))
MAX_BYTES = 100_000
SECRET = "hunter2-hunter2"

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals"),
]


class Clock:
    """A clock that a test can advance."""

    def __init__(self) -> None:
        self.offset_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.offset_s


@asynccontextmanager
async def server_with(
    *arguments: str, timeout_s: float = 30.0, clock: Callable[[], float] = time.monotonic
) -> AsyncIterator[ProcessServer]:
    server = ProcessServer(
        "calc",
        [sys.executable, PROGRAM, *arguments],
        env={"SECRET": SECRET},
        timeout_s=timeout_s,
        max_bytes=MAX_BYTES,
        now=clock,
    )
    try:
        yield server
    finally:
        await server.aclose()


@asynccontextmanager
async def session_with(*arguments: str, timeout_s: float = 30.0) -> AsyncIterator[ToolSession]:
    async with server_with(*arguments, timeout_s=timeout_s) as server:
        yield server.session()


async def process_of(session: ToolSession) -> int:
    return int((await session.call("process", {})).output or "")


async def wait_until(is_true: Callable[[], bool], limit_s: float = 30.0) -> None:
    deadline = time.monotonic() + limit_s
    while not is_true():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.01)


async def wait_for_end(process: int) -> None:
    await wait_until(lambda: not is_process_alive(process))


def message_of(result: ToolResult) -> str:
    assert result.output is None
    assert result.error is not None
    return str(result.error["message"])


async def test_all_sessions_share_one_process_that_ends_with_the_server() -> None:
    async with server_with() as server:
        first, second = server.session(), server.session()
        process = await process_of(first)
        await first.aclose()
        assert await process_of(second) == process
        child = int((await second.call("breed", {})).output or "")
        assert is_process_alive(child)
    await wait_for_end(process)
    await wait_for_end(child)


async def test_it_says_what_its_tools_are_for_and_when_they_change() -> None:
    async with server_with() as server:
        changes = asyncio.Event()
        server.watch(changes.set)
        session = server.session()
        assert "learned" not in [tool["name"] for tool in await session.tools()]
        assert await session.instructions() == "Numbers are in meters."
        assert not changes.is_set()
        assert (await session.call("learn", {})).output == "said"
        async with asyncio.timeout(20):
            await changes.wait()
        assert "learned" in [tool["name"] for tool in await session.tools()]


async def test_the_process_starts_with_the_first_request() -> None:
    async with server_with("ends") as server:
        session = server.session()
        await session.aclose()
        assert server._connecting is None


async def test_it_does_not_inherit_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    async with session_with() as session:
        names = (await session.call("environment", {})).output or ""
    assert "SECRET" in names.split()
    assert "PATH" in names.split()
    assert "OPENAI_API_KEY" not in names.split()


async def test_a_call_that_hangs_times_out_and_its_process_is_stopped() -> None:
    async with server_with() as server:
        session = server.session()
        process = await process_of(session)  # it is running, so the limit applies to the call only
        server._timeout_s = 0.5
        started_at = time.monotonic()
        assert "0.5 seconds" in message_of(await session.call("hang", {}))
        assert time.monotonic() - started_at < 2
        await wait_for_end(process)
        server._timeout_s = 30
        assert await process_of(session) != process


async def test_calls_to_a_process_that_does_not_read_time_out() -> None:
    async with server_with() as server:
        session = server.session()
        await process_of(session)
        server._timeout_s = 0.5
        hanging = asyncio.create_task(session.call("hang", {}))
        await wait_until(lambda: bool(server._connection and server._connection.is_open))
        started_at = time.monotonic()
        arguments = {"a": "x" * 300_000, "b": 1}  # more than fits into a pipe
        for result in await asyncio.gather(*(session.call("add", arguments) for _ in range(3))):
            assert result.error is not None
        await hanging
        assert time.monotonic() - started_at < 1.5


async def test_a_slow_call_does_not_stop_the_process() -> None:
    async with server_with() as server:
        session = server.session()
        process = await process_of(session)
        server._timeout_s = 0.5
        assert "0.5 seconds" in message_of(await session.call("wait", {}))
        await asyncio.gather(*server._pings)
        server._timeout_s = 30
        assert await process_of(session) == process


async def test_calls_to_a_killed_process_fail_and_it_is_restarted() -> None:
    async with session_with() as session:
        process = await process_of(session)
        waiting = [asyncio.create_task(session.call("wait", {})) for _ in range(3)]
        assert (await session.call("add", {"a": 1, "b": 1})).output == "2"
        os.kill(process, signal.SIGKILL)
        for result in await asyncio.gather(*waiting):
            assert "has ended" in message_of(result)
        assert await process_of(session) != process


async def test_an_answer_that_is_too_long_fails_only_its_call() -> None:
    async with session_with() as session:
        process = await process_of(session)
        too_long, quick = await asyncio.gather(
            session.call("large", {"count": 100 * MAX_BYTES}), session.call("add", {"a": 1, "b": 2})
        )
        assert str(MAX_BYTES) in message_of(too_long)
        assert quick.output == "3"
        assert await process_of(session) == process


async def test_a_huge_answer_takes_little_memory() -> None:
    async with session_with() as session:
        await process_of(session)
        before = peak_memory()
        result = await session.call("large", {"count": 100_000_000})
        assert str(MAX_BYTES) in message_of(result)
        assert peak_memory() - before < 20_000_000


def peak_memory() -> int:
    """Return this process's peak memory in bytes since the last call."""
    status = Path("/proc/self/status").read_text()
    Path("/proc/self/clear_refs").write_text("5")
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(peak.split()[1]) * 1024


async def test_output_that_is_not_json_is_skipped() -> None:
    async with session_with() as session:
        assert (await session.call("babble", {})).output == "said"
        assert (await session.call("add", {"a": 1, "b": 2})).output == "3"


async def test_a_process_can_write_any_amount_to_stderr() -> None:
    async with session_with() as session:
        assert (await session.call("complain", {"count": 5_000_000})).output == "said"


@pytest.mark.parametrize(
    ("fault", "timeout_s", "message"),
    [
        ("ends", 30, "has ended"),
        ("stay_silent", 0.7, "0.7 seconds"),
        ("echo", 0.7, "0.7 seconds"),
        ("flood", 0.7, "0.7 seconds"),
    ],
)
async def test_a_program_that_does_not_speak_mcp_is_a_failed_list_and_is_stopped(
    fault: str, timeout_s: float, message: str
) -> None:
    before = children()
    async with session_with(fault, timeout_s=timeout_s) as session:
        with pytest.raises(ToolServerError, match=message) as failure:
            await session.tools()
        assert "'calc'" in str(failure.value)
    assert children() <= before


async def test_a_process_that_starts_slowly_serves_a_later_request() -> None:
    async with session_with("start_slowly", timeout_s=0.5) as session:
        with pytest.raises(ToolServerError, match=r"0\.5 seconds"):
            await session.tools()
        failures = 0
        while not await can_list(session):
            failures += 1
            assert failures < 20


async def can_list(session: ToolSession) -> bool:
    try:
        return bool(await session.tools())
    except ToolServerError:
        return False


def children() -> set[int]:
    return set(children_of(os.getpid()))


async def test_a_missing_program_is_a_failed_list() -> None:
    server = ProcessServer("calc", ["/no/such/program"], env={}, timeout_s=5, max_bytes=MAX_BYTES)
    with pytest.raises(ToolServerError, match="has ended"):
        await server.session().tools()
    await server.aclose()


async def test_a_process_is_not_restarted_for_a_while_after_early_exits() -> None:
    clock = Clock()
    async with server_with("ends", clock=clock) as server:
        session = server.session()
        for _ in range(MAX_EARLY_EXITS):
            with pytest.raises(ToolServerError, match="has ended"):
                await session.tools()
        for _ in range(3):
            with pytest.raises(ToolServerError, match="will be restarted in"):
                await session.tools()
        clock.offset_s = RESTART_DELAY_S + 1
        with pytest.raises(ToolServerError, match="has ended"):
            await session.tools()
        with pytest.raises(ToolServerError, match="will be restarted in"):
            await session.tools()


async def test_an_exit_in_the_first_calls_is_an_early_exit() -> None:
    async with session_with() as session:
        for _ in range(MAX_EARLY_EXITS):
            assert "has ended" in message_of(await session.call("die", {}))
            await asyncio.sleep(0)
        async with asyncio.timeout(30):
            while "will be restarted in" not in message_of(await session.call("die", {})):
                pass


async def test_a_process_that_ran_for_long_is_always_restarted() -> None:
    clock = Clock()
    async with server_with(clock=clock) as server:
        session = server.session()
        for _ in range(MAX_EARLY_EXITS + 1):
            process = await process_of(session)
            clock.offset_s += 60
            os.kill(process, signal.SIGKILL)
            await asyncio.wait([connection._task for connection in server._connections])


async def test_a_request_canceled_during_the_start_does_not_disturb_others() -> None:
    async with session_with() as session:
        canceled_request, other_request = (asyncio.create_task(session.tools()) for _ in range(2))
        await asyncio.sleep(0)
        canceled_request.cancel()
        assert len(await other_request) > 3
        await asyncio.wait([canceled_request])
        assert canceled_request.cancelled()


async def test_closing_the_server_during_a_start_leaves_no_process() -> None:
    before = children()
    async with server_with("stay_silent") as server:
        request = asyncio.create_task(server.session().tools())
        await wait_until(lambda: not children() <= before)
    await asyncio.wait([request])
    await wait_until(lambda: children() <= before)


async def test_its_last_output_is_logged_without_secrets(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    async with session_with() as session:
        assert "has ended" in message_of(await session.call("die", {}))
        await session.call("process", {})
    assert "I die with <redacted>" in caplog.text
    assert SECRET not in caplog.text


def test_secrets_are_redacted_from_every_string_of_an_error() -> None:
    error = {"type": "x", "content": [{"text": f"a {SECRET} b"}, 1, None, (SECRET,)]}
    assert SECRET not in str(redact([SECRET], error))
    assert redact(["on"], "on and on") == "on and on"  # too short for a secret
