"""Sampling → vLLM's sampling parameters."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

from antiphon.application.ports import Constraint, Sampling
from antiphon.domain.errors import RequestError

DEFAULTED = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
"""Fields that fall back on the model's generation config."""

NEUTRAL = {"top_k": 0, "min_p": 0.0}
"""What vLLM's constructor does not accept None for."""

CONSTRAINTS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "json_schema": ("json", json.dumps),
    "json_object": ("json_object", lambda _: True),
    "regex": ("regex", str),
    "grammar": ("grammar", str),
    "choice": ("choice", list),
    "structural_tag": ("structural_tag", json.dumps),
}
"""Each kind of constraint: the parameter it is to vLLM, and how its value is written there."""

CONSTRAINT_OPTIONS = frozenset(
    {"disable_any_whitespace", "disable_additional_properties", "whitespace_pattern"}
)

EXTRA_ARGUMENTS = frozenset({"kv_transfer_params", "ec_transfer_params"})
"""Extra fields that reach vLLM's connectors under their own name, beside those of `vllm_xargs`."""


def sampling_params(
    sampling: Sampling, *, defaults: Mapping[str, Any], room: int, detokenize: bool
) -> SamplingParams:
    """Translate, with `room` tokens left for the output. Raises: vLLM's validation errors."""
    chosen = {name: _first(getattr(sampling, name), defaults.get(name)) for name in DEFAULTED}
    max_tokens = min(room, _first(sampling.max_tokens, defaults.get("max_tokens"), room))
    return SamplingParams.from_optional(
        **{name: _first(value, NEUTRAL.get(name)) for name, value in chosen.items()},
        seed=sampling.seed,
        max_tokens=max_tokens,
        stop=list(sampling.stop),
        stop_token_ids=list(sampling.stop_token_ids),
        include_stop_str_in_output=sampling.include_stop_str_in_output,
        ignore_eos=sampling.ignore_eos,
        skip_special_tokens=sampling.skip_special_tokens,
        # Stop strings are found in the text, so they need it even when no parser does.
        detokenize=detokenize or bool(sampling.stop),
        logit_bias=dict(sampling.logit_bias) or None,
        logprobs=sampling.logprobs,
        structured_outputs=_structured_outputs(sampling.constraint),
        extra_args=_extra_args(sampling.extra),
        skip_clone=True,  # made for this run alone
        **_cadence(sampling.step_tokens, max_tokens),
    )


def _cadence(step_tokens: int, max_tokens: int) -> dict[str, Any]:
    if step_tokens > max_tokens:  # nobody reads along: one step with everything
        return {"output_kind": RequestOutputKind.FINAL_ONLY}
    return {"output_kind": RequestOutputKind.DELTA, "stream_interval": step_tokens}


def _structured_outputs(constraint: Constraint | None) -> StructuredOutputsParams | None:
    if constraint is None:
        return None
    name, write = CONSTRAINTS[constraint.kind]
    for option in constraint.options.keys() - CONSTRAINT_OPTIONS:
        raise RequestError(
            f"Unknown parameter: 'structured_outputs.{option}'.",
            param=f"structured_outputs.{option}",
            code="unknown_parameter",
        )
    return StructuredOutputsParams(**{name: write(constraint.value)}, **constraint.options)


def _extra_args(extra: Mapping[str, Any]) -> dict[str, Any] | None:
    arguments: dict[str, Any] = {}
    for name, value in extra.items():
        if name == "vllm_xargs":
            arguments |= value
        elif name in EXTRA_ARGUMENTS:
            arguments[name] = value
        else:
            raise RequestError(
                f"Unsupported parameter: {name!r} is not supported by this engine.",
                param=name,
                code="unsupported_parameter",
            )
    return arguments or None


def _first(*values: Any) -> Any:
    """Return the first value that is not None, else None."""
    return next((value for value in values if value is not None), None)
