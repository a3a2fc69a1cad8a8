"""The tokens of a turn, as its server reports them in one of several ways."""

from __future__ import annotations

from antiphon.adapters.models.chat_completions.chunks import UsageCounts
from antiphon.domain.responses.usage import TurnUsage


class UsageMeter:
    """Counts the tokens of a turn: the server's numbers once it reports them, estimates until then.

    A piece of the stream is estimated as one token. `known_tokens` is the turn's (ports.Turn).
    """

    def __init__(self, prompt_tokens: int, known_tokens: int | None) -> None:
        self._prompt_tokens = prompt_tokens
        self._known_tokens = known_tokens
        self._reported: UsageCounts | None = None
        self.pieces = 0
        self.reasoning_pieces = 0

    def report(self, counts: UsageCounts) -> None:
        """Take the server's numbers, of which the last ones count."""
        if counts.prompt_tokens is not None or counts.completion_tokens is not None:
            self._reported = counts

    @property
    def usage(self) -> TurnUsage:
        counts = self._reported or UsageCounts()
        prompt = _first(counts.prompt_tokens, self._prompt_tokens)
        output = _first(counts.completion_tokens, self.pieces)
        details, prompt_details = counts.completion_tokens_details, counts.prompt_tokens_details
        reasoning = _first(
            details.reasoning_tokens if details else None,
            counts.reasoning_tokens,
            self.reasoning_pieces,
        )
        cached = _first(
            prompt_details.cached_tokens if prompt_details else None,
            counts.prompt_cache_hit_tokens,
            counts.cached_tokens,
            0,
        )
        known = prompt if self._known_tokens is None else self._known_tokens
        return TurnUsage(
            input=prompt,
            cached=min(cached, prompt),
            output=output,
            reasoning=min(reasoning, output),
            tool_output=max(0, prompt - known),
        )


def _first(*counts: int | None) -> int:
    return next((max(0, count) for count in counts if count is not None), 0)
