"""Turns whose output guards see before anybody else does, and the turn of a refused request."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from msgspec.structs import replace

from antiphon.application.model.guards.ask_guards import ResponseGuards
from antiphon.application.model.wrapping import TurnWrapper
from antiphon.application.ports import Json, ModelTurn, StepLog, TurnFacts, TurnTranscript
from antiphon.domain import deltas as d
from antiphon.domain.items import Item
from antiphon.domain.responses.guards import Refuse, Stop
from antiphon.domain.responses.held_deltas import HeldDeltas, HeldSegment
from antiphon.domain.responses.usage import TurnUsage

RunsHere = Callable[[d.CallStart], bool]
"""Returns whether this server runs a call, so that the model reads why it was refused."""


def guarded(turn: ModelTurn, guards: ResponseGuards | None, runs_here: RunsHere) -> ModelTurn:
    """Return a started turn as one that guards see first, if any guard is asked about outputs."""
    if guards is None or not (guards.ask_at("output") or guards.ask_at("tool_call")):
        return turn
    return GuardedTurn(turn, guards, runs_here)


class GuardedTurn(TurnWrapper):
    """A turn of which only what guards have passed goes on.

    It ends where they refuse or stop it: what they were asked about then is never shown.
    """

    def __init__(self, inner: ModelTurn, guards: ResponseGuards, runs_here: RunsHere) -> None:
        super().__init__(inner)
        self._guards = guards
        self._runs_here = runs_here
        self._held = HeldDeltas(guards.written, guards.window if guards.ask_at("output") else None)
        self._is_changed = False
        self._shows_all = False
        """Whether all that the model wrote has been let go as it was."""

    async def __aiter__(self) -> AsyncGenerator[list[d.Delta]]:
        held = self._held
        async with aclosing(aiter(self._inner)) as batches:
            async for batch in batches:
                end = None
                for delta in batch:
                    if isinstance(delta, d.TurnEnd):
                        end = delta
                        held.close()
                    else:
                        held.add(delta)
                if (held.is_due or end is not None) and (verdict := await self._ask()) is not None:
                    yield ending_of(verdict, self.tokens_used() if end is None else _usages_of(end))
                    return
                released = held.release(everything=end is not None)
                self._shows_all = end is not None and not self._is_changed
                yield released if end is None else [*released, end]

    def record_items(self, items: Sequence[Item]) -> None:
        if self._shows_all:  # no prompt repeats what guards have replaced
            super().record_items(items)

    def messages(self) -> tuple[list[Json], list[Json]]:
        read, written = super().messages()
        return read, written if self._shows_all else []

    def transcript(self) -> TurnTranscript | None:
        transcript = super().transcript()
        if transcript is None or self._shows_all:
            return transcript
        return replace(transcript, output_token_ids=(), steps=StepLog(0))

    async def _ask(self) -> Refuse | Stop | None:
        """Ask about all that waits. Return the verdict that ends the turn, if any does."""
        for segment in self._held.unasked():
            ask = self._ask_about_text if segment.call is None else self._ask_about_call
            if (verdict := await ask(segment)) is not None:
                return verdict
        self._held.note_passed()
        return None

    async def _ask_about_text(self, segment: HeldSegment) -> Refuse | Stop | None:
        for context in self._held.contexts_of(segment):
            text = segment.text
            if not text:
                break
            answer = await self._guards.ask(context + text, "output", start=len(context))
            if not isinstance(answer, str):
                return answer
            self._replace(segment, text, answer)
        return None

    async def _ask_about_call(self, segment: HeldSegment) -> Refuse | Stop | None:
        assert segment.call is not None
        text = segment.text
        answer = await self._guards.ask(text, "tool_call", "output", tool=segment.call.name)
        if isinstance(answer, str):
            self._replace(segment, text, answer)
        elif isinstance(answer, Refuse) and self._runs_here(segment.call):
            self._is_changed = True
            self._held.refuse_call(segment, answer.message)
        else:
            return answer
        return None

    def _replace(self, segment: HeldSegment, text: str, answer: str) -> None:
        if answer != text:
            self._is_changed = True
            self._held.replace_text(segment, answer)


class RefusedTurn(ModelTurn):
    """The only turn of a response whose request guards have refused or stopped; no model runs."""

    def __init__(self, verdict: Refuse | Stop) -> None:
        self._verdict = verdict

    async def __aiter__(self) -> AsyncGenerator[list[d.Delta]]:
        yield ending_of(self._verdict, ())

    async def aclose(self) -> None:
        pass

    def facts(self) -> TurnFacts:
        return TurnFacts(kind="guard")

    def messages(self) -> tuple[list[Json], list[Json]]:
        return [], []


def ending_of(verdict: Refuse | Stop, usages: Sequence[TurnUsage]) -> list[d.Delta]:
    """Return the end of a turn with this verdict."""
    usage, *others = usages or [TurnUsage()]
    if isinstance(verdict, Stop):
        return [d.TurnEnd("content_filter", usage, tuple(others))]
    return [d.RefusalDelta(verdict.message), d.TurnEnd("refused", usage, tuple(others))]


def _usages_of(end: d.TurnEnd) -> Sequence[TurnUsage]:
    return [end.usage, *end.other_usages]
