"""What a model did: a turn ends only with a reason that the end of a run can show."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from antiphon.application.runs.run_response import INCOMPLETE_REASONS
from antiphon.domain.deltas import CutReason, TurnEnd
from antiphon.domain.responses.usage import TurnUsage


@pytest.mark.parametrize("reason", ["", "abort", "tool_calls"])
def test_a_turn_cannot_end_with_an_unknown_reason(reason: Any) -> None:
    with pytest.raises(ValueError, match=f"the reason '{reason}', only: .*stop"):
        TurnEnd(reason, TurnUsage())


def test_every_reason_that_cuts_a_turn_off_is_shown_at_the_end_of_the_response() -> None:
    assert set(INCOMPLETE_REASONS) == set(get_args(CutReason))
