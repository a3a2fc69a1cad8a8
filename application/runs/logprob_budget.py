"""The limit of the log probabilities in one response."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.domain import deltas as d
from antiphon.domain.bounds import MAX_LOGPROBS


class LogprobBudget:
    """Counts the log probabilities of all turns of a response."""

    def __init__(self, limit: int = MAX_LOGPROBS) -> None:
        self._remaining = limit

    def is_spent_by(self, deltas: Sequence[d.Delta]) -> bool:
        """Count those of `deltas`, and return whether the response must end."""
        for delta in deltas:
            if isinstance(delta, d.TextDelta):
                self._remaining -= sum(1 + len(each.top_logprobs) for each in delta.logprobs)
        return self._remaining <= 0
