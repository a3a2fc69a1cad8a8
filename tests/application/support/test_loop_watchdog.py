"""The watchdog logs what blocks the event loop, with its stack, and is quiet otherwise."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import re
import threading
import time
import weakref

import pytest

from antiphon.application.support.loop_watchdog import LoopWatchdog

LIMIT_S = 0.05
LOGGER = "antiphon.loop"


def block_the_loop(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


async def _answer_of_the_watchdog(caplog: pytest.LogCaptureFixture, count: int) -> None:
    """Wait until it has logged: its thread writes when the loop runs again."""
    async with asyncio.timeout(30):
        while len(caplog.records) < count:  # noqa: ASYNC110 - a thread writes the records
            await asyncio.sleep(0.005)


def _longest_ms(caplog: pytest.LogCaptureFixture) -> int:
    waits = re.findall(r"did not run for (\d+) ms", caplog.text)
    return max(map(int, waits), default=0)


async def test_a_callable_that_blocks_the_loop_is_logged_with_its_stack(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with LoopWatchdog(LIMIT_S):
        block_the_loop(5 * LIMIT_S)
        await _answer_of_the_watchdog(caplog, 1)
    (record,) = [record for record in caplog.records if record.name == LOGGER]
    assert record.levelname == "WARNING"
    assert "the event loop did not run for" in record.getMessage()
    assert "in block_the_loop" in record.getMessage()


def keep_the_lock(seconds: float) -> None:
    """Stop all threads, as `re` does: a call by PyDLL does not let go of the interpreter's lock."""
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


@pytest.mark.parametrize("before_s", [0, 1.5 * LIMIT_S])  # while the watchdog sleeps, and waits
async def test_a_call_that_keeps_the_interpreters_lock_is_logged_when_it_is_over(
    caplog: pytest.LogCaptureFixture, before_s: float
) -> None:
    with LoopWatchdog(LIMIT_S, log_interval_s=0):
        block_the_loop(before_s)
        keep_the_lock(10 * LIMIT_S)
        # Where the loop is then, may be beyond the call: no thread ran before it was over. On a
        # busy machine, what came before it may be logged on its own.
        async with asyncio.timeout(30):
            while _longest_ms(caplog) <= 5 * LIMIT_S * 1000:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.005)


async def test_many_blocks_are_one_warning_until_the_interval_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with LoopWatchdog(LIMIT_S, log_interval_s=3600):
        for _ in range(3):
            block_the_loop(5 * LIMIT_S)
            await asyncio.sleep(LIMIT_S)
        await _answer_of_the_watchdog(caplog, 1)
    assert len([record for record in caplog.records if record.name == LOGGER]) == 1


class LongAnswer:
    """What the loop has at hand while it is blocked."""


async def test_what_blocked_the_loop_is_freed_without_a_collection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def block_with_an_answer() -> weakref.ref[LongAnswer]:
        answer = LongAnswer()
        block_the_loop(5 * LIMIT_S)
        return weakref.ref(answer)

    gc.disable()
    try:
        with LoopWatchdog(LIMIT_S):
            answer = block_with_an_answer()
            await _answer_of_the_watchdog(caplog, 1)
        assert answer() is None
    finally:
        gc.enable()


async def test_the_next_warning_says_how_many_were_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with LoopWatchdog(LIMIT_S, log_interval_s=0) as watchdog:
        watchdog._unlogged = 7
        block_the_loop(5 * LIMIT_S)
        await _answer_of_the_watchdog(caplog, 1)
    assert "(7 more since the last warning)" in caplog.records[0].getMessage()


async def test_a_limit_of_zero_starts_no_thread() -> None:
    before = threading.active_count()
    with LoopWatchdog(0):
        assert threading.active_count() == before


async def test_the_thread_ends_with_its_block() -> None:
    others = set(threading.enumerate())  # a server of another test may have one, too
    with LoopWatchdog(LIMIT_S):
        [started] = set(threading.enumerate()) - others
        assert started.name == "loop watchdog"
    assert not started.is_alive()
