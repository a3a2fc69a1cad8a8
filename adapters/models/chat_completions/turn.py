"""A turn on a Chat Completions server, as deltas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from itertools import takewhile
from types import AsyncGeneratorType

from antiphon.adapters.models.chat_completions.chunks import decode_chunk
from antiphon.adapters.models.chat_completions.reader import ChunkReader
from antiphon.adapters.models.chat_completions.usage import UsageMeter
from antiphon.adapters.upstreams.client import EventStream
from antiphon.adapters.upstreams.event_stream import DONE
from antiphon.application.model.stalls import StallWatch, TokenDeadlines
from antiphon.application.model.stop_strings import stop_strings_of
from antiphon.application.ports import (
    Json,
    ModelTurn,
    Step,
    StepLog,
    Turn,
    TurnFacts,
    TurnTranscript,
)
from antiphon.domain import deltas as d
from antiphon.domain.errors import AntiphonError, EngineError
from antiphon.domain.responses.usage import TurnUsage

CHAT_COMPLETIONS = "chat_completions"
"""The format of a transcript is this, a colon, and how the server marks reasoning."""

DRAIN_S = 0.5
"""The time limit for the end of the stream after its last event, to use the connection again."""

EVENTS_AT_ONCE = 64
"""Events that are read again before other tasks may run: they take some 1 ms."""


class ChatTurn(ModelTurn):
    """Reads the stream that `opening` will return. Closing the turn closes the connection.

    `request` is what was sent. If another server has read the whole stream, its events are
    `written`, and `opening` is None.
    `on_end` is called with the reader once a turn has ended well.
    """

    def __init__(
        self,
        turn: Turn,
        request: Json,
        opening: asyncio.Task[EventStream] | None,
        reader: ChunkReader,
        meter: UsageMeter,
        *,
        deadlines: TokenDeadlines,
        on_end: Callable[[ChunkReader], None],
        written: Sequence[Step] = (),
    ) -> None:
        self._turn = turn
        self._written = written
        self._request = request
        self._step_log = StepLog(turn.trace_steps) if turn.trace_steps else None
        self._opening = opening
        self._reader = reader
        self._meter = meter
        self._deadlines = deadlines
        self._on_end = on_end
        self._stop_strings = stop_strings_of(turn.sampling)

    def __aiter__(self) -> AsyncGenerator[list[d.Delta]]:
        deltas, reader = self._read(), self._reader
        assert isinstance(deltas, AsyncGeneratorType)
        # Not of `self`: in a cycle of references, the text would stay until it is collected.
        self._watch = StallWatch(deltas, self._deadlines, lambda: reader.chunks)
        return deltas

    async def aclose(self) -> None:
        if self._opening is not None:
            await close_opening(self._opening)

    def messages(self) -> tuple[list[Json], list[Json]]:
        return list(self._request["messages"]), [self._reader.message()]

    def tokens_used(self) -> Sequence[TurnUsage]:
        return [self._meter.usage]

    @property
    def counts_tokens(self) -> bool:
        return self._meter.is_reported

    def facts(self) -> TurnFacts:
        return TurnFacts(model=self._turn.model, unmarked_calls=self._reader.unmarked_calls)

    def transcript(self) -> TurnTranscript | None:
        if self._step_log is None:
            return None
        return TurnTranscript(
            format=f"{CHAT_COMPLETIONS}:{self._reader.think}",
            turn=self._turn,
            steps=self._step_log,
            upstream_request=self._request,
        )

    async def _read(self) -> AsyncGenerator[list[d.Delta]]:
        try:
            with self._watch:
                async for deltas in self._read_events():
                    yield deltas
        finally:
            await self.aclose()

    async def _read_events(self) -> AsyncGenerator[list[d.Delta]]:
        is_done = False
        async with aclosing(await self._start_stream()) as stream:
            async for events in stream:
                is_done = DONE in events
                if self._turn.progress is not None:
                    self._turn.progress.add(Step(text=_lines_of(events)))
                deltas, error = self._feed(events)
                yield self._cut(deltas)  # none, too: whoever reads the turn counts what comes
                if error is not None:
                    raise error
                if is_done or self._has_stopped or self._reader.is_cut:
                    break
            if is_done:
                await _drain(stream)
        deltas = self._end(is_done=is_done)
        if self._turn.progress is not None:
            self._turn.progress.add(Step(finish="stop"))  # it was read whole
        yield deltas

    async def _start_stream(self) -> AsyncGenerator[list[bytes]]:
        if self._opening is None:
            return _read_again(self._written)
        return aiter(await self._open(self._opening))

    def _feed(self, events: Sequence[bytes]) -> tuple[list[d.Delta], EngineError | None]:
        """Return the deltas of events that came together, up to an error of one of them."""
        if self._step_log is not None:
            self._step_log.add(0, _lines_of(events))
        deltas: list[d.Delta] = []
        try:
            for data in takewhile(DONE.__ne__, events):
                deltas += self._reader.feed(decode_chunk(data)) if data else ()
        except EngineError as error:
            return deltas, error
        return deltas, None

    async def _open(self, opening: asyncio.Task[EventStream]) -> EventStream:
        try:
            return await opening
        except EngineError:
            raise
        except AntiphonError as error:  # it came too late for a status of its own
            raise EngineError(str(error)) from error

    @property
    def _has_stopped(self) -> bool:
        return self._stop_strings is not None and self._stop_strings.has_stopped

    def _cut(self, deltas: list[d.Delta]) -> list[d.Delta]:
        return deltas if self._stop_strings is None else self._stop_strings.feed(deltas)

    def _end(self, *, is_done: bool) -> list[d.Delta]:
        """Return the last deltas. Raises: EngineError if the stream ended before the answer."""
        reader = self._reader
        reason: d.EndReason = "stop"
        if not self._has_stopped:
            if reader.finish is None and not (is_done and reader.has_output):
                raise EngineError("The model server ended the stream before the answer was whole.")
            reason = reader.finish or "stop"
        deltas, stopped_by = self._cut(reader.end()), None
        if self._stop_strings is not None:
            deltas += self._stop_strings.end()
            stopped_by = self._stop_strings.stopped_by
        is_forced = self._turn.choice.mode == "required" and reason == "stop"
        if is_forced and not reader.has_calls and not self._has_stopped:
            raise EngineError("The model server did not call a tool, although it had to.")
        self._on_end(reader)
        return [*deltas, d.TurnEnd(reason, self._meter.usage, stop_string=stopped_by)]


async def close_opening(opening: asyncio.Task[EventStream]) -> None:
    """Close the stream that a task opens or has opened."""
    if not opening.done():
        opening.cancel()
        await asyncio.wait({opening})
    if not opening.cancelled() and opening.exception() is None:
        await opening.result().aclose()


def _lines_of(events: Sequence[bytes]) -> str:
    return "".join(f"{data.decode(errors='replace')}\n" for data in events)


async def _read_again(steps: Sequence[Step]) -> AsyncGenerator[list[bytes]]:
    """Yield the events of a stream that another server has read."""
    for number, step in enumerate(steps, 1):
        if step.text:
            yield [line.encode() for line in step.text.split("\n")[:-1]]
        if number % EVENTS_AT_ONCE == 0:
            await asyncio.sleep(0)


async def _drain(stream: AsyncGenerator[list[bytes]]) -> None:
    """Read a stream to its end, unless the server leaves it open."""
    with suppress(TimeoutError, EngineError):
        async with asyncio.timeout(DRAIN_S):
            async for _ in stream:
                pass
