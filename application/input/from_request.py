"""Derive from a request the initial Response, the first turn, and the fields without effect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from antiphon.application.ports import Constraint, Model, Sampling, Turn
from antiphon.application.ports.sampling import ALL_AT_ONCE
from antiphon.domain.access.service_tiers import priority_of, tier_of
from antiphon.domain.errors import RequestError
from antiphon.domain.history.conversation import ActiveConfiguration
from antiphon.domain.history.tool_uses import ClearedToolUses
from antiphon.domain.items import Item
from antiphon.domain.offers.offer import Offer
from antiphon.domain.requests.checks import constraint_of
from antiphon.domain.requests.decoding import read
from antiphon.domain.requests.request import (
    AnyFormat,
    CreateResponse,
    PlainFormat,
    PromptCacheOptions,
    ReasoningParams,
    TextParams,
)
from antiphon.domain.responses.response import (
    CacheConfig,
    ConversationRef,
    InputTransformation,
    ReasoningConfig,
    Response,
    TextConfig,
)

VERBOSITY = {
    "low": "Keep your answer short: only what was asked for, in as few words as it takes.",
    "high": "Answer in detail: explain, and give examples where they help.",
}
"""`text.verbosity` as instructions, because open models have no such parameter."""

ENGINE_FIELDS = ("vllm_xargs", "kv_transfer_params", "ec_transfer_params")
"""Request fields that only an engine understands."""

CONSTRAINT_KINDS: Mapping[str, Any] = {"json": "json_schema"}
"""Kinds of `structured_outputs` that have another name in a Constraint."""

CONSTRAINT_OPTIONS = (
    "disable_any_whitespace",
    "disable_additional_properties",
    "whitespace_pattern",
)


LOGPROBS = "message.output_text.logprobs"

LOGPROB_STEP = 64
"""The most tokens in a step with logprobs: those of a whole turn would be too much at a time."""


def response_of(
    request: CreateResponse,
    offered: Offer,
    model: Model,
    *,
    response_id: str,
    created_at: int,
    removed: Sequence[InputTransformation] = (),
    cleared: ClearedToolUses | None = None,
) -> Response:
    """Return the initial Response, with the values that are in effect.

    Raises: RequestError for what this model does not support.
    """
    defaults = model.sampling_defaults
    conversation_id = request.conversation and request.conversation_id
    return Response(
        id=response_id,
        created_at=created_at,
        status="queued" if request.background else "in_progress",
        background=bool(request.background),
        instructions=request.instructions,
        max_output_tokens=request.max_output_tokens,
        max_tool_calls=request.max_tool_calls,
        model=request.model or "",
        parallel_tool_calls=request.parallel_tool_calls is not False,
        previous_response_id=request.previous_response_id,
        conversation=ConversationRef(id=conversation_id) if conversation_id else None,
        reasoning=_reasoning(request.reasoning, request, model)
        if request.reasoning
        else ReasoningConfig(),
        store=request.store is not False,
        temperature=_first_known(request.temperature, defaults.get("temperature"), 1.0),
        text=_text(request),
        tool_choice=request.tool_choice or "auto",
        tools=offered.echo,
        top_logprobs=request.top_logprobs or 0,
        top_p=_first_known(request.top_p, defaults.get("top_p"), 1.0),
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        truncation=request.truncation or "disabled",
        user=request.user,
        safety_identifier=request.safety_identifier,
        service_tier="default" if request.service_tier is None else tier_of(request),
        prompt_cache_key=request.prompt_cache_key,
        metadata=request.metadata or {},
        prompt_cache_options=_cache(request.prompt_cache_options)
        if request.prompt_cache_options
        else UNSET,
        prompt_cache_retention=request.prompt_cache_retention or UNSET,
        input_transformations=tuple(removed) or UNSET,
        cleared_tool_uses=cleared or UNSET,
        prompt=request.prompt or UNSET,
        request_id=request.request_id or UNSET,
    )


def turn_of(
    request: CreateResponse,
    offered: Offer,
    model: Model,
    *,
    items: Sequence[Item],
    active_configuration: ActiveConfiguration,
    tenant: str,
    cache_salt: str,
    trace_headers: Mapping[str, str],
) -> Turn:
    """Return the model's first turn over these items.

    `active_configuration` takes precedence over the request's own fields.

    Raises: RequestError for what this model does not support.
    """
    return Turn(
        model=request.model or "",
        items=items,
        tenant=tenant,
        instructions=with_verbosity(request.instructions, request.text.verbosity)
        if request.text
        else request.instructions or None,
        tools=offered.specs,
        choice=offered.choice,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        text=_text(request, active_configuration.format),
        effort=_effort(request, model, active_configuration.effort),
        previous_messages=request.previous_input_messages or (),
        template_kwargs=request.chat_template_kwargs or {},
        truncate=request.truncation == "auto",
        sampling=sampling_of(request, watched=bool(request.stream or request.background)),
        priority=_priority(request, model),
        cache_salt=cache_salt,
        trace_headers=trace_headers,
        raw_prompt=request.raw_prompt,
    )


def _priority(request: CreateResponse, model: Model) -> int:
    if request.priority is not None:
        return request.priority
    # The engine may refuse a priority that the client did not ask for by name.
    if request.service_tier is None or not model.schedules_by_priority:
        return 0
    return priority_of(request)


def with_verbosity(instructions: str | None, verbosity: str | None) -> str | None:
    """Return the instructions that the model is shown."""
    parts = (instructions, VERBOSITY.get(verbosity or "medium"))
    return "\n\n".join(filter(None, parts)) or None


def _cache(options: PromptCacheOptions) -> CacheConfig:
    return CacheConfig(
        mode=options.mode or "implicit",
        ttl=options.ttl or "30m",
        comparison_response_id=options.comparison_response_id or UNSET,
    )


def _text(request: CreateResponse, active_format: AnyFormat | None = None) -> TextConfig:
    text = request.text or TextParams()
    text_format = active_format or text.format or PlainFormat()
    return TextConfig(format=msgspec.to_builtins(text_format), verbosity=text.verbosity or "medium")


def _reasoning(
    reasoning: ReasoningParams, request: CreateResponse, model: Model
) -> ReasoningConfig:
    return ReasoningConfig(
        effort=_effort(request, model),
        summary=reasoning.summary or reasoning.generate_summary,
        context=reasoning.context or UNSET,
        mode=reasoning.mode or UNSET,
    )


def _effort(request: CreateResponse, model: Model, active_effort: str | None = None) -> str | None:
    """Return the effort; an active one takes precedence over the request's.

    Raises: RequestError for one that the model does not know.
    """
    effort, param = active_effort, "input"
    if effort is None and request.reasoning is not None:
        effort, param = request.reasoning.effort, "reasoning.effort"
    if effort is not None and effort not in model.efforts:
        known = ", ".join(repr(each) for each in model.efforts)
        raise RequestError(
            f"Unsupported value: {effort!r} is not supported with the {request.model!r} model. "
            f"Supported values are: {known}.",
            param=param,
            code="unsupported_value",
        )
    return effort


def _first_known(*values: float | None) -> float | None:
    for value in values:
        if value is not None:
            return value
    return None


def wants_logprobs(request: CreateResponse) -> bool:
    return LOGPROBS in (request.include or ())


def sampling_of(request: CreateResponse, *, watched: bool) -> Sampling:
    """Return the request's sampling parameters; `watched`: a client may read token by token."""
    with_logprobs = wants_logprobs(request)
    alternatives = (request.top_logprobs or 0) if with_logprobs else None
    raw = request.raw_prompt
    stop = (request.stop,) if isinstance(request.stop, str) else request.stop
    return Sampling(
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        min_p=request.min_p,
        repetition_penalty=request.repetition_penalty,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        seed=request.seed,
        max_tokens=1 if raw is not None and raw.echo_only else request.max_output_tokens,
        stop=stop or (),
        stop_token_ids=request.stop_token_ids or (),
        include_stop_str_in_output=bool(request.include_stop_str_in_output),
        ignore_eos=bool(request.ignore_eos),
        logit_bias=request.logit_bias or {},
        logprobs=alternatives,
        prompt_logprobs=alternatives if raw is not None and raw.echo else None,
        constraint=_constraint(request) if request.structured_outputs else None,
        step_tokens=1 if watched else LOGPROB_STEP if with_logprobs else ALL_AT_ONCE,
        extra={name: getattr(request, name) for name in ENGINE_FIELDS if getattr(request, name)},
    )


def _constraint(request: CreateResponse) -> Constraint | None:
    constraint = constraint_of(request)
    if constraint is None:
        return None
    kind, value = constraint
    if kind in ("json", "structural_tag") and isinstance(value, str):
        # Like vLLM, accept JSON text for both; decode it here.
        value = read(msgspec.json.decode, value.encode(), f"structured_outputs.{kind}")
    options = {
        name: getattr(request.structured_outputs, name)
        for name in CONSTRAINT_OPTIONS
        if getattr(request.structured_outputs, name) is not None
    }
    return Constraint(kind=CONSTRAINT_KINDS.get(kind, kind), value=value, options=options)
