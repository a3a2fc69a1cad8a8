"""Runs in vLLM: their admission, their steps, and that leaving one frees what it holds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from vllm.exceptions import GracefulHTTPError, VLLMClientError
from vllm.inputs import TokensPrompt, tokens_input
from vllm.lora.request import LoRARequest
from vllm.outputs import RequestOutput
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.engine.output_processor import RequestOutputCollector

from antiphon.adapters.engines.vllm_engine.images import Images
from antiphon.adapters.engines.vllm_engine.parameters import sampling_params
from antiphon.adapters.engines.vllm_engine.token_decoder import TokenDecoder
from antiphon.application.ports import EngineRequest, Prompt, Step, Steps, Turn
from antiphon.domain.content import Logprob, TopLogprob
from antiphon.domain.errors import (
    CONTEXT_EXCEEDED,
    EngineDead,
    EngineError,
    RequestError,
    TooManyRequests,
)

PARAM_OF = {"max_tokens": "max_output_tokens", "logprobs": "top_logprobs"}
"""Parameters that vLLM names otherwise than the API."""

FINISHES = {"stop": "stop", "length": "length", "repetition": "stop"}
"""Ends that a response may have; the others (`abort`, `error`) are failures of the engine."""

FAILURES = {
    "abort": "The engine aborted this run.",
    "error": "The engine could not go on with this run; it may succeed when tried again.",
}

LEAST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON cannot write."""

log = logging.getLogger("antiphon.engine")


class VllmRuns:
    """The runs of one started AsyncLLM."""

    def __init__(self, llm: AsyncLLM, *, adapters: Sequence[LoRARequest]) -> None:
        self._llm = llm
        self.adapters = {adapter.lora_name: adapter for adapter in adapters}
        self.context_length: int = llm.model_config.max_model_len
        self.sampling_defaults: Mapping[str, Any] = llm.model_config.get_diff_sampling_param()
        self.tokenizer = llm.get_tokenizer()
        self._speller = TokenDecoder(self.tokenizer)
        self._images = Images(llm)

    @property
    def reads_images(self) -> bool:
        return self._images.are_read

    async def prepare(self, prompt: Prompt) -> Prompt:
        return await self._images.prepare(prompt)

    async def check(self) -> None:
        try:
            await self._llm.check_health()
        except EngineDeadError as error:
            raise _dead() from error

    async def admit(self, request: EngineRequest) -> Run:
        params = self._params(request)
        try:
            # Asked first, so that an overloaded server refuses before it does any work.
            self._llm.check_admission(request_id=request.request_id)
            collector = await self._add(request, params)
        except GracefulHTTPError as error:
            raise TooManyRequests(str(error)) from error
        except EngineDeadError as error:
            raise _dead() from error
        except (VLLMClientError, ValueError) as error:
            constrained = _constrained_field(request.turn) if params.structured_outputs else None
            raise _refusal(error, otherwise=constrained) from error
        return Run(self._llm, collector, request, self._speller)

    def end(self, error: EngineDead) -> None:
        """Let every run that is still read raise `error`; vLLM would leave its reader waiting."""
        self._llm.output_processor.propagate_error(error)

    def _params(self, request: EngineRequest) -> SamplingParams:
        if request.priority and self._llm.vllm_config.scheduler_config.policy != "priority":
            # vLLM would take it and do nothing.
            raise RequestError(
                "'priority' needs an engine that was started with --scheduling-policy priority.",
                param="priority",
                code="unsupported_parameter",
            )
        room = self.context_length - len(request.prompt.token_ids)
        if room < 1:
            raise RequestError(
                f"Your input has {len(request.prompt.token_ids)} tokens; the context window of "
                f"this model is {self.context_length} tokens. Please shorten your input.",
                param="input",
                code=CONTEXT_EXCEEDED,
            )
        try:
            return sampling_params(
                request.sampling,
                defaults=self.sampling_defaults,
                room=room,
                detokenize=request.detokenize,
            )
        except (VLLMClientError, ValueError) as error:
            raise _refusal(error) from error

    async def _add(self, request: EngineRequest, params: SamplingParams) -> RequestOutputCollector:
        trace = dict(request.trace_headers) if await self._llm.is_tracing_enabled() else None
        try:
            return await self._llm.add_request(
                request.request_id,
                _input(request, params),
                params,
                lora_request=self.adapters.get(request.model),
                trace_headers=trace or None,
                priority=request.priority,
                # Our constraints describe the reasoning too, so they hold from the first token on.
                reasoning_ended=True if params.structured_outputs else None,
            )
        except asyncio.CancelledError:
            # It may have reached the engine already.
            await self._llm.abort(request.request_id)
            log.debug("run %s aborted", request.request_id)
            raise


class Run(Steps):
    """A run that the engine took on: its steps. Reading it to its end or `aclose` frees it.

    Not a generator: one that was never iterated would not notice that it is closed.
    """

    def __init__(
        self,
        llm: AsyncLLM,
        collector: RequestOutputCollector,
        request: EngineRequest,
        speller: TokenDecoder,
    ) -> None:
        self._llm = llm
        self._collector = collector
        self._id = request.request_id
        self._alternatives = request.sampling.logprobs
        self._speller = speller
        self._over = False

    def __aiter__(self) -> AsyncIterator[Step]:
        return self

    async def __anext__(self) -> Step:
        if self._over:
            raise StopAsyncIteration
        try:
            # What is there already costs no turn of the loop.
            output = self._collector.get_nowait() or await self._collector.get()
        except (EngineDeadError, EngineDead) as error:
            self._over = True
            raise _dead(str(error)) from error
        except asyncio.CancelledError:
            await self.aclose()
            raise
        except Exception as error:
            await self.aclose()
            if self._llm.errored:  # vLLM's reader of outputs failed, so no run will see another
                raise _dead() from error
            raise EngineError(f"The engine failed: {error}") from error
        self._over = output.finished
        return self._step(output)

    async def aclose(self) -> None:
        if self._over:
            return
        self._over = True
        await self._llm.abort(self._collector.request_id, internal=True)
        log.debug("run %s aborted", self._id)

    def _step(self, output: RequestOutput) -> Step:
        [completion] = output.outputs
        reason = completion.finish_reason
        if reason in FAILURES:
            raise EngineError(FAILURES[reason])
        return Step(
            text=completion.text,
            token_ids=completion.token_ids,
            logprobs=self._logprobs(completion.logprobs),
            finish=None if reason is None else FINISHES[reason],
            cached_tokens=output.num_cached_tokens or 0,
        )

    def _logprobs(
        self, positions: Sequence[Mapping[int, Any]] | None
    ) -> tuple[Logprob, ...] | None:
        if self._alternatives is None:
            return None
        return tuple(self._logprob(position) for position in positions or ())

    def _logprob(self, position: Mapping[int, Any]) -> Logprob:
        sampled = next(iter(position))  # vLLM puts it first, in or out of the most likely
        ranked = sorted(
            (token for token, entry in position.items() if entry.rank <= self._alternatives),
            key=lambda token: position[token].rank,
        )
        return Logprob(
            **self._spelled(sampled, position[sampled].logprob),
            top_logprobs=tuple(
                TopLogprob(**self._spelled(token, position[token].logprob)) for token in ranked
            ),
        )

    def _spelled(self, token_id: int, logprob: float) -> dict[str, Any]:
        text, exact = self._speller.decode_token(token_id)
        return {"token": text, "bytes": exact, "logprob": max(logprob, LEAST_LOGPROB)}


def _input(request: EngineRequest, params: SamplingParams) -> Any:
    salt = {} if request.cache_salt is None else {"cache_salt": request.cache_salt}
    if request.prompt.prepared is not None:
        return {**request.prompt.prepared, **salt}
    token_ids = list(request.prompt.token_ids)
    # vLLM checks the constraint of a raw prompt in a thread, that of a prepared one in this loop:
    # and a schema may take seconds to check, which no other run should wait for. (One with images
    # has no choice: see images.py for why vLLM may not prepare it.)
    if params.structured_outputs:
        return TokensPrompt(prompt_token_ids=token_ids, **salt)
    return tokens_input(token_ids, **salt)


def _dead(message: str = "The engine has died.") -> EngineDead:
    return EngineDead(message)


def _refusal(error: Exception, *, otherwise: str | None = None) -> RequestError:
    """Translate vLLM's refusal; `otherwise` is the field at fault where vLLM names none."""
    named: str | None = getattr(error, "parameter", None)
    # Not str(error): vLLM appends the parameter and its whole value there.
    message = str(error.args[0]) if error.args else str(error)
    return RequestError(message, param=PARAM_OF.get(named, named) if named else otherwise)


def _constrained_field(turn: Turn) -> str:
    """Return the field that most likely brought the constraint: a constraint does not say."""
    if turn.text.format["type"] == "json_schema":
        return "text.format.schema"
    return "tools" if turn.tools else "structured_outputs"
