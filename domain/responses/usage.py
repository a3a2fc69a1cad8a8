"""Token usage: of one turn, and of a response as the sum of its turns
(docs/reference/api.md#usage)."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import force_setattr, replace

from antiphon.domain.bounds import MAX_COUNT


class TurnUsage(Struct, frozen=True, kw_only=True):
    """The tokens of one engine run; all zero for a turn that called no model.

    `tool_output` counts the input tokens that tools added since the previous turn.

    Engines and models of every kind fill it in, and limits and metrics count it. So a number that
    cannot be true becomes the nearest one that can: none is negative or beyond `MAX_COUNT`, and no
    part is larger than its whole.

    >>> TurnUsage(input=2**63, cached=-1, output=3, reasoning=4)
    TurnUsage(input=2147483648, cached=0, output=3, reasoning=3, tool_output=0)
    """

    input: int = 0
    cached: int = 0
    output: int = 0
    reasoning: int = 0
    tool_output: int = 0

    def __post_init__(self) -> None:
        if not (
            0 <= self.cached <= self.input <= MAX_COUNT
            and 0 <= self.reasoning <= self.output <= MAX_COUNT
            and 0 <= self.tool_output <= self.input
        ):
            self._clamp()

    def _clamp(self) -> None:
        force_setattr(self, "input", min(max(0, self.input), MAX_COUNT))
        force_setattr(self, "output", min(max(0, self.output), MAX_COUNT))
        force_setattr(self, "cached", min(max(0, self.cached), self.input))
        force_setattr(self, "reasoning", min(max(0, self.reasoning), self.output))
        force_setattr(self, "tool_output", min(max(0, self.tool_output), self.input))

    def at_most(self, tokens: int) -> TurnUsage:
        """Return it with no number above `tokens`."""
        if self.input <= tokens and self.output <= tokens:
            return self
        return replace(self, input=min(self.input, tokens), output=min(self.output, tokens))


class InputTokensDetails(Struct, frozen=True, kw_only=True):
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    input_tokens_per_turn: tuple[int, ...] | UnsetType = UNSET
    cached_tokens_per_turn: tuple[int, ...] | UnsetType = UNSET


class OutputTokensDetails(Struct, frozen=True, kw_only=True):
    reasoning_tokens: int = 0
    tool_output_tokens: int | UnsetType = UNSET
    output_tokens_per_turn: tuple[int, ...] | UnsetType = UNSET
    tool_output_tokens_per_turn: tuple[int, ...] | UnsetType = UNSET


class TurnTokens(Struct, frozen=True, kw_only=True):
    """The usage of one turn, as the client sees it."""

    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    tool_output_tokens: int


class Usage(Struct, frozen=True, kw_only=True):
    """The usage of all turns, as the client sees it.

    The per-turn lists are an extension of vLLM and only shown on request, because strict clients
    accept nothing but numbers among the details (docs/decisions/0022).
    """

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


def total(turns: Sequence[TurnUsage], *, list_turns: bool = False) -> Usage:
    """Return the sum of a response's turns; `list_turns` adds the per-turn lists.

    >>> total([TurnUsage(input=3, output=2), TurnUsage(input=6, cached=5, output=1)]).total_tokens
    12
    """
    turns = model_turns(turns)
    sums = sum_of(turns)
    return Usage(
        input_tokens=sums.input,
        input_tokens_details=InputTokensDetails(
            cached_tokens=sums.cached,
            input_tokens_per_turn=tuple([t.input for t in turns]) if list_turns else UNSET,
            cached_tokens_per_turn=tuple([t.cached for t in turns]) if list_turns else UNSET,
        ),
        output_tokens=sums.output,
        output_tokens_details=OutputTokensDetails(
            reasoning_tokens=sums.reasoning,
            tool_output_tokens=sums.tool_output,
            output_tokens_per_turn=tuple([t.output for t in turns]) if list_turns else UNSET,
            tool_output_tokens_per_turn=tuple([t.tool_output for t in turns])
            if list_turns
            else UNSET,
        ),
        total_tokens=sums.input + sums.output,
    )


def sum_of(turns: Sequence[TurnUsage]) -> TurnUsage:
    """Return the sum of the turns' tokens."""
    if len(turns) == 1:
        return turns[0]
    return TurnUsage(
        input=sum(turn.input for turn in turns),
        cached=sum(turn.cached for turn in turns),
        output=sum(turn.output for turn in turns),
        reasoning=sum(turn.reasoning for turn in turns),
        tool_output=sum(turn.tool_output for turn in turns),
    )


def model_turns(turns: Sequence[TurnUsage]) -> Sequence[TurnUsage]:
    """Return the turns that called a model, which are those with a prompt."""
    return [turn for turn in turns if turn.input]


def per_turn(turns: Sequence[TurnUsage]) -> tuple[TurnTokens, ...]:
    """Return the usage of each turn, in order."""
    return tuple(
        TurnTokens(
            input_tokens=turn.input,
            cached_tokens=turn.cached,
            output_tokens=turn.output,
            reasoning_tokens=turn.reasoning,
            tool_output_tokens=turn.tool_output,
        )
        for turn in model_turns(turns)
    )
