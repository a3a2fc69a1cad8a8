"""The scripted engine, which plays scripts in the markup of any format."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, NoReturn

from msgspec.structs import replace

from antiphon.adapters.engines.scripted.decisions import weigh
from antiphon.adapters.engines.scripted.default_answers import answer
from antiphon.adapters.engines.scripted.logprobs import logprob
from antiphon.adapters.engines.scripted.markup import Markup
from antiphon.adapters.engines.scripted.pace import Pace, pause
from antiphon.adapters.engines.scripted.script import (
    UNOFFERED,
    InvalidScript,
    Part,
    Turn,
    next_turn,
)
from antiphon.adapters.engines.scripted.segments import (
    Segment,
    cut,
    steps,
    to_segments,
    without_first,
)
from antiphon.application.ports import Engine, EngineRequest, Prompt, Step
from antiphon.application.support.fair_queue import FairQueue
from antiphon.application.support.threads import compute_in_thread
from antiphon.domain.content import Logprob
from antiphon.domain.errors import CONTEXT_EXCEEDED, EngineDead, EngineError, RequestError
from antiphon.domain.requests.checks import count_chars

_MAX_TOKEN_CHARS = 64
"""`repeat` stops where tokens of this length would reach the limit."""

MAX_TOKENS_AT_ONCE = 10_000
"""More tokens are read and written in a thread: that takes more than some 3 ms."""


BLOCK = 16
"""Tokens per block. Prefixes are cached in whole blocks, as in real engines."""


class ScriptedEngine(Engine):
    """An engine without GPU, weights, or network.

    Its output is scripted, not sampled. Of the sampling parameters, it uses `max_tokens`,
    `logprobs`, `ignore_eos`, and `step_tokens`. `tokens_per_s` is the pace of each run; None is as
    fast as possible, with one iteration of the event loop before each step, as with a real engine.
    `slots` is the number of runs in progress; others wait for their first token, by `priority`.
    `begun`, `running`, and `aborted` count runs that have started, runs in progress, and runs whose
    reader left before the end.
    """

    def __init__(
        self,
        markup: Markup,
        models: Sequence[str] = ("scripted-chat", "scripted", "gpt-4.1-scripted"),
        *,
        context_length: int = 131_072,
        tokens_per_s: float | None = None,
        step_tokens: int = 1,
        slots: int | None = None,
    ) -> None:
        self._markup = markup
        self._models = tuple(models)
        self._context_length = context_length
        self._step_tokens = step_tokens
        self._pace = Pace(tokens_per_s)
        self._prefixes = PrefixCache()
        self._slots = None if slots is None else FairQueue(slots, per_tenant=slots)
        self._death: str | None = None
        self.begun = 0
        self.running = 0
        self.aborted = 0

    async def start(self) -> None:
        self._death = None

    async def aclose(self) -> None:
        self._die("the engine was closed")

    @property
    def models(self) -> Sequence[str]:
        return self._models

    @property
    def context_length(self) -> int:
        return self._context_length

    @property
    def reads_images(self) -> bool:
        return True

    @property
    def schedules_by_priority(self) -> bool:
        return True

    @property
    def weighs_at_once(self) -> int:
        return 8

    @property
    def sampling_defaults(self) -> Mapping[str, Any]:
        return {}

    @property
    def is_dead(self) -> bool:
        return self._death is not None

    async def check(self) -> None:
        if self._death is not None:
            raise EngineDead(self._death)

    async def prepare(self, prompt: Prompt) -> Prompt:
        return prompt

    @property
    def resumes(self) -> bool:
        return True

    @property
    def scores_prompts(self) -> bool:
        return True

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Step]:
        await self.check()
        prompt, sampling = request.prompt, request.sampling
        room = self._context_length - len(prompt.token_ids)
        if room <= 0:
            raise RequestError(
                f"The input has {len(prompt.token_ids)} tokens, which leaves no room for output:"
                f" this model's context length is {self._context_length} tokens.",
                param="input",
                code=CONTEXT_EXCEEDED,
            )
        if sampling.answer_tokens:
            return self._wait_and_play(
                request.priority,
                [weigh(request, self._markup)],
                finish="length",
                cached_tokens=self._admit(request),
                alternatives=sampling.logprobs,
            )
        limit = room if sampling.max_tokens is None else min(room, sampling.max_tokens)
        # A turn that ignores its end is as long as its limit.
        written_tokens = limit if sampling.ignore_eos else 0
        # A long constraint takes as long to read as a prompt: 60 ms for 20,000 characters.
        constraint = sampling.constraint
        constraint_chars = 0 if constraint is None else count_chars(constraint.value)
        if len(prompt.token_ids) + written_tokens + constraint_chars > MAX_TOKENS_AT_ONCE:
            segments, finish = await compute_in_thread(self._write_segments, request, limit)
        else:
            segments, finish = self._write_segments(request, limit)
        segments = without_first(segments, len(request.written))
        return self._wait_and_play(
            request.priority,
            segments or [Segment(tokens=[])],
            finish=finish,
            cached_tokens=self._admit(request),
            alternatives=sampling.logprobs,
            prompt_logprobs=None
            if sampling.prompt_logprobs is None
            else await compute_in_thread(self._score, prompt.token_ids, sampling.prompt_logprobs),
        )

    def _admit(self, request: EngineRequest) -> int:
        """Return how many tokens of the prompt are cached, and cache it."""
        prompt = request.prompt
        return self._prefixes.admit(prompt.token_ids, request.cache_salt, *prompt.image_urls)

    def _score(self, token_ids: Sequence[int], alternatives: int) -> tuple[Logprob, ...]:
        return tuple(logprob(each, self._markup.text([each]), alternatives) for each in token_ids)

    def _write_segments(self, request: EngineRequest, limit: int) -> tuple[list[Segment], str]:
        """Return the segments within `limit` tokens, and the finish reason."""
        sampling, turn = request.sampling, request.turn
        parts, finish = _cut_at_finish(self._choose_turn(request), limit)
        if turn.raw_prompt is not None:
            parts = [_without_markup(part) for part in parts]
        *written, end = self._markup.write(parts, tools=turn.tools, thinking=turn.effort != "none")
        if finish != "stop":
            end = []
        elif sampling.ignore_eos:
            end = _repeat_last_token(written, limit)
        step_tokens = max(self._step_tokens, sampling.step_tokens)
        segments, is_cut = cut(to_segments(parts, [*written, end], step_tokens=step_tokens), limit)
        finish = "length" if is_cut else finish
        return segments, finish

    def _choose_turn(self, request: EngineRequest) -> Turn:
        turn, raw = request.turn, request.turn.raw_prompt
        if raw is None:
            messages = self._markup.read(request.prompt.token_ids)
        else:
            text = self._markup.text(request.prompt.token_ids) if raw.text is None else raw.text
            messages = [("user", text)]
        try:
            scripted_turn = next_turn(
                messages,
                tools_offered=bool(turn.tools),
                offers=lambda part: self._markup.offers(part, tools=turn.tools),
            )
        except InvalidScript as error:
            raise RequestError(
                f"The script cannot be played: {error}.", param="input", code="invalid_value"
            ) from None
        if scripted_turn is not None and scripted_turn is not UNOFFERED:
            return scripted_turn
        return [
            answer(
                messages,
                tools=turn.tools,
                choice=turn.choice,
                text_format=turn.text.format,
                constraint=request.sampling.constraint,
                or_else=UNOFFERED[0] if scripted_turn is UNOFFERED else None,
            )
        ]

    def _wait_and_play(
        self, priority: int, segments: Sequence[Segment], **options: Any
    ) -> AsyncGenerator[Step]:
        if self._slots is None:
            return self._play(segments, **options)
        return self._play_in_slot(self._slots, priority, segments, **options)

    async def _play_in_slot(
        self, slots: FairQueue, priority: int, segments: Sequence[Segment], **options: Any
    ) -> AsyncGenerator[Step]:
        async with (
            slots.slot("", priority=priority),
            aclosing(self._play(segments, **options)) as steps,
        ):
            async for step in steps:
                yield step

    async def _play(
        self,
        segments: Sequence[Segment],
        *,
        finish: str,
        cached_tokens: int,
        alternatives: int | None,
        prompt_logprobs: tuple[Logprob, ...] | None = None,
    ) -> AsyncGenerator[Step]:
        self.begun += 1
        self.running += 1
        is_over = False
        try:
            for segment in segments:
                if segment.delay_s:
                    await self._pace.sleep(segment.delay_s)
                if segment.fault is not None:
                    self._raise_fault(segment.fault)
                is_unpaced = self._pace.is_unlimited and not segment.tick_s
                for step in steps(
                    segment,
                    finish=finish if segment is segments[-1] else None,
                    cached_tokens=cached_tokens,
                    alternatives=alternatives,
                ):
                    if is_unpaced:
                        await pause()
                    else:
                        await self._pace.wait_for_tokens(len(step.token_ids), segment.tick_s)
                    if self._death is not None:
                        await self.check()
                    is_over = step.finish is not None
                    if prompt_logprobs is not None:
                        step = replace(step, prompt_logprobs=prompt_logprobs)
                        prompt_logprobs = None
                    yield step
        except EngineError:
            is_over = True
            raise
        finally:
            self.running -= 1
            # If it is not over, the reader left: it was closed or cancelled.
            self.aborted += not is_over

    def _raise_fault(self, fault: Part) -> NoReturn:
        if "fail" in fault:
            raise EngineError(f"the engine failed, as its script said: {fault['fail']}")
        self._die("the engine died, as its script said")
        raise EngineDead(self._death)

    def _die(self, reason: str) -> None:
        self._death = reason
        self._pace.end(reason)


class PrefixCache:
    """A prefix cache without values: it knows which prefix a prompt shares with earlier ones.

    It has the blocks of earlier prompts, as an LRU cache of `limit` blocks of 180 bytes each."""

    def __init__(self, limit: int = 16384) -> None:
        self._limit = limit
        # The first entries of a plain dict take long to find after many were deleted there.
        self._known: OrderedDict[int, None] = OrderedDict()

    def admit(self, token_ids: Sequence[int], *salt: str | None) -> int:
        """Return how many tokens of the prompt are cached for this salt, and cache the prompt.

        At least one token always counts as computed.

        >>> prefixes = PrefixCache()
        >>> prefixes.admit(range(40)), prefixes.admit([*range(20), 0, 0]), prefixes.admit(range(40))
        (0, 16, 32)
        """
        known, tokens = self._known, tuple(token_ids)
        cached, block = 0, hash(salt)
        for end in range(BLOCK, len(tokens) + 1, BLOCK):
            # A block's hash covers all blocks before it.
            block = hash((block, tokens[end - BLOCK : end]))
            if block in known:
                known.move_to_end(block)
                if cached == end - BLOCK and end < len(tokens):
                    cached = end
            known[block] = None
        while len(known) > self._limit:
            known.popitem(last=False)
        return cached


def _without_markup(part: Part) -> Part:
    """Return the part as a model writes it that goes on from a raw prompt."""
    if "say" not in part:
        return part
    said = part["say"] * part.get("repeat", 1)
    rest = {name: value for name, value in part.items() if name not in ("say", "repeat", "phase")}
    return {"raw": said, **rest}


def _cut_at_finish(turn: Turn, limit: int) -> tuple[Turn, str]:
    """Return the parts up to the first with a `finish`, and that finish reason."""
    parts: list[Part] = []
    for part in turn:
        if "repeat" in part and "say" in part:
            max_repeats = limit * _MAX_TOKEN_CHARS // max(1, len(part["say"])) + 1
            part = {**part, "repeat": min(part["repeat"], max_repeats)}
        parts.append(part)
        if "finish" in part:
            return parts, part["finish"]
    return parts, "stop"


def _repeat_last_token(
    written: Sequence[list[tuple[int, str]]], limit: int
) -> list[tuple[int, str]]:
    """Return the last token repeated up to `limit`, for a turn that must ignore its end."""
    tokens = [token for part in written for token in part]
    return tokens[-1:] * max(0, limit + 1 - len(tokens))
