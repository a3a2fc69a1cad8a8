"""A model that reads and writes tokens: a Format together with an Engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from types import AsyncGeneratorType
from typing import Any

from msgspec.structs import replace

from antiphon.application.model import prompt_scores
from antiphon.application.model.counted_prompts import CountedPrompts
from antiphon.application.model.output_bounds import (
    CHARS_AT_ONCE,
    MAX_COUNTED_CONTEXTS,
    PIECES_AT_ONCE,
    OutputBound,
    SelfBoundedTurn,
)
from antiphon.application.model.raw_prompts import RawFormat, echo
from antiphon.application.model.resumed_steps import ResumedSteps, token_ids_of
from antiphon.application.model.stalls import StallWatch, TokenDeadlines
from antiphon.application.model.stop_strings import STEP_TOKENS, StopStrings, stop_strings_of
from antiphon.application.model.token_answers import (
    LABELS,
    PROBE,
    AnswerReader,
    distinct,
)
from antiphon.application.model.truncation import longest_that_fits, reserved_tokens
from antiphon.application.ports import (
    AdmitPrompt,
    Engine,
    EngineRequest,
    Format,
    Json,
    Model,
    ModelTurn,
    Parser,
    PooledSteps,
    Prompt,
    RenderedTurn,
    Sampling,
    Step,
    StepLog,
    Steps,
    Turn,
    TurnFacts,
    TurnTranscript,
    Weights,
    WrittenPart,
)
from antiphon.application.support.loop_portions import LoopPortions
from antiphon.domain.bounds import MAX_COUNT
from antiphon.domain.deltas import Delta, EndReason, TurnEnd
from antiphon.domain.errors import CONTEXT_EXCEEDED, EngineError, RequestError, input_too_long
from antiphon.domain.items import Item
from antiphon.domain.requests.decisions import cannot_weigh, too_many_answers
from antiphon.domain.responses.usage import TurnUsage

_END_REASONS: Mapping[str | None, EndReason] = {"stop": "stop", "length": "length"}
"""The engine's reason to end -> the turn's; with any other, the engine has failed."""

DEADLINES = TokenDeadlines()

CUT_OFF: Mapping[str, Any] = {"text": "", "token_ids": (), "logprobs": None, "finish": "length"}
"""The last step of a turn that had reached its limit of tokens when its server was lost."""


class TokenModel(Model):
    """Renders a turn, runs it in the engine and parses the output.

    `make_format` is called after the engine has started: an engine that fetches its model itself
    has the tokenizer and the template only then. A turn whose engine misses one of the `deadlines`
    is aborted with an EngineError. `extend_parser` may add to the format's parser of a turn.
    """

    _format: Format
    _raw_format: RawFormat

    def __init__(
        self,
        make_format: Callable[[], Format],
        engine: Engine,
        *,
        deadlines: TokenDeadlines = DEADLINES,
        extend_parser: Callable[[Parser, Turn], Parser] | None = None,
    ) -> None:
        self._make_format = make_format
        self._engine = engine
        self._deadlines = deadlines
        self._extend_parser = extend_parser
        self._labels: Sequence[str] | None = None
        self._counted: CountedPrompts | None = None
        """Made with the first prompt that is counted: most servers count none."""
        self._rendering = LoopPortions()

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
    def only_answers_end_turns(self) -> bool:
        return self._format.only_answers_end_turns

    @property
    def context_length(self) -> int:
        return self._engine.context_length

    @property
    def sampling_defaults(self) -> Mapping[str, Any]:
        return self._engine.sampling_defaults

    @property
    def schedules_by_priority(self) -> bool:
        return self._engine.schedules_by_priority

    @property
    def is_dead(self) -> bool:
        return self._engine.is_dead

    async def start(self) -> None:
        await self._engine.start()
        self._format, self._labels = self._make_format(), None
        self._raw_format = RawFormat(self._format)

    async def aclose(self) -> None:
        await self._engine.aclose()

    def ignored_fields(self, turn: Turn) -> Sequence[str]:  # noqa: ARG002 - it is of all turns
        """Return none: what a format and an engine cannot do, they refuse."""
        return ()

    async def check(self) -> None:
        await self._engine.check()

    async def count(self, turn: Turn) -> int:
        if turn.truncate:
            _, prompt = await self._render_to_fit(turn)
        else:
            limit = self._max_prompt_tokens * MAX_COUNTED_CONTEXTS
            prompt = await self._render(turn, max_tokens=limit)
            if self._counted is None:
                self._counted = CountedPrompts()
            self._counted.keep(turn, prompt)
        return len(prompt.token_ids)

    async def render(self, turn: Turn) -> RenderedTurn:
        if turn.truncate:
            turn, prompt = await self._render_to_fit(turn)
        else:
            prompt = await self._render(turn)
        return RenderedTurn(turn=turn, token_ids=prompt.token_ids)

    async def start_turn(
        self, turn: Turn, *, request_id: str, admit: AdmitPrompt | None = None
    ) -> ModelTurn:
        if turn.truncate:
            turn, prompt = await self._render_to_fit(turn)
        else:
            prompt = await self._render_whole(turn)
        if admit is not None:
            await admit(len(prompt.token_ids))
        written = WrittenPart()
        if turn.progress is not None:
            written = self._begin(turn, len(prompt.token_ids))
        turn_format = self._format_of(turn)
        parser = turn_format.make_parser(turn, prompt)
        read = parser
        if self._extend_parser is not None and turn.raw_prompt is None:
            read = self._extend_parser(parser, turn)
        sampling = self._sampling_of(turn, prompt, turn_format)
        steps = await self._start_steps(turn, prompt, sampling, written, request_id)
        run = TokenTurn(
            turn_format,
            read,
            turn,
            prompt,
            steps,
            stop_strings_of(turn.sampling),
            deadlines=self._deadlines,
            max_tokens=sampling.max_tokens,
        )
        return echo(run, turn, prompt, turn_format, parser)

    def _format_of(self, turn: Turn) -> Format:
        return self._format if turn.raw_prompt is None else self._raw_format

    @property
    def weighs_at_once(self) -> int:
        return self._engine.weighs_at_once

    async def labels(self, count: int) -> Sequence[str]:
        if not self._engine.weighs_at_once:
            raise cannot_weigh(self.names[0])
        if self._labels is None:
            prompt = await self._render(replace(PROBE, model=self.names[0]))
            tokens = self._format.first_tokens(prompt, LABELS)
            self._labels = distinct(LABELS, tokens)
        if len(self._labels) < count:
            raise too_many_answers(count, len(self._labels))
        return self._labels[:count]

    async def weigh(self, turn: Turn, labels: Sequence[str], *, request_id: str) -> Weights:
        prompt = await self._render_whole(turn)
        tokens = self._format.first_tokens(prompt, labels)
        answer_tokens = tuple(token for token in tokens if token is not None)
        if (known := len(set(answer_tokens))) < len(labels):
            raise too_many_answers(len(labels), known)
        sampling = replace(
            self._sampling_of(turn, prompt, self._format),
            max_tokens=1,
            logprobs=len(labels),
            answer_tokens=answer_tokens,
        )
        answer = AnswerReader()
        run = TokenTurn(
            self._format,
            answer,
            turn,
            prompt,
            await self._start_steps(turn, prompt, sampling, WrittenPart(), request_id),
            deadlines=self._deadlines,
            max_tokens=1,
        )
        async with aclosing(aiter(run)) as batches:
            async for _ in batches:
                pass
        if len(answer.logs) != len(labels):
            raise cannot_weigh(self.names[0])
        (usage,) = run.tokens_used()
        return Weights(logs=answer.logs, usage=usage)

    def _begin(self, turn: Turn, input_tokens: int) -> WrittenPart:
        """Return what another server has written of the turn. Raises: CannotResume."""
        assert turn.progress is not None
        return turn.progress.begin(
            f"{self.format_name} {self.names[0]}",
            input_tokens,
            resumes=self._engine.resumes,
            trims=self._format_of(turn).reads_text,
        )

    async def _start_steps(
        self,
        turn: Turn,
        prompt: Prompt,
        sampling: Sampling,
        written: WrittenPart,
        request_id: str,
    ) -> Steps:
        """Admit the run in the engine, unless the turn was written whole already."""
        known = written.steps
        tokens = token_ids_of(known) if known else ()
        if known and known[-1].finish is not None:
            return ResumedSteps(written)
        if tokens and sampling.max_tokens is not None and len(tokens) >= sampling.max_tokens:
            return ResumedSteps(replace(written, steps=[*known, replace(known[-1], **CUT_OFF)]))
        request = EngineRequest(
            request_id=request_id,
            model=turn.model,
            prompt=prompt,
            sampling=sampling,
            detokenize=self._format_of(turn).reads_text,
            priority=turn.priority,
            cache_salt=turn.cache_salt,
            trace_headers=turn.trace_headers,
            turn=turn,
            written=tokens,
        )
        if sampling.prompt_logprobs is not None:
            prompt_scores.check_count(len(prompt.token_ids), sampling.prompt_logprobs)
        if sampling.prompt_logprobs is None or self._engine.scores_prompts:
            steps = await self._engine.generate(request)
        else:
            first_token = self._format.text(prompt.token_ids[:1])
            steps = await prompt_scores.generate(self._engine, request, first_token=first_token)
        return ResumedSteps(written, steps) if known else steps

    def _sampling_of(self, turn: Turn, prompt: Prompt, turn_format: Format) -> Sampling:
        free_tokens = self._engine.context_length - len(prompt.token_ids)
        max_tokens = turn.sampling.max_tokens or self._engine.sampling_defaults.get("max_tokens")
        step_tokens = turn.sampling.step_tokens
        if turn.sampling.stop:
            step_tokens = min(step_tokens, STEP_TOKENS)
        return replace(
            turn.sampling,
            max_tokens=free_tokens if max_tokens is None else min(max_tokens, free_tokens),
            stop=(),
            step_tokens=step_tokens,
            stop_token_ids=(*turn.sampling.stop_token_ids, *turn_format.stop_token_ids),
            skip_special_tokens=turn_format.skip_special_tokens,
            constraint=turn.sampling.constraint or turn_format.constraint(turn, prompt),
        )

    async def _render(self, turn: Turn, *, max_tokens: int | None = None) -> Prompt:
        """Return the prompt, or raise input_too_long if it is much longer than may fit."""
        limit = self._max_prompt_tokens if max_tokens is None else max_tokens
        rendered = await self._rendering.run(
            turn.tenant,
            partial(self._format_of(turn).render, replace(turn, max_prompt_tokens=limit)),
        )
        # Prepared right away: the tokens of its images are known only then.
        return await self._engine.prepare(rendered)

    async def _render_if_short(self, turn: Turn) -> Prompt | None:
        """Return the prompt, or None if it is longer than the context."""
        try:
            return await self._render(turn)
        except RequestError as error:
            if error.code != CONTEXT_EXCEEDED:
                raise
            return None

    async def _render_to_fit(self, turn: Turn) -> tuple[Turn, Prompt]:
        reserved = reserved_tokens(turn, self._engine.context_length)
        shorter_turn, prompt = await longest_that_fits(
            turn,
            self._render_if_short,
            limit=self._engine.context_length - reserved,
            tokens_of=lambda prompt: None if prompt is None else len(prompt.token_ids),
        )
        # It may leave less than reserved, but no more items can be dropped.
        if prompt is None or len(prompt.token_ids) > self._max_prompt_tokens:
            return turn, await self._render_whole(turn)
        return shorter_turn, prompt

    async def _render_whole(self, turn: Turn) -> Prompt:
        counted = None if self._counted is None else self._counted.take(turn)
        prompt = counted or await self._render(turn)
        if len(prompt.token_ids) > self._max_prompt_tokens:
            raise input_too_long(len(prompt.token_ids), self._max_prompt_tokens)
        return prompt

    @property
    def _max_prompt_tokens(self) -> int:
        return self._engine.context_length - 1


class TokenTurn(SelfBoundedTurn):
    """A run of the engine, as deltas. Closing it aborts the run."""

    def __init__(
        self,
        format: Format,
        parser: Parser,
        turn: Turn,
        prompt: Prompt,
        steps: Steps,
        stop_strings: StopStrings | None = None,
        *,
        deadlines: TokenDeadlines = DEADLINES,
        max_tokens: int | None = None,
    ) -> None:
        self._format = format
        self._parser = parser
        self._turn = turn
        self._prompt = prompt
        self._steps = steps
        self._stop_strings = stop_strings
        self._deadlines = deadlines
        self._bound = OutputBound(max_tokens=MAX_COUNT if max_tokens is None else max_tokens)
        self._input_tokens = (
            steps.input_tokens if isinstance(steps, ResumedSteps) else len(prompt.token_ids)
        )
        self._known_tokens = self._input_tokens if turn.known_tokens is None else turn.known_tokens
        self._output: list[int] = []
        self._cached_tokens = 0
        self._came_at_once = False
        self._generation_s: float | None = None
        self._step_log = StepLog(turn.trace_steps) if turn.trace_steps else None

    def __aiter__(self) -> AsyncGenerator[list[Delta]]:
        deltas = self._read_steps()
        assert isinstance(deltas, AsyncGeneratorType)
        self._watch = StallWatch(deltas, self._deadlines, self._output.__len__)
        return deltas

    async def _read_steps(self) -> AsyncGenerator[list[Delta]]:
        stop, log = self._stop_strings, self._step_log
        feed = self._feed if stop else self._parser.feed
        reads_text, progress = self._format.reads_text, self._turn.progress
        max_tokens, max_chars, chars = self._bound.max_tokens, self._bound.max_chars, 0
        next_tokens, next_chars = min(max_tokens, PIECES_AT_ONCE), min(max_chars, CHARS_AT_ONCE)
        async with aclosing(self._steps) as steps:
            with self.sharing(), self._watch:
                async for step in steps:
                    self._output += step.token_ids
                    chars += len(step.text)
                    if len(self._output) > next_tokens or chars > next_chars:
                        if len(self._output) > max_tokens or chars > max_chars:
                            step = self._cut(step, chars - max_chars)
                        elif self.share is not None:
                            await self.share.wait(len(self._output), chars)
                        next_tokens = min(max_tokens, len(self._output) + PIECES_AT_ONCE)
                        next_chars = min(max_chars, chars + CHARS_AT_ONCE)
                    self._cached_tokens = step.cached_tokens
                    if progress is not None:
                        progress.add(step)
                    deltas = feed(step)
                    if log is not None:
                        log.add(len(step.token_ids), step.text if reads_text else "")
                    if step.finish is None and (stop is None or not stop.has_stopped):
                        yield deltas
                        continue
                    self._came_at_once = 1 < len(self._output) == len(step.token_ids)
                    self._generation_s = step.generation_s
                    yield [*deltas, *self._end(step)]
                    return
        raise EngineError("The engine ended the run without a reason.")

    def _cut(self, step: Step, excess_chars: int) -> Step:
        """Return a step as the last one: without the tokens and the text above the bound."""
        if (excess := len(self._output) - self._bound.max_tokens) > 0:
            del self._output[-excess:]
            kept = step.token_ids[:-excess]
            logprobs = None if step.logprobs is None else step.logprobs[: len(kept)]
            # Nobody knows which part of the text is of the tokens that stay.
            text = step.text if kept else ""
            step = replace(step, token_ids=kept, logprobs=logprobs, text=text)
        if excess_chars > 0:
            step = replace(step, text=step.text[:-excess_chars])
        return replace(step, finish="length")

    async def aclose(self) -> None:
        await self._steps.aclose()

    def record_items(self, items: Sequence[Item]) -> None:
        # What a stop string has cut off was written all the same: its tokens are not the items'.
        if not self._has_stopped:
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
                input=self._input_tokens,
                cached=self._cached_tokens,
                output=len(self._output),
                reasoning=self._parser.reasoning_tokens,
                tool_output=max(0, self._input_tokens - self._known_tokens),
            )
        ]

    @property
    def counts_tokens(self) -> bool:
        return True

    def facts(self) -> TurnFacts:
        facts = TurnFacts(
            model=self._turn.model,
            is_repaired=not self._parser.is_well_formed or bool(self._parser.repairs),
            repairs=self._parser.repairs,
            unmarked_calls=self._parser.unmarked_calls,
            fittings=self._prompt.fittings,
            came_at_once=self._came_at_once,
            generation_s=self._generation_s,
        )
        steps: Steps | None = self._steps
        if isinstance(steps, ResumedSteps):
            facts = replace(facts, resumed_tokens=steps.written_tokens)
            steps = steps.live
        if isinstance(steps, PooledSteps):
            return replace(facts, engine=steps.server, attempts=steps.attempts)
        return facts

    def transcript(self) -> TurnTranscript | None:
        if self._step_log is None:
            return None
        return TurnTranscript(
            format=self._format.name,
            turn=self._turn,
            prompt_token_ids=self._prompt.token_ids,
            output_token_ids=self._output,
            text_of=self._format.text,
            steps=self._step_log,
        )

    @property
    def _has_stopped(self) -> bool:
        return self._stop_strings is not None and self._stop_strings.has_stopped

    def _feed(self, step: Step) -> list[Delta]:
        assert self._stop_strings is not None
        return self._stop_strings.feed(self._parser.feed(step))

    def _end(self, step: Step) -> list[Delta]:
        deltas = self._parser.end()  # before the usage: it may still count reasoning
        (usage,) = self.tokens_used()
        if self._stop_strings:
            deltas = [*self._stop_strings.feed(deltas), *self._stop_strings.end()]
        reason = "stop" if self._has_stopped else _END_REASONS.get(step.finish)
        if reason is None:
            raise EngineError(f"The engine ended the run: {step.finish}.")
        stopped_by = self._stop_strings.stopped_by if self._stop_strings else None
        return [*deltas, TurnEnd(reason, usage, stop_string=stopped_by)]
