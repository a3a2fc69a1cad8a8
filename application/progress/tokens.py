"""The tokens that a run has used by its records, for a server that only ends the run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from antiphon.application.progress.records import AnyRecord, Row, TurnBegun, TurnEnded, TurnSteps
from antiphon.domain.metrics import TurnMetrics
from antiphon.domain.usage import TurnUsage


def tokens_used(records: Iterable[AnyRecord]) -> Sequence[TurnUsage]:
    """Return the usage of the turns that have ended, and of those that had begun."""
    ended: list[TurnUsage] = []
    begun: dict[int, _BegunTurn] = {}
    for record in records:
        match record:
            case TurnBegun(number, _, kept, input_tokens):
                before = begun.get(number, _BegunTurn(0))
                begun[number] = _BegunTurn(input_tokens, before.rows[:kept])
            case TurnSteps(number, rows):
                begun[number].rows += rows
            case TurnEnded(metrics):
                begun.clear()
                ended.append(_usage_of(metrics))
    return [*ended, *(turn.usage() for turn in begun.values())]


class _BegunTurn(Struct):
    input_tokens: int
    rows: list[Row] = []

    def usage(self) -> TurnUsage:
        cached = max((row[2] for row in self.rows if len(row) > 2), default=0)
        output = sum(_tokens_in(row) for row in self.rows)
        return TurnUsage(input=self.input_tokens, cached=cached, output=output)


def _tokens_in(row: Row) -> int:
    """Return the number of tokens; a server that sends no tokens sends about one in a piece."""
    token_ids, text = row[:2]
    return len(token_ids) or min(len(text), 1)


def _usage_of(metrics: TurnMetrics) -> TurnUsage:
    return TurnUsage(
        input=metrics.input_tokens,
        cached=metrics.cached_tokens,
        output=metrics.output_tokens,
        reasoning=metrics.reasoning_tokens,
        tool_output=metrics.tool_output_tokens,
    )
