"""Runs in vLLM: admission, steps, and abort when the reader leaves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace
from vllm.exceptions import GracefulHTTPError, VLLMClientError
from vllm.inputs import TokensPrompt, tokens_input
from vllm.lora.request import LoRARequest
from vllm.outputs import RequestOutput
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.engine.output_processor import RequestOutputCollector

from antiphon.adapters.engines.continuation import continuation_of
from antiphon.adapters.engines.token_decoder import TokenDecoder
from antiphon.adapters.engines.vllm_engine.images import Images
from antiphon.adapters.engines.vllm_engine.parameters import sampling_params
from antiphon.adapters.engines.vllm_engine.plugin import WRITTEN, is_registered
from antiphon.adapters.engines.vllm_names import (
    FAILURE_MESSAGES,
    FINISH_REASONS,
    check_priority,
    constrained_field,
    refusal,
    remaining_tokens,
)
from antiphon.application.ports import EngineRequest, Prompt, Step, Steps
from antiphon.domain.content import Logprob, TopLogprob
from antiphon.domain.errors import (
    CannotResume,
    EngineDead,
    EngineError,
    RequestError,
    ServerOverloaded,
)

log = logging.getLogger("antiphon.engine")


class VllmRuns:
    """The runs of one started AsyncLLM."""

    def __init__(self, llm: AsyncLLM, *, adapters: Sequence[LoRARequest]) -> None:
        self._llm = llm
        self.adapters = {adapter.lora_name: adapter for adapter in adapters}
        self.context_length: int = llm.model_config.max_model_len
        self.sampling_defaults: Mapping[str, Any] = llm.model_config.get_diff_sampling_param()
        self.tokenizer = llm.get_tokenizer()
        # Older versions tell the probabilities of the likeliest tokens alone.
        self.weighs_at_once = 8 if hasattr(SamplingParams, "logprob_token_ids") else 0
        self.model_type: str = llm.model_config.hf_config.model_type
        self._token_decoder = TokenDecoder(self.tokenizer)
        self._images = Images(llm)

    @property
    def reads_images(self) -> bool:
        return self._images.are_supported

    @property
    def schedules_by_priority(self) -> bool:
        return bool(self._llm.vllm_config.scheduler_config.policy == "priority")

    async def prepare(self, prompt: Prompt) -> Prompt:
        return await self._images.prepare(prompt)

    @property
    def is_dead(self) -> bool:
        return bool(self._llm.errored)

    async def check(self) -> None:
        try:
            await self._llm.check_health()
        except EngineDeadError as error:
            raise _engine_dead() from error

    async def admit(self, request: EngineRequest) -> VllmRun:
        request = continuation_of(request)
        params = self._params(request)
        try:
            # Checked first, so that an overloaded server refuses before doing any work.
            self._llm.check_admission(request_id=request.request_id)
            collector = await self._add(request, params)
        except GracefulHTTPError as error:
            raise ServerOverloaded(str(error)) from error
        except EngineDeadError as error:
            raise _engine_dead() from error
        except (VLLMClientError, ValueError) as error:
            param = constrained_field(request.turn) if params.structured_outputs else None
            raise _to_request_error(error, default_param=param) from error
        return VllmRun(self._llm, collector, request, self._token_decoder)

    def fail_all(self, error: EngineDead) -> None:
        """Make every unfinished run raise `error`; vLLM would leave the readers waiting."""
        self._llm.output_processor.propagate_error(error)

    def _params(self, request: EngineRequest) -> SamplingParams:
        check_priority(request.priority, is_scheduled=self.schedules_by_priority)
        room = remaining_tokens(len(request.prompt.token_ids), self.context_length)
        sampling = request.sampling
        if request.written and sampling.constraint is not None:
            if not is_registered():
                raise CannotResume("vLLM was told to load no plugin that advances constraints.")
            extra = dict(sampling.extra)
            extra["vllm_xargs"] = {**extra.get("vllm_xargs", {}), WRITTEN: [*request.written]}
            sampling = replace(sampling, extra=extra)
        try:
            return sampling_params(
                sampling,
                defaults=self.sampling_defaults,
                remaining_tokens=room,
                detokenize=request.detokenize,
                constrained_field=constrained_field(request.turn),
            )
        except (VLLMClientError, ValueError) as error:
            raise _to_request_error(error) from error

    async def _add(self, request: EngineRequest, params: SamplingParams) -> RequestOutputCollector:
        trace = dict(request.trace_headers) if await self._llm.is_tracing_enabled() else None
        try:
            return await self._llm.add_request(
                request.request_id,
                _engine_input(request, params),
                params,
                lora_request=self.adapters.get(request.model),
                trace_headers=trace or None,
                priority=request.priority,
                # Our constraints also cover the reasoning, so they apply from the first token on.
                reasoning_ended=True if params.structured_outputs else None,
            )
        except asyncio.CancelledError:
            # The request may already have reached the engine.
            await self._llm.abort(request.request_id)
            log.debug("run %s aborted", request.request_id)
            raise


class VllmRun(Steps):
    """The steps of an admitted run. Reading it to the end, or `aclose`, frees its resources.

    Not a generator: closing a generator that was never iterated runs none of its code.
    """

    def __init__(
        self,
        llm: AsyncLLM,
        collector: RequestOutputCollector,
        request: EngineRequest,
        token_decoder: TokenDecoder,
    ) -> None:
        self._llm = llm
        self._collector = collector
        self._request_id = request.request_id
        self._top_logprobs = request.sampling.logprobs
        self._answer_tokens = request.sampling.answer_tokens
        self._prompt_alternatives = request.sampling.prompt_logprobs
        self._token_decoder = token_decoder
        self._is_finished = False

    def __aiter__(self) -> AsyncIterator[Step]:
        return self

    async def __anext__(self) -> Step:
        if self._is_finished:
            raise StopAsyncIteration
        try:
            # Output that is already there does not cost a pass of the event loop.
            output = self._collector.get_nowait() or await self._collector.get()
        except (EngineDeadError, EngineDead) as error:
            self._is_finished = True
            raise _engine_dead(str(error)) from error
        except asyncio.CancelledError:
            await self.aclose()
            raise
        except Exception as error:
            await self.aclose()
            if self._llm.errored:  # vLLM stopped reading outputs, so no run will get another
                raise _engine_dead() from error
            raise EngineError(f"The engine failed: {error}") from error
        self._is_finished = output.finished
        return self._to_step(output)

    async def aclose(self) -> None:
        if self._is_finished:
            return
        self._is_finished = True
        await self._llm.abort(self._collector.request_id, internal=True)
        log.debug("run %s aborted", self._request_id)

    def _to_step(self, output: RequestOutput) -> Step:
        [completion] = output.outputs
        reason = completion.finish_reason
        if reason in FAILURE_MESSAGES:
            raise EngineError(FAILURE_MESSAGES[reason])
        return Step(
            text=completion.text,
            token_ids=completion.token_ids,
            logprobs=self._to_logprobs(completion.logprobs),
            finish=None if reason is None else FINISH_REASONS[reason],
            cached_tokens=output.num_cached_tokens or 0,
            generation_s=None if reason is None else _generation_s(output),
            prompt_logprobs=self._score(output),
        )

    def _score(self, output: RequestOutput) -> tuple[Logprob, ...] | None:
        """Return the prompt's log probabilities with the first step."""
        if self._prompt_alternatives is None or output.prompt_logprobs is None:
            return None
        count, self._prompt_alternatives = self._prompt_alternatives, None
        tokens = zip(output.prompt_token_ids or (), output.prompt_logprobs, strict=False)
        return tuple(
            Logprob(**self._token_fields(token, 0.0))
            if position is None  # nothing comes before the first token
            else self._to_logprob(position, count)
            for token, position in tokens
        )

    def _to_logprobs(
        self, positions: Sequence[Mapping[int, Any]] | None
    ) -> tuple[Logprob, ...] | None:
        if self._top_logprobs is None:
            return None
        count = self._top_logprobs
        return tuple(self._to_logprob(position, count) for position in positions or ())

    def _to_logprob(self, position: Mapping[int, Any], count: int) -> Logprob:
        # vLLM puts the sampled token first, even if it is not among the most likely.
        sampled = next(iter(position))
        ranked = self._answer_tokens or sorted(
            (token for token, entry in position.items() if entry.rank <= count),
            key=lambda token: position[token].rank,
        )
        return Logprob(
            **self._token_fields(sampled, position[sampled].logprob),
            top_logprobs=tuple(
                TopLogprob(**self._token_fields(token, position[token].logprob)) for token in ranked
            ),
        )

    def _token_fields(self, token_id: int, logprob: float) -> dict[str, Any]:
        text, token_bytes = self._token_decoder.decode_token(token_id)
        return {"token": text, "bytes": token_bytes, "logprob": logprob}


def _generation_s(output: RequestOutput) -> float | None:
    """Return the seconds between the first and the last token, by the engine's own clock."""
    stats: Any = output.metrics
    if stats is None or not stats.first_token_ts:  # told to keep none, or without a token
        return None
    return max(0.0, float(stats.last_token_ts - stats.first_token_ts))


def _engine_input(request: EngineRequest, params: SamplingParams) -> Any:
    salt = {} if request.cache_salt is None else {"cache_salt": request.cache_salt}
    token_ids = list(request.prompt.token_ids)
    if request.prompt.prepared is not None:
        return {**request.prompt.prepared, "prompt_token_ids": token_ids, **salt}
    # vLLM checks the constraint of a raw prompt in a thread, but that of a prepared prompt in this
    # event loop. Checking a schema may take seconds, for which other runs should not wait. (Prompts
    # with images are always prepared; images.py says why.)
    if params.structured_outputs:
        return TokensPrompt(prompt_token_ids=token_ids, **salt)
    return tokens_input(token_ids, **salt)


def _engine_dead(message: str = "The engine has died.") -> EngineDead:
    return EngineDead(message)


def _to_request_error(error: Exception, *, default_param: str | None = None) -> RequestError:
    """Translate vLLM's error; `default_param` is the field to blame if vLLM names none."""
    # Not str(error), to which vLLM appends the parameter and its whole value.
    message = str(error.args[0]) if error.args else str(error)
    parameter = getattr(error, "parameter", None)
    return refusal(message, parameter=parameter, default_param=default_param)
