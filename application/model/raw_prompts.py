"""Turns without a conversation: the model goes on from a text, or from tokens, as they are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing

from msgspec.structs import replace

from antiphon.application.model.wrapping import TurnWrapper
from antiphon.application.ports import (
    Constraint,
    Format,
    Json,
    ModelTurn,
    Parser,
    Prompt,
    Step,
    Turn,
)
from antiphon.domain.content import Logprob
from antiphon.domain.deltas import Delta, TextDelta, TurnEnd
from antiphon.domain.items import Item
from antiphon.domain.requests.request import RawPrompt
from antiphon.domain.responses.usage import TurnUsage
from antiphon.domain.vocabulary.repairs import Repair

LOGPROBS_AT_ONCE = 64
"""Tokens of an echo in one step: with 20 alternatives each, they take some 5 ms."""


class RawFormat(Format):
    """The tokens of another format, without its markup: all that a model writes is text."""

    skip_special_tokens = True
    reads_text = True
    reads_images = False
    efforts: Sequence[str] = ()

    def __init__(self, inner: Format) -> None:
        self.name = inner.name
        self.stop_token_ids = inner.stop_token_ids
        self._inner = inner

    async def render(self, turn: Turn) -> Prompt:
        raw = turn.raw_prompt
        assert raw is not None
        if raw.tokens is not None:
            return Prompt(token_ids=raw.tokens)
        return Prompt(token_ids=await self.encode(raw.text or "", turn))

    def make_parser(self, turn: Turn, prompt: Prompt) -> RawParser:  # noqa: ARG002
        return RawParser(self.stop_token_ids)

    def remember(
        self,
        turn: Turn,
        prompt: Prompt,
        *,
        token_ids: Sequence[int],
        parser: Parser,
        items: Sequence[Item],
    ) -> None:
        """Remember nothing: no conversation has these items."""

    def constraint(self, turn: Turn, prompt: Prompt) -> Constraint | None:  # noqa: ARG002
        return None

    async def encode(self, text: str, turn: Turn) -> Sequence[int]:
        return await self._inner.encode(text, turn)

    def text(self, token_ids: Sequence[int]) -> str:
        return self._inner.text(token_ids)

    def messages(self, token_ids: Sequence[int]) -> list[Json]:
        return self._inner.messages(token_ids)


class RawParser(Parser):
    """Hands on all text. A stop token has none, so its log probability is left out, too."""

    reasoning_tokens = 0
    is_well_formed = True
    repairs: Collection[Repair] = ()

    def __init__(self, stop_token_ids: Sequence[int]) -> None:
        self._stops = frozenset(stop_token_ids)
        self.prompt_logprobs: tuple[Logprob, ...] = ()

    def feed(self, step: Step) -> list[Delta]:
        if step.prompt_logprobs is not None:
            self.prompt_logprobs = step.prompt_logprobs
        logprobs = step.logprobs or ()
        if logprobs and step.finish == "stop" and step.token_ids[-1:]:
            logprobs = logprobs[:-1] if step.token_ids[-1] in self._stops else logprobs
        return [TextDelta(step.text, logprobs)] if step.text or logprobs else []

    def end(self) -> list[Delta]:
        return []


class EchoedTurn(TurnWrapper):
    """A turn whose text begins with its prompt, or is that alone if the request wants no more.

    The log probabilities of a prompt are all there at once: they come in portions, between which
    other tasks may run.
    """

    def __init__(self, inner: ModelTurn, raw: RawPrompt, text: str, parser: RawParser) -> None:
        super().__init__(inner)
        self._hides_output = raw.echo_only is True
        self._text = text
        self._parser = parser

    async def __aiter__(self) -> AsyncGenerator[list[Delta]]:
        is_first = True
        async with aclosing(aiter(self._inner)) as batches:
            async for deltas in batches:
                shown = self._shown(deltas) if self._hides_output else deltas
                if is_first:
                    logprobs = self._parser.prompt_logprobs
                    yield [TextDelta(self._text, logprobs[:LOGPROBS_AT_ONCE])]
                    for start in range(LOGPROBS_AT_ONCE, len(logprobs), LOGPROBS_AT_ONCE):
                        await asyncio.sleep(0)
                        yield [TextDelta("", logprobs[start : start + LOGPROBS_AT_ONCE])]
                    is_first = False
                if shown:
                    yield shown

    def tokens_used(self) -> Sequence[TurnUsage]:
        used = super().tokens_used()
        return [replace(each, output=0) for each in used] if self._hides_output else used

    def _shown(self, deltas: Sequence[Delta]) -> list[Delta]:
        end = deltas[-1] if deltas else None
        if not isinstance(end, TurnEnd):
            return []
        return [replace(end, reason="length", usage=replace(end.usage, output=0))]


def echo(inner: ModelTurn, turn: Turn, prompt: Prompt, format: Format, parser: Parser) -> ModelTurn:
    """Return the turn with its prompt before its text, if the request asks for it."""
    raw = turn.raw_prompt
    if raw is None or not raw.echo:
        return inner
    assert isinstance(parser, RawParser)
    text = format.text(prompt.token_ids) if raw.text is None else raw.text
    return EchoedTurn(inner, raw, text, parser)
