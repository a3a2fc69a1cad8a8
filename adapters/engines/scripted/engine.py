"""The Engine that plays scripts, in the markup of whatever format it is given."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, NoReturn

from antiphon.adapters.engines.scripted.default_answers import answer
from antiphon.adapters.engines.scripted.markup import Markup
from antiphon.adapters.engines.scripted.pace import Pace, pause
from antiphon.adapters.engines.scripted.prefix_cache import PrefixCache
from antiphon.adapters.engines.scripted.script import InvalidScript, Part, Turn, next_turn
from antiphon.adapters.engines.scripted.segments import (
    Segment,
    cut,
    cut_at_stop,
    steps,
    to_segments,
)
from antiphon.application.ports import Engine, EngineRequest, Prompt, Step
from antiphon.domain.errors import CONTEXT_EXCEEDED, EngineDead, EngineError, RequestError

_LONGEST_TOKEN = 64
"""Characters; `repeat` need not go further than tokens of this length would reach."""


class ScriptedEngine(Engine):
    """Needs no GPU, no weights and no network.

    What it plays is written, not sampled: of the sampling it honours `max_tokens`, `stop`,
    `logprobs`, `ignore_eos` and `step_tokens`. `tokens_per_s` is the pace of each run; None is as
    fast as possible, with a turn of the loop before each step, as if it came from elsewhere.
    `running` and `aborted` count runs being read and runs that were left before their end.
    """

    def __init__(
        self,
        markup: Markup,
        models: Sequence[str] = ("scripted-chat", "scripted", "gpt-4.1-scripted"),
        *,
        context_length: int = 131_072,
        tokens_per_s: float | None = None,
        step_tokens: int = 1,
    ) -> None:
        self._markup = markup
        self._models = tuple(models)
        self._context_length = context_length
        self._step_tokens = step_tokens
        self._pace = Pace(tokens_per_s)
        self._prefixes = PrefixCache()
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
    def sampling_defaults(self) -> Mapping[str, Any]:
        return {}

    async def check(self) -> None:
        if self._death is not None:
            raise EngineDead(self._death)

    async def prepare(self, prompt: Prompt) -> Prompt:
        return prompt

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
        limit = room if sampling.max_tokens is None else min(room, sampling.max_tokens)
        acts, finish = self._acts(request, limit)
        if sampling.stop:
            acts, met = cut_at_stop(
                acts, sampling.stop, include=sampling.include_stop_str_in_output
            )
            finish = "stop" if met else finish
        return self._play(
            acts or [Segment(tokens=[])],
            finish=finish,
            cached_tokens=self._prefixes.admit(
                prompt.token_ids, request.cache_salt, *prompt.image_urls
            ),
            alternatives=sampling.logprobs,
        )

    def _acts(self, request: EngineRequest, limit: int) -> tuple[list[Segment], str]:
        """Return what to play within `limit` tokens, and why it ends."""
        sampling, turn = request.sampling, request.turn
        parts, finish = _as_scripted(self._parts(request), limit)
        *written, end = self._markup.write(parts, tools=turn.tools, thinking=turn.effort != "none")
        if finish != "stop":
            end = []
        elif sampling.ignore_eos:
            end = _without_end(written, limit)
        step_tokens = max(self._step_tokens, sampling.step_tokens)
        acts, is_cut = cut(to_segments(parts, [*written, end], step_tokens=step_tokens), limit)
        return acts, "length" if is_cut else finish

    def _parts(self, request: EngineRequest) -> Turn:
        turn, messages = request.turn, self._markup.read(request.prompt.token_ids)
        try:
            scripted = next_turn(
                messages,
                tools_offered=bool(turn.tools),
                offers=lambda part: self._markup.offers(part, tools=turn.tools),
            )
        except InvalidScript as error:
            raise RequestError(
                f"The script cannot be played: {error}.", param="input", code="invalid_value"
            ) from None
        if scripted is not None:
            return scripted
        return [
            answer(
                messages,
                tools=turn.tools,
                choice=turn.choice,
                text_format=turn.text.format,
                constraint=request.sampling.constraint,
            )
        ]

    async def _play(
        self,
        acts: Sequence[Segment],
        *,
        finish: str,
        cached_tokens: int,
        alternatives: int | None,
    ) -> AsyncGenerator[Step]:
        self.begun += 1
        self.running += 1
        is_over = False
        try:
            for act in acts:
                if act.delay_s:
                    await self._pace.sleep(act.delay_s)
                if act.fault is not None:
                    self._meet(act.fault)
                is_unpaced = self._pace.is_unlimited and not act.tick_s
                for step in steps(
                    act,
                    finish=finish if act is acts[-1] else None,
                    cached_tokens=cached_tokens,
                    alternatives=alternatives,
                ):
                    if is_unpaced:
                        await pause()
                    else:
                        await self._pace.tokens(len(step.token_ids), act.tick_s)
                    if self._death is not None:
                        await self.check()
                    is_over = step.finish is not None
                    yield step
        except EngineError:
            is_over = True
            raise
        finally:
            self.running -= 1
            # Or the reader left, by aclose or by being cancelled.
            self.aborted += not is_over

    def _meet(self, fault: Part) -> NoReturn:
        if "fail" in fault:
            raise EngineError(f"the engine failed, as its script said: {fault['fail']}")
        self._die("the engine died, as its script said")
        raise EngineDead(self._death)

    def _die(self, reason: str) -> None:
        self._death = reason
        self._pace.end(reason)


def _as_scripted(turn: Turn, limit: int) -> tuple[Turn, str]:
    """Return the parts up to one that says how the turn finishes, and that finish."""
    parts: list[Part] = []
    for part in turn:
        if "repeat" in part and "say" in part:
            most = limit * _LONGEST_TOKEN // max(1, len(part["say"])) + 1
            part = {**part, "repeat": min(part["repeat"], most)}
        parts.append(part)
        if "finish" in part:
            return parts, part["finish"]
    return parts, "stop"


def _without_end(written: Sequence[list[tuple[int, str]]], limit: int) -> list[tuple[int, str]]:
    """Return the last token as often as `limit` wants, for a model that must not end its turn."""
    tokens = [token for part in written for token in part]
    return tokens[-1:] * max(0, limit + 1 - len(tokens))
