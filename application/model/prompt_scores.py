"""How likely the tokens of a prompt are, from an engine that only says it of what it writes.

The engine is made to write each token of the prompt after those before it: its cache has them, so
each step computes one token. Log probabilities are those before the bias that forces the token, as
vLLM and llama.cpp report them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec.structs import replace

from antiphon.application.ports import Engine, EngineRequest, Sampling, Step, Steps
from antiphon.domain.bounds import MAX_LOGPROBS
from antiphon.domain.content import Logprob
from antiphon.domain.errors import EngineError, RequestError, input_too_long

FORCED = 100.0
"""The bias of a token that must come: vLLM allows no more."""

MAX_STEPS = 4096
"""Of one prompt."""


class ScoredSteps(Steps):
    """The steps of a run, of which the first has the log probabilities of its prompt.

    `last` is that of the last token, None for a prompt of one. The others are asked for as the
    steps are read: who leaves ends that, too.
    """

    def __init__(
        self, engine: Engine, request: EngineRequest, first: Logprob, last: Logprob | None
    ) -> None:
        self._engine = engine
        self._request = request
        self._scores = [first]
        self._last = last
        self._run: Steps | None = None

    async def __aiter__(self) -> AsyncGenerator[Step]:
        try:
            for place in range(1, len(self._request.prompt.token_ids) - 1):
                self._scores.append(await _score(self._engine, self._request, place))
            run = self._run = await self._engine.generate(_without_scores(self._request))
        except RequestError as error:  # the engine has checked all of it before
            raise EngineError(f"The prompt was not scored: {error}") from error
        scores = (*self._scores, *filter(None, (self._last,)))
        is_first = True
        async with aclosing(run):
            async for step in run:
                yield replace(step, prompt_logprobs=scores) if is_first else step
                is_first = False

    async def aclose(self) -> None:
        if self._run is not None:
            await self._run.aclose()


def check_count(tokens: int, alternatives: int) -> None:
    """Raises: RequestError if a prompt has more log probabilities than a response may have."""
    if tokens * (1 + alternatives) > MAX_LOGPROBS:
        raise RequestError(
            f"A prompt of {tokens} tokens with {alternatives} alternatives each has more than "
            f"{MAX_LOGPROBS} log probabilities; ask for fewer, or send a shorter prompt.",
            param="top_logprobs",
            code="invalid_value",
        )


async def generate(engine: Engine, request: EngineRequest, *, first_token: str) -> Steps:
    """Run a request whose `prompt_logprobs` the engine does not know by itself.

    `first_token` is the text of the first token, which nothing is asked about. The last one comes
    first: the engine then checks all tokens and keeps its work on them.

    Raises: RequestError, also for a prompt that is too long for this; ServerOverloaded; EngineDead;
    EngineError.
    """
    tokens = request.prompt.token_ids
    if len(tokens) > MAX_STEPS:
        raise input_too_long(len(tokens), MAX_STEPS)
    last = await _score(engine, request, len(tokens) - 1) if len(tokens) > 1 else None
    first = Logprob(token=first_token, logprob=0.0, bytes=tuple(first_token.encode()))
    return ScoredSteps(engine, request, first, last)


def _without_scores(request: EngineRequest) -> EngineRequest:
    return replace(request, sampling=replace(request.sampling, prompt_logprobs=None))


async def _score(engine: Engine, request: EngineRequest, place: int) -> Logprob:
    """Return how likely the token at this place is after those before it."""
    tokens = request.prompt.token_ids
    sampling = Sampling(
        temperature=0.0,
        max_tokens=1,
        ignore_eos=True,
        logprobs=request.sampling.prompt_logprobs,
        logit_bias={str(tokens[place]): FORCED},
    )
    steps = await engine.generate(
        replace(
            request,
            request_id=f"{request.request_id}_p{place}",
            prompt=replace(request.prompt, token_ids=tokens[:place]),
            sampling=sampling,
            detokenize=False,
            written=(),
        )
    )
    found: tuple[Logprob, ...] = ()
    written: list[int] = []
    async with aclosing(steps):
        async for step in steps:
            found += step.logprobs or ()
            written += step.token_ids
    if not found or written[0] != tokens[place]:
        raise EngineError("The engine did not say how likely a token of the prompt is.")
    return found[0]
