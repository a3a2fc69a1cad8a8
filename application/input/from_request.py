"""Derive from a request the initial Response, the first turn, and the fields without effect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import UNSET, UnsetType

from antiphon.application.input.sampling import sampling_of
from antiphon.application.ports import Model, Turn
from antiphon.domain.conversation import ActiveConfiguration
from antiphon.domain.errors import RequestError
from antiphon.domain.items import Item
from antiphon.domain.offers import Offer
from antiphon.domain.request import (
    AnyFormat,
    CreateResponse,
    PlainFormat,
    TextParams,
)
from antiphon.domain.response import (
    CacheConfig,
    ConversationRef,
    InputTransformation,
    ReasoningConfig,
    Response,
    TextConfig,
)
from antiphon.domain.service_tiers import priority_of, tier_of

VERBOSITY = {
    "low": "Keep your answer short: only what was asked for, in as few words as it takes.",
    "high": "Answer in detail: explain, and give examples where they help.",
}
"""`text.verbosity` as instructions, because open models have no such parameter."""


def response_of(
    request: CreateResponse,
    offered: Offer,
    model: Model,
    *,
    response_id: str,
    created_at: int,
    removed: Sequence[InputTransformation] = (),
) -> Response:
    """Return the initial Response, with the values that are in effect.

    Raises: RequestError for what this model does not support.
    """
    defaults = model.sampling_defaults
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
        conversation=_conversation(request),
        reasoning=_reasoning(request, model),
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
        service_tier=tier_of(request),
        prompt_cache_key=request.prompt_cache_key,
        metadata=request.metadata or {},
        prompt_cache_options=_cache(request),
        prompt_cache_retention=request.prompt_cache_retention or UNSET,
        input_transformations=tuple(removed) or UNSET,
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
        instructions=_instructions(request),
        tools=offered.specs,
        choice=offered.choice,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        text=_text(request, active_configuration.format),
        effort=_check_effort(active_configuration.effort, request, model, "input")
        or _effort(request, model),
        previous_messages=request.previous_input_messages or (),
        template_kwargs=request.chat_template_kwargs or {},
        truncate=request.truncation == "auto",
        sampling=sampling_of(request, watched=bool(request.stream or request.background)),
        priority=_priority(request, model),
        cache_salt=cache_salt,
        trace_headers=trace_headers,
    )


def _priority(request: CreateResponse, model: Model) -> int:
    # The engine may refuse a priority that the client did not ask for by name.
    if request.priority is None and not model.schedules_by_priority:
        return 0
    return priority_of(request)


def _instructions(request: CreateResponse) -> str | None:
    verbosity = (request.text.verbosity if request.text else None) or "medium"
    parts = (request.instructions, VERBOSITY.get(verbosity))
    return "\n\n".join(text for text in parts if text) or None


def _cache(request: CreateResponse) -> CacheConfig | UnsetType:
    options = request.prompt_cache_options
    if options is None:
        return UNSET
    return CacheConfig(
        mode=options.mode or "implicit",
        ttl=options.ttl or "30m",
        comparison_response_id=options.comparison_response_id or UNSET,
    )


def _conversation(request: CreateResponse) -> ConversationRef | None:
    conversation_id = request.conversation_id
    return None if conversation_id is None else ConversationRef(id=conversation_id)


def _text(request: CreateResponse, active_format: AnyFormat | None = None) -> TextConfig:
    text = request.text or TextParams()
    text_format = active_format or text.format or PlainFormat()
    return TextConfig(format=msgspec.to_builtins(text_format), verbosity=text.verbosity or "medium")


def _reasoning(request: CreateResponse, model: Model) -> ReasoningConfig:
    reasoning = request.reasoning
    if reasoning is None:
        return ReasoningConfig()
    return ReasoningConfig(
        effort=_effort(request, model),
        summary=reasoning.summary or reasoning.generate_summary,
        context=reasoning.context or UNSET,
        mode=reasoning.mode or UNSET,
    )


def _effort(request: CreateResponse, model: Model) -> str | None:
    effort = request.reasoning.effort if request.reasoning else None
    return _check_effort(effort, request, model, "reasoning.effort")


def _check_effort(
    effort: str | None, request: CreateResponse, model: Model, param: str
) -> str | None:
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
    return next((value for value in values if value is not None), None)
