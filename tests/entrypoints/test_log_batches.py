"""Lines of `info` are written together, each with its own ids; a warning writes all that waits."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Iterator

import pytest

from antiphon.application.telemetry.log_context import log_as
from antiphon.entrypoints.process.log_format import (
    MAX_CHARS,
    MAX_WAITING,
    BatchHandler,
    LazyMessage,
    LogFormatter,
)


class Stream(io.StringIO):
    """Counts its writes."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0
        self.has_lines = asyncio.Event()

    def write(self, text: str) -> int:
        self.writes += 1
        self.has_lines.set()
        return super().write(text)

    @property
    def messages(self) -> list[str]:
        return [line.split(" test.batches ")[1] for line in self.getvalue().splitlines()]


@pytest.fixture
def stream() -> Stream:
    return Stream()


@pytest.fixture
def logger(stream: Stream) -> Iterator[logging.Logger]:
    handler = BatchHandler()
    handler.setStream(stream)
    handler.setFormatter(LogFormatter())
    made = logging.getLogger("test.batches")
    made.setLevel(logging.INFO)
    made.propagate = False
    made.addHandler(handler)
    yield made
    made.removeHandler(handler)
    handler.close()


async def test_lines_are_written_together_soon_after_the_first(
    logger: logging.Logger, stream: Stream
) -> None:
    for number in range(3):
        logger.info("line %d", number)
    assert stream.writes == 0
    async with asyncio.timeout(5):
        await stream.has_lines.wait()
    assert (stream.messages, stream.writes) == (["line 0", "line 1", "line 2"], 1)


async def test_each_line_names_the_request_that_logged_it(
    logger: logging.Logger, stream: Stream
) -> None:
    for name in ("req_a", "req_b"):
        log_as(request_id=name)
        logger.info("asked")
    logger.handlers[0].flush()
    assert stream.messages == ["asked [request=req_a]", "asked [request=req_b]"]


async def test_what_a_line_names_may_change_while_it_waits(
    logger: logging.Logger, stream: Stream
) -> None:
    items = [1]
    logger.info("items %s", items)
    items.append(2)
    logger.handlers[0].flush()
    assert stream.messages == ["items [1]"]


async def test_a_lazy_message_waits_like_others(logger: logging.Logger, stream: Stream) -> None:
    class Message(LazyMessage, frozen=True):
        def __str__(self) -> str:
            return "second"

    logger.info("first")
    logger.info(Message())
    assert stream.writes == 0
    logger.warning("third")
    assert stream.messages == ["first", "second", "third"]


async def test_a_warning_is_written_at_once_after_what_waits(
    logger: logging.Logger, stream: Stream
) -> None:
    logger.info("first")
    logger.warning("second")
    assert stream.messages == ["first", "second"]


async def test_a_line_of_another_thread_comes_after_what_waits(
    logger: logging.Logger, stream: Stream
) -> None:
    logger.info("first")
    await asyncio.to_thread(logger.info, "second")
    assert stream.messages == ["first", "second"]


async def test_only_so_many_lines_wait(logger: logging.Logger, stream: Stream) -> None:
    for _ in range(MAX_WAITING):
        logger.info("line")
    assert len(stream.messages) == MAX_WAITING


async def test_a_long_line_does_not_wait(logger: logging.Logger, stream: Stream) -> None:
    logger.info("first")
    logger.info("x" * (MAX_CHARS + 1))
    assert [len(message) for message in stream.messages] == [len("first"), MAX_CHARS + 1]


def test_without_a_loop_a_line_is_written_at_once(logger: logging.Logger, stream: Stream) -> None:
    logger.info("starting")
    assert stream.messages == ["starting"]


async def test_a_line_that_cannot_be_made_costs_no_other(
    logger: logging.Logger, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)

    class Broken:
        def __str__(self) -> str:
            raise ValueError

    logger.info("%s", Broken())
    logger.info("whole")
    logger.handlers[0].flush()
    assert stream.messages == ["whole"]
