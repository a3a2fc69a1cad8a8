"""A model of tokens: a Format joined with an Engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from msgspec.structs import replace

from antiphon.application.model.stop_strings import StopStrings
from antiphon.application.ports import (
    Engine,
    EngineRequest,
    Format,
    Json,
    Model,
    ModelTurn,
    Parser,
    Prompt,
    Sampling,
    Step,
    Steps,
    Turn,
)
from antiphon.domain.conversation import droppable_groups
from antiphon.domain.deltas import Delta, TurnEnd
from antiphon.domain.errors import CONTEXT_EXCEEDED, EngineError, RequestError
from antiphon.domain.items import Item
from antiphon.domain.usage import TurnUsage

TRUNCATED_ROOM = 4
"""With `truncation: auto`, at most one part in so many of the context is kept for the answer."""


class TokenModel(Model):
    """Renders a turn, runs it in the engine, parses what comes back.

    `make_format` is called once the engine has started: only then does an engine that fetched its
    model itself have the tokenizer and the template.
    """

    _format: Format

    def __init__(self, make_format: Callable[[], Format], engine: Engine) -> None:
        self._make_format = make_format
        self._engine = engine

    @property
    def names(self) -> Sequence[str]:
        return self._engine.models

    @property
    def format_name(self) -> str:
        return self._format.name

    @property
    def reads_images(self) -> bool:
        return self._format.reads_images and self._engine.reads_images

    @property
    def efforts(self) -> Sequence[str]:
        return self._format.efforts

    @property
    def context_length(self) -> int:
        return self._engine.context_length

    @property
    def sampling_defaults(self) -> Mapping[str, Any]:
        return self._engine.sampling_defaults

    async def start(self) -> None:
        await self._engine.start()
        self._format = self._make_format()

    async def aclose(self) -> None:
        await self._engine.aclose()

    async def check(self) -> None:
        await self._engine.check()

    async def count(self, turn: Turn) -> int:
        if turn.truncate:
            _, prompt = await self._fitting(turn)
        else:
            prompt = await self._rendered(turn)
        return len(prompt.token_ids)

    async def start_turn(self, turn: Turn, *, request_id: str) -> ModelTurn:
        turn, prompt = await self._fitting(turn)
        request = EngineRequest(
            request_id=request_id,
            model=turn.model,
            prompt=prompt,
            sampling=self._sampling(turn, prompt),
            detokenize=self._format.reads_text or bool(turn.sampling.stop),
            priority=turn.priority,
            cache_salt=turn.cache_salt,
            trace_headers=turn.trace_headers,
            turn=turn,
        )
        parser = self._format.make_parser(turn, prompt)
        steps = await self._engine.generate(request)
        return TokenTurn(self._format, parser, turn, prompt, steps, self._stopping(turn))

    def _stopping(self, turn: Turn) -> StopStrings | None:
        if self._format.reads_text or not turn.sampling.stop:
            return None
        included = turn.sampling.include_stop_str_in_output
        return StopStrings(turn.sampling.stop, include=included)

    def _sampling(self, turn: Turn, prompt: Prompt) -> Sampling:
        room = self._engine.context_length - len(prompt.token_ids)
        wanted = turn.sampling.max_tokens or self._engine.sampling_defaults.get("max_tokens")
        return replace(
            turn.sampling,
            max_tokens=room if wanted is None else min(wanted, room),
            stop_token_ids=(*turn.sampling.stop_token_ids, *self._format.stop_token_ids),
            skip_special_tokens=self._format.skip_special_tokens,
            constraint=turn.sampling.constraint or self._format.constraint(turn),
        )

    async def _rendered(self, turn: Turn) -> Prompt:
        # Prepared at once: only then are the tokens known that its images take.
        return await self._engine.prepare(await self._format.render(turn))

    async def _fitting(self, turn: Turn) -> tuple[Turn, Prompt]:
        prompt = await self._rendered(turn)
        if turn.truncate and not self._leaves(self._wanted_room(turn), prompt):
            return await self._truncated(turn, prompt)
        if not self._leaves(1, prompt):
            raise self._too_long(prompt)
        return turn, prompt

    async def _truncated(self, turn: Turn, prompt: Prompt) -> tuple[Turn, Prompt]:
        # Find the fewest oldest items to drop by bisection: one rendering a step, not one an item.
        groups, room = droppable_groups(turn.items), self._wanted_room(turn)
        fewest, most = 1, len(groups)
        best: tuple[Turn, Prompt] | None = None
        while fewest <= most:
            count = (fewest + most) // 2
            gone = frozenset().union(*groups[:count])
            items = [item for n, item in enumerate(turn.items) if n not in gone]
            shorter = replace(turn, items=items)
            rendered = await self._rendered(shorter)
            if self._leaves(room, rendered):
                best, most = (shorter, rendered), count - 1
            else:
                fewest = count + 1
        if best is not None:
            return best
        if not self._leaves(1, prompt):
            raise self._too_long(prompt)
        return turn, prompt  # short of room, but nothing more can go

    def _leaves(self, room: int, prompt: Prompt) -> bool:
        return len(prompt.token_ids) + room <= self._engine.context_length

    def _wanted_room(self, turn: Turn) -> int:
        """Return how many tokens truncation leaves for the answer: else it would end at once."""
        most = self._engine.context_length // TRUNCATED_ROOM
        return max(1, min(turn.sampling.max_tokens or most, most))

    def _too_long(self, prompt: Prompt) -> RequestError:
        return RequestError(
            "Your input exceeds the context window of this model: it has "
            f"{len(prompt.token_ids)} tokens of at most {self._engine.context_length - 1}. "
            "Please adjust your input and try again.",
            param="input",
            code=CONTEXT_EXCEEDED,
        )


class TokenTurn(ModelTurn):
    """A run in the engine, read as deltas. Closing it aborts the run."""

    def __init__(
        self,
        format: Format,
        parser: Parser,
        turn: Turn,
        prompt: Prompt,
        steps: Steps,
        stopping: StopStrings | None = None,
    ) -> None:
        self._format = format
        self._parser = parser
        self._turn = turn
        self._prompt = prompt
        self._steps = steps
        self._stopping = stopping
        taken = len(prompt.token_ids)
        self._known = taken if turn.known_tokens is None else turn.known_tokens
        self._output: list[int] = []
        self._cached = 0

    async def __aiter__(self) -> AsyncGenerator[list[Delta]]:
        feed = self._feed if self._stopping else self._parser.feed
        async with aclosing(self._steps) as steps:
            async for step in steps:
                self._output += step.token_ids
                self._cached = step.cached_tokens
                deltas = feed(step)
                if step.finish is None:
                    yield deltas
                    continue
                yield [*deltas, *self._end(step)]
                return
        raise EngineError("The engine ended the run without a reason.")

    async def aclose(self) -> None:
        await self._steps.aclose()

    def record_items(self, items: Sequence[Item]) -> None:
        # What a stop string has cut off was written all the same: its tokens are not the items'.
        if not self._turn.sampling.stop:
            self._format.remember(
                self._turn,
                self._prompt,
                token_ids=self._output,
                parser=self._parser,
                items=items,
            )

    def messages(self) -> tuple[list[Json], list[Json]]:
        return (
            self._format.messages(self._prompt.token_ids),
            self._format.messages(self._output),
        )

    def tokens_used(self) -> Sequence[TurnUsage]:
        return [
            TurnUsage(
                input=len(self._prompt.token_ids),
                cached=self._cached,
                output=len(self._output),
                reasoning=self._parser.reasoning_tokens,
                tool_output=max(0, len(self._prompt.token_ids) - self._known),
            )
        ]

    def _feed(self, step: Step) -> list[Delta]:
        assert self._stopping is not None
        return self._stopping.feed(self._parser.feed(step))

    def _end(self, step: Step) -> list[Delta]:
        if step.finish not in ("stop", "length"):
            raise EngineError(f"The engine ended the run: {step.finish}.")
        rest = self._parser.end()  # first: it may still count reasoning
        (usage,) = self.tokens_used()
        if self._stopping:
            rest = [*self._stopping.feed(rest), *self._stopping.end()]
        return [*rest, TurnEnd(step.finish, usage)]
