"""The records of a run that reads from outside, and their encoding in the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.application.ports import Step
from antiphon.domain.content import Logprob
from antiphon.domain.errors import CorruptLog
from antiphon.domain.responses.guards import VerdictName
from antiphon.domain.responses.metrics import TurnMetrics
from antiphon.domain.responses.traces import TracedDelta

Row = Sequence[Any]
"""A step: its tokens and its text; the first, the last and those with logprobs have three more: the
number of cached tokens, why the turn ends, and the logprobs."""


class Record(Struct, frozen=True, array_like=True):
    """Base class of what is recorded."""


class Started(Record, frozen=True, array_like=True, tag="started"):
    """The run has started, `at` seconds since the epoch."""

    at: float


class NewId(Record, frozen=True, array_like=True, tag="id"):
    """The id that something new got."""

    value: str


class SealedText(Record, frozen=True, array_like=True, tag="sealed"):
    """A text, sealed: the same text never gives the same twice."""

    value: str


class Value(Record, frozen=True, array_like=True, tag="value"):
    """Another value, as JSON."""

    value: Any


class GuardVerdict(Record, frozen=True, array_like=True, tag="verdict"):
    """A guard's verdict on a question, of which `key` is a digest; `text` is what it says."""

    key: str
    name: VerdictName
    text: str = ""


class TurnBegun(Record, frozen=True, array_like=True, tag="turn"):
    """A model begins the turn with this number; `steps` of those before are kept.

    `input_tokens` is the length of the prompt.
    """

    turn: int
    model: str
    steps: int = 0
    input_tokens: int = 0


class TurnSteps(Record, frozen=True, array_like=True, tag="steps"):
    """The next steps of a turn."""

    turn: int
    rows: list[Row]


class TurnEnded(Record, frozen=True, array_like=True, tag="ended"):
    """A turn has ended, with its calls."""

    metrics: TurnMetrics


class CallStarted(Record, frozen=True, array_like=True, tag="call"):
    """The call with this number is about to run. It may have run, if no output follows."""

    call: int


class CallOutput(Record, frozen=True, array_like=True, tag="output"):
    """The next batch of a call's output."""

    call: int
    batch: list[TracedDelta]


class CallEnded(Record, frozen=True, array_like=True, tag="done"):
    """A call has ended."""

    call: int


AnyRecord = (
    Started
    | NewId
    | SealedText
    | Value
    | GuardVerdict
    | TurnBegun
    | TurnSteps
    | TurnEnded
    | CallStarted
    | CallOutput
    | CallEnded
)

encode_records = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[AnyRecord]).decode


def decode_records(data: bytes) -> list[AnyRecord]:
    """Return the records that `encode_records` has encoded. Raises: CorruptLog."""
    try:
        return _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptLog(f"The progress of a run cannot be decoded: {error}") from error


def to_rows(steps: Sequence[Step]) -> list[Row]:
    """Return a turn's next steps as rows; `to_steps` returns the steps."""
    rows: list[Row] = []
    for step in steps:
        if step.finish is None and step.logprobs is None and rows:
            rows.append((step.token_ids, step.text))
        else:
            rows.append((step.token_ids, step.text, step.cached_tokens, step.finish, step.logprobs))
    return rows


def to_steps(rows: Sequence[Any]) -> list[Step]:
    steps: list[Step] = []
    cached_tokens = 0
    for token_ids, text, *rest in rows:
        finish, logprobs = None, None
        if rest:
            cached_tokens, finish, logprobs = rest
        steps.append(
            Step(
                text=text,
                token_ids=token_ids,
                logprobs=None
                if logprobs is None
                else msgspec.convert(logprobs, tuple[Logprob, ...]),
                finish=finish,
                cached_tokens=cached_tokens,
            )
        )
    return steps
