"""What a run has used by its records: whole turns, and turns that had begun."""

from __future__ import annotations

import pytest

from antiphon.application.ports import Step
from antiphon.application.progress.records import (
    AnyRecord,
    TurnBegun,
    TurnEnded,
    TurnSteps,
    decode_records,
    to_rows,
)
from antiphon.application.progress.run_progress import RunProgress
from antiphon.domain.responses.metrics import TurnMetrics
from antiphon.domain.responses.usage import TurnUsage

TWO = TurnSteps(0, to_rows([Step(token_ids=(1,), cached_tokens=4), Step(token_ids=(2, 3))]))
ENDED = TurnEnded(
    TurnMetrics(
        started_at=0,
        input_tokens=9,
        cached_tokens=4,
        output_tokens=5,
        reasoning_tokens=2,
        tool_output_tokens=1,
    )
)
WHOLE = TurnUsage(input=9, cached=4, output=5, reasoning=2, tool_output=1)


@pytest.mark.parametrize(
    ("records", "used"),
    [
        ([], []),
        ([TurnBegun(0, "a", 0, 9)], [TurnUsage(input=9)]),
        ([TurnBegun(0, "a", 0, 9), TWO, TWO], [TurnUsage(input=9, cached=4, output=6)]),
        ([TurnBegun(0, "a", 0, 9), TWO, ENDED], [WHOLE]),
        (
            [TurnBegun(0, "a", 0, 9), TWO, ENDED, TurnBegun(1, "a", 0, 20)],
            [WHOLE, TurnUsage(input=20)],
        ),
        # Another server has begun the turn again, and kept one step of it, or none.
        (
            [TurnBegun(0, "a", 0, 9), TWO, TurnBegun(0, "a", 1, 9)],
            [TurnUsage(input=9, cached=4, output=1)],
        ),
        ([TurnBegun(0, "a", 0, 9), TWO, TurnBegun(0, "b", 0, 8)], [TurnUsage(input=8)]),
        # Two models at once, of which one is another's tool.
        (
            [TurnBegun(0, "a", 0, 9), TWO, TurnBegun(1, "b", 0, 3)],
            [TurnUsage(input=9, cached=4, output=3), TurnUsage(input=3)],
        ),
        # A server that sends pieces of text without tokens.
        (
            [TurnBegun(0, "c", 0, 9), TurnSteps(0, to_rows([Step(text="one"), Step(text="two")]))],
            [TurnUsage(input=9, output=2)],
        ),
    ],
    ids=lambda value: str(len(value)),
)
def test_recorded_turns_have_used_tokens(records: list[AnyRecord], used: list[TurnUsage]) -> None:
    assert [*RunProgress(records).tokens_used()] == used


@pytest.mark.parametrize(
    ("records", "model", "input_tokens"),
    [
        ([], "a", 12),
        ([TurnBegun(0, "a", 0, 9), TWO], "a", 9),
        # Nothing of the turn is kept, so it begins again.
        ([TurnBegun(0, "a", 0, 9)], "a", 12),
        ([TurnBegun(0, "a", 0, 9), TWO], "b", 12),
    ],
)
def test_a_turn_that_goes_on_counts_the_prompt_that_it_began_with(
    records: list[AnyRecord], model: str, input_tokens: int
) -> None:
    progress = RunProgress(records)
    written = progress.open_turn().begin(model, 12)
    assert written.input_tokens == input_tokens
    records += decode_records(progress.take() or b"[]")
    [used] = RunProgress(records).tokens_used()
    assert used.input == input_tokens
