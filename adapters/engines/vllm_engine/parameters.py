"""Translates Sampling to vLLM's sampling parameters."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

from antiphon.application.ports import Constraint, Sampling
from antiphon.domain.errors import RequestError

DEFAULTED_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
"""Fields that fall back to the model's generation config."""

NEUTRAL_VALUES = {"top_k": 0, "min_p": 0.0}
"""Defaults of the parameters for which vLLM does not accept None."""

CONSTRAINTS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "json_schema": ("json", json.dumps),
    "json_object": ("json_object", lambda _: True),
    "regex": ("regex", str),
    "grammar": ("grammar", str),
    "choice": ("choice", list),
    "structural_tag": ("structural_tag", json.dumps),
}
"""By kind of constraint, vLLM's parameter for it and a function that converts the value."""

CONSTRAINT_OPTIONS = frozenset(
    {"disable_any_whitespace", "disable_additional_properties", "whitespace_pattern"}
)

EXTRA_ARGUMENTS = frozenset({"kv_transfer_params", "ec_transfer_params"})
"""Extra fields that reach vLLM's connectors by name, besides those in `vllm_xargs`."""


def sampling_params(
    sampling: Sampling, *, defaults: Mapping[str, Any], remaining_tokens: int, detokenize: bool
) -> SamplingParams:
    """Return vLLM's parameters for at most `remaining_tokens` of output. Raises: vLLM's errors."""
    values = {
        name: _first_set(getattr(sampling, name), defaults.get(name)) for name in DEFAULTED_FIELDS
    }
    max_tokens = min(
        remaining_tokens,
        _first_set(sampling.max_tokens, defaults.get("max_tokens"), remaining_tokens),
    )
    return SamplingParams.from_optional(
        **{name: _first_set(value, NEUTRAL_VALUES.get(name)) for name, value in values.items()},
        seed=sampling.seed,
        max_tokens=max_tokens,
        stop=list(sampling.stop),
        stop_token_ids=list(sampling.stop_token_ids),
        include_stop_str_in_output=sampling.include_stop_str_in_output,
        ignore_eos=sampling.ignore_eos,
        skip_special_tokens=sampling.skip_special_tokens,
        # vLLM finds stop strings in the text, so they need it even if no parser does.
        detokenize=detokenize or bool(sampling.stop),
        logit_bias=dict(sampling.logit_bias) or None,
        logprobs=sampling.logprobs,
        structured_outputs=_structured_outputs(sampling.constraint),
        extra_args=_extra_args(sampling.extra),
        skip_clone=True,  # made for this run alone
        **_output_parameters(sampling.step_tokens, max_tokens),
    )


def _output_parameters(step_tokens: int, max_tokens: int) -> dict[str, Any]:
    if step_tokens > max_tokens:  # no stream to feed: one step with the whole output
        return {"output_kind": RequestOutputKind.FINAL_ONLY}
    return {"output_kind": RequestOutputKind.DELTA, "stream_interval": step_tokens}


def _structured_outputs(constraint: Constraint | None) -> StructuredOutputsParams | None:
    if constraint is None:
        return None
    name, convert = CONSTRAINTS[constraint.kind]
    for option in constraint.options.keys() - CONSTRAINT_OPTIONS:
        raise RequestError(
            f"Unknown parameter: 'structured_outputs.{option}'.",
            param=f"structured_outputs.{option}",
            code="unknown_parameter",
        )
    return StructuredOutputsParams(**{name: convert(constraint.value)}, **constraint.options)


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


def _first_set(*values: Any) -> Any:
    """Return the first value that is not None, else None."""
    return next((value for value in values if value is not None), None)
