"""Local MCP servers, as real processes: what holds whatever a process does."""

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
from tests.processes import is_process_alive

from antiphon.adapters.tool_servers.configured import redact
from antiphon.adapters.tool_servers.process import MAX_EARLY_EXITS, RESTART_DELAY_S, ProcessServer
from antiphon.application.ports import ToolResult, ToolSession
from antiphon.domain.errors import ToolServerError

PROGRAM = str(Path(__file__).with_name("tool_process.py"))
LARGEST = 100_000
SECRET = "hunter2-hunter2"

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX"),
]


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.passed_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.passed_s


@asynccontextmanager
async def server_of(
    *arguments: str, timeout_s: float = 30.0, clock: Callable[[], float] = time.monotonic
) -> AsyncIterator[ProcessServer]:
    server = ProcessServer(
        "calc",
        [sys.executable, PROGRAM, *arguments],
        env={"SECRET": SECRET},
        timeout_s=timeout_s,
        max_bytes=LARGEST,
        now=clock,
    )
    try:
        yield server
    finally:
        await server.aclose()


@asynccontextmanager
async def session_of(*arguments: str, timeout_s: float = 30.0) -> AsyncIterator[ToolSession]:
    async with server_of(*arguments, timeout_s=timeout_s) as server:
        yield server.session()


async def process_of(session: ToolSession) -> int:
    return int((await session.call("process", {})).output or "")


async def until(holds: Callable[[], bool], limit_s: float = 30.0) -> None:
    deadline = time.monotonic() + limit_s
    for _ in iter(holds, True):
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.01)


async def gone(process: int) -> None:
    await until(lambda: not is_process_alive(process))


def message_of(result: ToolResult) -> str:
    assert result.output is None
    assert result.error is not None
    return str(result.error["message"])


async def test_all_sessions_share_one_process_that_ends_with_the_server() -> None:
    async with server_of() as server:
        first, second = server.session(), server.session()
        process = await process_of(first)
        await first.aclose()
        assert await process_of(second) == process
        bred = int((await second.call("breed", {})).output or "")
        assert is_process_alive(bred)
    await gone(process)
    await gone(bred)


async def test_nothing_is_begun_before_the_first_use() -> None:
    async with server_of("ends") as server:
        session = server.session()
        await session.aclose()
        assert server._opening is None


async def test_it_is_given_no_environment_but_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-ours")
    async with session_of() as session:
        names = (await session.call("environment", {})).output or ""
    assert "SECRET" in names.split()
    assert "PATH" in names.split()
    assert "OPENAI_API_KEY" not in names.split()


async def test_a_call_that_hangs_ends_in_time_and_its_process_too() -> None:
    async with server_of() as server:
        session = server.session()
        process = await process_of(session)  # it is up, so the limit is the call's alone
        server._timeout_s = 0.5
        begun = time.monotonic()
        assert "0.5 seconds" in message_of(await session.call("hang", {}))
        assert time.monotonic() - begun < 2
        await gone(process)
        server._timeout_s = 30
        assert await process_of(session) != process


async def test_calls_of_one_that_reads_nothing_any_more_end_in_time_too() -> None:
    async with server_of() as server:
        session = server.session()
        await process_of(session)
        server._timeout_s = 0.5
        hanging = asyncio.create_task(session.call("hang", {}))
        await until(lambda: bool(server._line and server._line.is_open))
        begun = time.monotonic()
        arguments = {"a": "x" * 300_000, "b": 1}  # more than a pipe holds
        for result in await asyncio.gather(*(session.call("add", arguments) for _ in range(3))):
            assert result.error is not None
        await hanging
        assert time.monotonic() - begun < 1.5


async def test_a_call_that_is_only_slow_leaves_the_process_alone() -> None:
    async with server_of() as server:
        session = server.session()
        process = await process_of(session)
        server._timeout_s = 0.5
        assert "0.5 seconds" in message_of(await session.call("wait", {}))
        await asyncio.gather(*server._asking)
        server._timeout_s = 30
        assert await process_of(session) == process


async def test_a_process_that_is_killed_fails_its_calls_and_is_begun_again() -> None:
    async with session_of() as session:
        process = await process_of(session)
        waiting = [asyncio.create_task(session.call("wait", {})) for _ in range(3)]
        assert (await session.call("add", {"a": 1, "b": 1})).output == "2"
        os.kill(process, signal.SIGKILL)
        for result in await asyncio.gather(*waiting):
            assert "has ended" in message_of(result)
        assert await process_of(session) != process


async def test_an_answer_that_is_too_long_fails_its_call_alone() -> None:
    async with session_of() as session:
        process = await process_of(session)
        too_long, quick = await asyncio.gather(
            session.call("large", {"count": 100 * LARGEST}), session.call("add", {"a": 1, "b": 2})
        )
        assert str(LARGEST) in message_of(too_long)
        assert quick.output == "3"
        assert await process_of(session) == process


async def test_a_huge_answer_takes_no_memory_of_ours() -> None:
    async with session_of() as session:
        await process_of(session)
        before = peak()
        result = await session.call("large", {"count": 100_000_000})
        assert str(LARGEST) in message_of(result)
        assert peak() - before < 20_000_000


def peak() -> int:
    """The most memory that this process has had, in bytes, since the last call."""
    status = Path("/proc/self/status").read_text()
    Path("/proc/self/clear_refs").write_text("5")
    found = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(found.split()[1]) * 1024


async def test_what_is_no_json_is_left_out() -> None:
    async with session_of() as session:
        assert (await session.call("babble", {})).output == "said"
        assert (await session.call("add", {"a": 1, "b": 2})).output == "3"


async def test_a_process_may_complain_as_much_as_it_likes() -> None:
    async with session_of() as session:
        assert (await session.call("complain", {"count": 5_000_000})).output == "said"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["ends"], "has ended"),
        (["is_silent"], "0.7 seconds"),
        (["is_none"], "0.7 seconds"),
        (["floods"], "0.7 seconds"),
    ],
)
async def test_what_is_no_server_is_a_failed_list_and_leaves_no_process(
    arguments: list[str], said: str
) -> None:
    before = children()
    async with session_of(*arguments, timeout_s=0.7) as session:
        with pytest.raises(ToolServerError, match=said) as failure:
            await session.tools()
        assert "'calc'" in str(failure.value)
    assert children() <= before


async def test_what_begins_slowly_is_there_for_a_later_use() -> None:
    async with session_of("is_slow", timeout_s=0.5) as session:
        with pytest.raises(ToolServerError, match=r"0\.5 seconds"):
            await session.tools()
        failures = 0
        while not await listed(session):
            failures += 1
            assert failures < 20


async def listed(session: ToolSession) -> bool:
    try:
        return bool(await session.tools())
    except ToolServerError:
        return False


def children() -> set[int]:
    tasks = Path("/proc/self/task").iterdir()
    found = {int(child) for task in tasks for child in (task / "children").read_text().split()}
    return set(filter(is_process_alive, found))


async def test_a_program_that_is_not_there_is_a_failed_list() -> None:
    server = ProcessServer("calc", ["/no/such/program"], env={}, timeout_s=5, max_bytes=LARGEST)
    with pytest.raises(ToolServerError, match="has ended"):
        await server.session().tools()
    await server.aclose()


async def test_what_dies_young_again_and_again_is_left_alone_for_a_while() -> None:
    clock = Clock()
    async with server_of("ends", clock=clock) as server:
        session = server.session()
        for _ in range(MAX_EARLY_EXITS):
            with pytest.raises(ToolServerError, match="has ended"):
                await session.tools()
        for _ in range(3):
            with pytest.raises(ToolServerError, match="begun again in"):
                await session.tools()
        clock.passed_s = RESTART_DELAY_S + 1
        with pytest.raises(ToolServerError, match="has ended"):
            await session.tools()
        with pytest.raises(ToolServerError, match="begun again in"):
            await session.tools()


async def test_one_that_dies_in_its_first_calls_is_left_alone_too() -> None:
    async with session_of() as session:
        for _ in range(MAX_EARLY_EXITS):
            assert "has ended" in message_of(await session.call("die", {}))
            await asyncio.sleep(0)
        async with asyncio.timeout(30):
            while "begun again in" not in message_of(await session.call("die", {})):
                pass


async def test_one_that_lived_long_may_die_any_number_of_times() -> None:
    clock = Clock()
    async with server_of(clock=clock) as server:
        session = server.session()
        for _ in range(MAX_EARLY_EXITS + 1):
            process = await process_of(session)
            clock.passed_s += 60
            os.kill(process, signal.SIGKILL)
            await asyncio.wait([each._holding for each in server._lines])


async def test_who_leaves_while_it_begins_does_not_disturb_the_others() -> None:
    async with session_of() as session:
        leaving, staying = (asyncio.create_task(session.tools()) for _ in range(2))
        await asyncio.sleep(0)
        leaving.cancel()
        assert len(await staying) > 3
        await asyncio.wait([leaving])
        assert leaving.cancelled()


async def test_a_server_that_stops_while_it_begins_leaves_no_process() -> None:
    before = children()
    async with server_of("is_silent") as server:
        asking = asyncio.create_task(server.session().tools())
        await until(lambda: not children() <= before)
    await asyncio.wait([asking])
    await until(lambda: children() <= before)


async def test_its_last_words_are_logged_without_its_secrets(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    async with session_of() as session:
        assert "has ended" in message_of(await session.call("die", {}))
        await session.call("process", {})
    assert "I die with <redacted>" in caplog.text
    assert SECRET not in caplog.text


def test_secrets_are_found_wherever_an_error_has_texts() -> None:
    error = {"type": "x", "content": [{"text": f"a {SECRET} b"}, 1, None, (SECRET,)]}
    assert SECRET not in str(redact([SECRET], error))
    assert redact(["on"], "on and on") == "on and on"  # too short to be one
