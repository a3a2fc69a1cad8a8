"""Derive the sampling parameters and the output constraint from a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from antiphon.application.ports import Constraint, Sampling
from antiphon.application.ports.sampling import ALL_AT_ONCE
from antiphon.domain.checks import constraint_of
from antiphon.domain.decoding import read
from antiphon.domain.request import CreateResponse

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


def wants_logprobs(request: CreateResponse) -> bool:
    return LOGPROBS in (request.include or ())


def sampling_of(request: CreateResponse, *, watched: bool) -> Sampling:
    """Return the request's sampling parameters; `watched`: a client may read token by token."""
    with_logprobs = wants_logprobs(request)
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
        max_tokens=request.max_output_tokens,
        stop=stop or (),
        stop_token_ids=request.stop_token_ids or (),
        include_stop_str_in_output=bool(request.include_stop_str_in_output),
        ignore_eos=bool(request.ignore_eos),
        logit_bias=request.logit_bias or {},
        logprobs=(request.top_logprobs or 0) if with_logprobs else None,
        constraint=_constraint(request),
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
