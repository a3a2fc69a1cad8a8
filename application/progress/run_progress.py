"""The progress of a run: what it has read from outside, so that another server can go on with it.

A run follows from its request and from what it reads meanwhile: the steps of engines, the output of
tools, new ids. All of that is recorded here, and stored with the events that follow from it. A
server that resumes the run runs it again from its start. As long as there is something recorded,
the run reads that in place of an engine or a tool, and so comes to the same state and the same
events; then it goes on (docs/decisions/0109).

RunProgress    the progress of one run: records, and recalls what earlier servers have recorded
RecordedTurn   the part of one turn of a model
CallProgress   the part of one call of a tool
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from msgspec import Struct

from antiphon.application.ports import Step, TurnProgress, WrittenPart
from antiphon.application.progress.records import (
    AnyRecord,
    CallEnded,
    CallOutput,
    CallStarted,
    GuardVerdict,
    NewId,
    SealedText,
    Started,
    TurnBegun,
    TurnEnded,
    TurnSteps,
    Value,
    encode_records,
    to_rows,
    to_steps,
)
from antiphon.domain import deltas as d
from antiphon.domain.errors import CannotResume
from antiphon.domain.responses.guards import VerdictName
from antiphon.domain.responses.metrics import TurnMetrics
from antiphon.domain.responses.traces import from_traced, to_traced
from antiphon.domain.responses.usage import TurnUsage


class RunProgress:
    """Records what the run reads, and first recalls `records`, those of servers before this one.

    What is recorded is in memory until `take` returns it, to be stored.
    """

    def __init__(self, records: Sequence[AnyRecord] = ()) -> None:
        self.started_at: float | None = None
        self.is_shown: Callable[[], bool] = lambda: False
        """Returns whether readers have seen more than the resumed run has repeated by now."""
        self._new: list[AnyRecord] = []
        self._ids: deque[str] = deque()
        self._sealed: deque[str] = deque()
        self._values: deque[Any] = deque()
        self._verdicts: dict[str, tuple[VerdictName, str]] = {}
        self._turns: dict[int, _StoredTurn] = {}
        self._calls: dict[int, _StoredCall] = {}
        self._ended_turns: deque[TurnMetrics] = deque()
        self._turn_count = self._call_count = 0
        self._open_turns: list[RecordedTurn] = []
        for record in records:
            self._recall(record)

    def take(self) -> bytes:
        """Return what was recorded since the last time, encoded; nothing if there was nothing."""
        for turn in self._open_turns:
            turn.flush()
        if not self._new:
            return b""
        new, self._new = self._new, []
        return encode_records(new)

    def forget(self) -> None:
        """Recall nothing more: the run only ends."""
        self._ids.clear()
        self._sealed.clear()

    def tokens_used(self) -> Sequence[TurnUsage]:
        """Return what earlier servers have used, for a run that only ends: nothing was recalled."""
        begun = (turn.usage() for turn in self._turns.values() if not turn.has_ended)
        return [*map(_usage_of, self._ended_turns), *begun]

    def start(self, at: float) -> None:
        """Record the time of the run's start; only the first one counts."""
        if self.started_at is None:
            self.started_at = at
            self.add(Started(at))

    def new_id(self, make: Callable[[str], str], prefix: str) -> str:
        if self._ids:
            return self._ids.popleft()
        made = make(prefix)
        self.add(NewId(made))
        return made

    def seal(self, seal: Callable[[str], str], text: str) -> str:
        if self._sealed:
            return self._sealed.popleft()
        sealed = seal(text)
        self.add(SealedText(sealed))
        return sealed

    async def recall_or_read(self, read: Callable[[], Awaitable[Any]]) -> Any:
        """Return the JSON value that `read` returns, or has returned on an earlier server."""
        if self._values:
            return self._values.popleft()
        value = await read()
        self.add(Value(value))
        return value

    def recall_or_make(self, make: Callable[[], Any]) -> Any:
        """Return the JSON value that `make` returns, or has returned on an earlier server."""
        if self._values:
            return self._values.popleft()
        value = make()
        self.add(Value(value))
        return value

    def recall_verdict(self, key: str) -> tuple[VerdictName, str] | None:
        """Return the verdict that a guard has given on an earlier server, and its text."""
        return self._verdicts.get(key)

    def note_verdict(self, key: str, name: VerdictName, text: str) -> None:
        """Record a guard's verdict: the same question gets the same answer on another server."""
        self.add(GuardVerdict(key, name, text))

    def open_turn(self) -> RecordedTurn:
        """Return the progress of the next turn."""
        number, self._turn_count = self._turn_count, self._turn_count + 1
        turn = RecordedTurn(self, number, self._turns.pop(number, None))
        self._open_turns.append(turn)
        return turn

    def close_turns(self, metrics: TurnMetrics) -> TurnMetrics:
        """Record that the turns opened so far have ended, and return their record.

        It is that of the server on which they ended first.
        """
        self.flush_turns()
        if self._ended_turns:
            return self._ended_turns.popleft()
        self.add(TurnEnded(metrics))
        return metrics

    def flush_turns(self) -> None:
        for turn in self._open_turns:
            turn.flush()
        self._open_turns.clear()

    def open_call(self) -> CallProgress:
        """Return the progress of the next call, which is about to run."""
        number, self._call_count = self._call_count, self._call_count + 1
        stored = self._calls.pop(number, None)
        if stored is None:
            self.add(CallStarted(number))
        return CallProgress(self, number, stored)

    def add(self, record: AnyRecord) -> None:
        self._new.append(record)

    def _recall(self, record: AnyRecord) -> None:
        match record:
            case Started(at):
                self.started_at = at
            case NewId(value):
                self._ids.append(value)
            case SealedText(value):
                self._sealed.append(value)
            case Value(value):
                self._values.append(value)
            case GuardVerdict(key, name, text):
                self._verdicts[key] = (name, text)
            case TurnBegun(number, model, steps, input_tokens):
                before = self._turns.get(number)
                kept = [] if before is None else before.steps[:steps]
                self._turns[number] = _StoredTurn(model, kept, input_tokens)
            case TurnSteps(number, rows):
                self._turns[number].steps += to_steps(rows)
            case TurnEnded(metrics):
                self._ended_turns.append(metrics)
                for turn in self._turns.values():
                    turn.has_ended = True
            case CallStarted(number):
                self._calls[number] = _StoredCall()
            case CallOutput(number, batch):
                self._calls[number].batches.append([from_traced(delta) for delta in batch])
            case CallEnded(number):
                self._calls[number].has_ended = True


class _StoredTurn(Struct):
    """A turn as earlier servers have recorded it."""

    model: str
    steps: list[Step]
    input_tokens: int
    has_ended: bool = False

    def usage(self) -> TurnUsage:
        cached = self.steps[-1].cached_tokens if self.steps else 0
        output = sum(map(_tokens_in, self.steps))
        return TurnUsage(input=self.input_tokens, cached=cached, output=output)


class _StoredCall(Struct):
    """A call as earlier servers have recorded it."""

    batches: list[list[d.Delta]] = []
    has_ended: bool = False


class RecordedTurn(TurnProgress):
    """Implements TurnProgress."""

    def __init__(self, run: RunProgress, number: int, stored: _StoredTurn | None) -> None:
        self._run = run
        self._number = number
        self._stored = stored
        self._repeated = 0
        self._steps: list[Step] = []

    def begin(
        self, model: str, input_tokens: int, *, resumes: bool = True, trims: bool = False
    ) -> WrittenPart:
        self.flush()
        stored, self._stored = self._stored, None
        steps = stored.steps if stored is not None else []
        is_whole = bool(steps) and steps[-1].finish is not None
        can_go_on = stored is not None and stored.model == model and (resumes or is_whole)
        if not can_go_on:
            if steps and self._run.is_shown():
                writer = stored.model if stored is not None else ""
                raise CannotResume(
                    f"The answer that {writer!r} had begun cannot be continued by {model!r}."
                )
            steps = []
        elif trims:
            steps = _without_silent_end(steps)
        if stored is not None and steps:
            input_tokens = stored.input_tokens
        if stored is None or not steps or len(steps) < len(stored.steps):
            self._run.add(TurnBegun(self._number, model, len(steps), input_tokens))
        self._repeated = len(steps)
        return WrittenPart(steps, input_tokens)

    def add(self, step: Step) -> None:
        if self._repeated:
            self._repeated -= 1
        else:
            self._steps.append(step)

    def flush(self) -> None:
        """Record the steps that were added."""
        if self._steps:
            self._run.add(TurnSteps(self._number, to_rows(self._steps)))
            self._steps = []


class CallProgress:
    """The progress of one call, which may have run before."""

    def __init__(self, run: RunProgress, number: int, stored: _StoredCall | None) -> None:
        self._run = run
        self._number = number
        self.is_new = stored is None
        """Whether it has certainly not run before."""
        self.batches: Sequence[Sequence[d.Delta]] = [] if stored is None else stored.batches
        """The output that is known from before."""
        self.has_ended = stored is not None and stored.has_ended
        self._repeated = len(self.batches)

    def add(self, batch: Sequence[d.Delta]) -> None:
        """Record the next batch of output; those that are known from before are not recorded."""
        if self._repeated:
            self._repeated -= 1
        else:
            self._run.add(CallOutput(self._number, [*map(to_traced, batch)]))

    def end(self) -> None:
        """Record that the call has ended."""
        if not self.has_ended:
            self._run.add(CallEnded(self._number))


def _tokens_in(step: Step) -> int:
    """Return the number of tokens; a server that sends no tokens sends about one in a piece."""
    return len(step.token_ids) or min(len(step.text), 1)


def _usage_of(metrics: TurnMetrics) -> TurnUsage:
    return TurnUsage(
        input=metrics.input_tokens,
        cached=metrics.cached_tokens,
        output=metrics.output_tokens,
        reasoning=metrics.reasoning_tokens,
        tool_output=metrics.tool_output_tokens,
    )


def _without_silent_end(steps: Sequence[Step]) -> list[Step]:
    """Return the steps up to the last one with text: what follows is the start of a character."""
    end = len(steps)
    while end and not steps[end - 1].text and steps[end - 1].finish is None:
        end -= 1
    return [*steps[:end]]
