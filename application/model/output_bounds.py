"""Bounds of what a model writes in one turn, whatever its engine or its server does.

An engine ends a turn at its limit of tokens, and at the end of its context at the latest. These
bounds end it if the engine does not: `OutputBound` says when. TokenTurn looks at the tokens that it
reads, and `BoundedTurn` at what any other model returns. A turn that is cut ends as one that has
reached its limit of tokens.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import get_args

from msgspec import Struct
from msgspec.structs import replace

from antiphon.application.model.wrapping import TurnWrapper
from antiphon.application.ports import ModelTurn, Turn
from antiphon.application.support.bytes_in_work import FREE_BYTES, BytesInWork, HeldBytes
from antiphon.application.support.loop_portions import LoopPortions
from antiphon.domain import deltas as d
from antiphon.domain.responses.usage import TurnUsage

MAX_COUNTED_CONTEXTS = 8
"""Tokens are counted on past the end of the context, so that a client learns how much to leave out.
Counting ends after 8 times as much, and no turn has used more: an operator may have set too short a
context, but not by that much."""

MAX_TOKEN_CHARS = 128
"""The longest tokens of the usual vocabularies are 128 spaces."""
USUAL_TOKEN_CHARS = 8
"""More than a token has on average in any text, and in JSON with escapes."""
SPARE_CHARS = 4096
SPARE_PIECES = 16_384
"""Some servers stream each character by itself, so that an answer has more pieces than tokens."""
MAX_TURN_CHARS = 1024 * 1024
"""A quarter of a million tokens of English. The end of a turn repeats its text, and everybody would
wait while a longer one is encoded."""

PIECES_AT_ONCE = 64
CHARS_AT_ONCE = 16 * 1024
"""A turn may return so many before others may do something; they take some 2 ms."""
BYTES_PER_CHAR = 4
"""A text is in the answer as a whole, in its events, and in what is stored and sent."""
BYTES_PER_PIECE = 256
"""Events take memory, too; those of usual turns do not count."""

Text = d.TextDelta | d.ReasoningDelta | d.ArgumentsDelta | d.RefusalDelta | d.SummaryDelta
TEXTS = get_args(Text)


class OutputBound(Struct, frozen=True, kw_only=True):
    """The most that one turn may write: `max_tokens`, or surely more than so many tokens have."""

    max_tokens: int

    @property
    def max_chars(self) -> int:
        return min(self.max_tokens * MAX_TOKEN_CHARS + SPARE_CHARS, MAX_TURN_CHARS)

    def is_exceeded(self, pieces: int, chars: int) -> bool:
        """Whether this is too much for a model whose tokens nobody has counted.

        >>> bound = OutputBound(max_tokens=100)
        >>> bound.is_exceeded(100, 12_800), bound.is_exceeded(4000, 4000)
        (False, False)
        >>> bound.is_exceeded(101, 5000), bound.is_exceeded(1, 20_000)
        (True, True)
        """
        if pieces <= self.max_tokens:
            return chars > self.max_chars
        return (
            chars > min(self.max_tokens * USUAL_TOKEN_CHARS + SPARE_CHARS, self.max_chars)
            or pieces > self.max_tokens + SPARE_PIECES
        )


def bound_of(turn: Turn, context_length: int) -> OutputBound:
    """Return the bound of a turn, of which nobody has said how long its prompt is."""
    return OutputBound(max_tokens=min(turn.sampling.max_tokens or context_length, context_length))


class OutputRoom:
    """The room that the turns of all models share: time of the event loop, and bytes in work."""

    def __init__(self, bytes_in_work: BytesInWork | None = None) -> None:
        self.portions = LoopPortions()
        self.bytes_in_work = bytes_in_work or BytesInWork()


class OutputShare:
    """The part of one turn in the room, from its first wait to `release`."""

    def __init__(self, room: OutputRoom, tenant: str) -> None:
        self._room = room
        self._tenant = tenant
        self._held: HeldBytes | None = None

    async def wait(self, pieces: int, chars: int) -> None:
        """Let others do something; wait for room for what is written now. Raises: RequestError."""
        await self._room.portions.wait(self._tenant)
        size = max(0, pieces - SPARE_PIECES) * BYTES_PER_PIECE + chars * BYTES_PER_CHAR
        if size > FREE_BYTES:
            if self._held is None:
                self._held = self._room.bytes_in_work.hold(self._tenant, "model_output")
            await self._held.wait_for(size)

    def release(self) -> None:
        if self._held is not None:
            self._held.release()


class SelfBoundedTurn(ModelTurn):
    """Base of turns that bound themselves where they read what comes, which costs the least.

    They wait in their `share`, if it is set, and release it at their end.
    """

    share: OutputShare | None = None

    @contextmanager
    def sharing(self) -> Iterator[None]:
        """Release the share at the end of this block."""
        try:
            yield
        finally:
            if self.share is not None:
                self.share.release()


def bounded(turn: ModelTurn, asked: Turn, context_length: int, room: OutputRoom) -> ModelTurn:
    """Return a started turn as one that ends at its bound."""
    share = OutputShare(room, asked.tenant)
    if isinstance(turn, SelfBoundedTurn):
        turn.share = share
        return turn
    return BoundedTurn(turn, asked, context_length, share)


class BoundedTurn(TurnWrapper):
    """A turn of any model. It ends at its bound, lets others take their turn, and waits while the
    bytes in work are too many. Its usage has numbers that a context can have."""

    def __init__(
        self, inner: ModelTurn, turn: Turn, context_length: int, share: OutputShare
    ) -> None:
        super().__init__(inner)
        self._bound = bound_of(turn, context_length)
        self._max_usage = MAX_COUNTED_CONTEXTS * context_length
        self._share = share

    async def __aiter__(self) -> AsyncGenerator[list[d.Delta]]:
        bound = self._bound
        max_tokens, max_chars = bound.max_tokens, bound.max_chars
        pieces = chars = 0
        next_wait, next_chars = PIECES_AT_ONCE, CHARS_AT_ONCE
        try:
            async with aclosing(aiter(self._inner)) as batches:
                async for batch in batches:
                    for deltas in (batch,) if len(batch) <= PIECES_AT_ONCE else _portions(batch):
                        pieces += len(deltas) or 1
                        for delta in deltas:
                            if isinstance(delta, TEXTS):
                                chars += len(delta.text)
                        if (pieces > max_tokens or chars > max_chars) and (
                            bound.is_exceeded(pieces, chars)
                        ):
                            yield self._cut(deltas, chars - max_chars)
                            return
                        if pieces >= next_wait or chars >= next_chars:
                            next_wait, next_chars = pieces + PIECES_AT_ONCE, chars + CHARS_AT_ONCE
                            await self._share.wait(pieces, chars)
                        if deltas and isinstance(end := deltas[-1], d.TurnEnd):
                            deltas = [*deltas[:-1], self._clamp(end)]
                        yield deltas
        finally:
            self._share.release()

    def tokens_used(self) -> Sequence[TurnUsage]:
        return [usage.at_most(self._max_usage) for usage in self._inner.tokens_used()]

    def _clamp(self, end: d.TurnEnd) -> d.TurnEnd:
        return replace(
            end,
            usage=end.usage.at_most(self._max_usage),
            other_usages=tuple([usage.at_most(self._max_usage) for usage in end.other_usages]),
        )

    def _cut(self, deltas: Sequence[d.Delta], excess: int) -> list[d.Delta]:
        """Return the deltas without so many characters at their end, and the end of the turn."""
        kept = [delta for delta in deltas if not isinstance(delta, d.TurnEnd)]
        while excess > 0 and kept:
            last = kept.pop()
            if isinstance(last, TEXTS):
                if len(last.text) > excess:
                    kept.append(_shorten(last, len(last.text) - excess))
                excess -= len(last.text)
        written, *others = self.tokens_used() or [TurnUsage()]
        # Some are only estimated, and none was asked for beyond the bound.
        written = replace(written, output=min(written.output, self._bound.max_tokens))
        return [*kept, d.TurnEnd("length", written, tuple(others))]


def _portions(deltas: list[d.Delta]) -> Iterator[list[d.Delta]]:
    """Yield as many deltas at a time as may be written before others do something."""
    for start in range(0, len(deltas), PIECES_AT_ONCE):
        yield deltas[start : start + PIECES_AT_ONCE]


def _shorten(delta: Text, length: int) -> d.Delta:
    text = delta.text[:length]
    if isinstance(delta, d.TextDelta):
        return replace(delta, text=text, logprobs=())
    return replace(delta, text=text)
