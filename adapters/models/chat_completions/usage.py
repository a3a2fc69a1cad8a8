"""The tokens of a turn, as its server reports them in one of several ways."""

from __future__ import annotations

from typing import Any

from antiphon.adapters.models.chat_completions.chunks import UsageCounts
from antiphon.domain.bounds import MAX_COUNT, count_of
from antiphon.domain.responses.usage import TurnUsage


class UsageMeter:
    """Counts the tokens of a turn: the server's numbers once it reports them, estimates until then.

    A piece of the stream is estimated as one token. `known_tokens` is the turn's (ports.Turn).
    A number that cannot be true does not count: a turn has a prompt, an answer has tokens, and
    neither has more than `max_tokens`. So no server can have a turn counted as none.
    """

    def __init__(
        self, prompt_tokens: int, known_tokens: int | None, *, max_tokens: int = MAX_COUNT
    ) -> None:
        self._prompt_tokens = prompt_tokens
        self._known_tokens = known_tokens
        self._max_tokens = max(max_tokens, prompt_tokens)
        self._reported: UsageCounts | None = None
        self.pieces = 0
        self.reasoning_pieces = 0

    def report(self, counts: UsageCounts) -> None:
        """Take the server's numbers, of which the last ones count."""
        if counts.prompt_tokens is not None or counts.completion_tokens is not None:
            self._reported = counts

    @property
    def is_reported(self) -> bool:
        """Whether the numbers are the server's."""
        return self._reported is not None

    @property
    def usage(self) -> TurnUsage:
        counts = self._reported or UsageCounts()
        prompt = self._first(counts.prompt_tokens, least=1, default=self._prompt_tokens)
        output = self._first(
            counts.completion_tokens, least=min(self.pieces, 1), default=self.pieces
        )
        details, prompt_details = counts.completion_tokens_details, counts.prompt_tokens_details
        reasoning = self._first(
            details.reasoning_tokens if details else None,
            counts.reasoning_tokens,
            default=self.reasoning_pieces,
        )
        cached = self._first(
            prompt_details.cached_tokens if prompt_details else None,
            counts.prompt_cache_hit_tokens,
            counts.cached_tokens,
        )
        known = prompt if self._known_tokens is None else self._known_tokens
        return TurnUsage(
            input=prompt,
            cached=min(cached, prompt),
            output=output,
            reasoning=min(reasoning, output),
            tool_output=max(0, prompt - known),
        )

    def _first(self, *values: Any, least: int = 0, default: int = 0) -> int:
        """Return the first of the server's numbers that can be true, or the default."""
        counts = (count_of(value, least=least, most=self._max_tokens) for value in values)
        return next((count for count in counts if count is not None), default)
