"""What a request asks for: the Response that its run will fill, and the turn of its model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from antiphon.application.ports import Json, Model, Turn
from antiphon.application.sampling import sampling_of
from antiphon.domain.conversation import InForce
from antiphon.domain.errors import RequestError
from antiphon.domain.items import Item
from antiphon.domain.offers import Offer
from antiphon.domain.request import (
    WITHOUT_EFFECT,
    WITHOUT_EFFECT_INSIDE,
    AnyFormat,
    CreateResponse,
    PlainFormat,
    TextParams,
)
from antiphon.domain.response import InputTransformation, ReasoningConfig, Response, TextConfig


def response_of(
    request: CreateResponse,
    offered: Offer,
    model: Model,
    *,
    response_id: str,
    created_at: int,
    removed: Sequence[InputTransformation] = (),
) -> Response:
    """Return the Response as it begins: what it echoes, with the values that are in effect.

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
        reasoning=_reasoning(request, model),
        store=request.store is not False,
        temperature=_first(request.temperature, defaults.get("temperature"), 1.0),
        text=_text(request),
        tool_choice=request.tool_choice or "auto",
        tools=offered.echo,
        top_logprobs=request.top_logprobs or 0,
        top_p=_first(request.top_p, defaults.get("top_p"), 1.0),
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        truncation=request.truncation or "disabled",
        user=request.user,
        safety_identifier=request.safety_identifier,
        prompt_cache_key=request.prompt_cache_key,
        metadata=request.metadata or {},
        prompt_cache_options=_cache_options(request),
        prompt_cache_retention=request.prompt_cache_retention or UNSET,
        input_transformations=tuple(removed) or UNSET,
        request_id=request.request_id or UNSET,
    )


def turn_of(
    request: CreateResponse,
    offered: Offer,
    model: Model,
    *,
    items: Sequence[Item],
    in_force: InForce,
    trace_headers: Mapping[str, str],
) -> Turn:
    """Return the turn that the model is asked for, over these items; what is `in_force` comes
    before what the request says.

    Raises: RequestError for what this model does not support.
    """
    return Turn(
        model=request.model or "",
        items=items,
        instructions=request.instructions,
        tools=offered.specs,
        choice=offered.choice,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        text=_text(request, in_force.format),
        effort=_supported(in_force.effort, request, model, "input") or _effort(request, model),
        previous_messages=request.previous_input_messages or (),
        template_kwargs=request.chat_template_kwargs or {},
        truncate=request.truncation == "auto",
        sampling=sampling_of(request, watched=bool(request.stream or request.background)),
        priority=request.priority or 0,
        cache_salt=request.cache_salt,
        trace_headers=trace_headers,
    )


def without_effect(request: CreateResponse) -> list[str]:
    """Return the paths of the fields that were given and do nothing here."""
    found = [name for name in WITHOUT_EFFECT if getattr(request, name)]
    for outer, names in WITHOUT_EFFECT_INSIDE.items():
        inside = getattr(request, outer)
        found += [f"{outer}.{name}" for name in names if inside and getattr(inside, name)]
    return sorted(found)


def _cache_options(request: CreateResponse) -> Json | UnsetType:
    if request.prompt_cache_options is None:
        return UNSET
    options: Json = msgspec.to_builtins(replace(request.prompt_cache_options, prewarm=None))
    return options


def _text(request: CreateResponse, in_force: AnyFormat | None = None) -> TextConfig:
    asked = request.text or TextParams()
    form = in_force or asked.format or PlainFormat()
    return TextConfig(format=msgspec.to_builtins(form), verbosity=asked.verbosity or "medium")


def _reasoning(request: CreateResponse, model: Model) -> ReasoningConfig:
    asked = request.reasoning
    if asked is None:
        return ReasoningConfig()
    return ReasoningConfig(
        effort=_effort(request, model),
        summary=asked.summary or asked.generate_summary,
        context=asked.context or UNSET,
        mode=asked.mode or UNSET,
    )


def _effort(request: CreateResponse, model: Model) -> str | None:
    effort = request.reasoning.effort if request.reasoning else None
    return _supported(effort, request, model, "reasoning.effort")


def _supported(effort: str | None, request: CreateResponse, model: Model, param: str) -> str | None:
    if effort is not None and effort not in model.efforts:
        known = ", ".join(repr(each) for each in model.efforts)
        raise RequestError(
            f"Unsupported value: {effort!r} is not supported with the {request.model!r} model. "
            f"Supported values are: {known}.",
            param=param,
            code="unsupported_value",
        )
    return effort


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)
