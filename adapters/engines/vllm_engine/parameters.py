"""Translates Sampling to vLLM's sampling parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

from antiphon.adapters.engines.vllm_names import (
    answer_fields,
    extra_arguments,
    first_set,
    sampling_fields,
    structured_outputs,
)
from antiphon.application.ports import Constraint, Sampling

NEUTRAL_VALUES = {"top_k": 0, "min_p": 0.0}
"""Defaults of the parameters for which vLLM does not accept None."""

MAX_ANSWERS = 128
"""The most tokens whose log probabilities vLLM gives a run."""


def sampling_params(
    sampling: Sampling,
    *,
    defaults: Mapping[str, Any],
    remaining_tokens: int,
    detokenize: bool,
    constrained_field: str,
) -> SamplingParams:
    """Return vLLM's parameters for at most `remaining_tokens` of output.

    Raises: vLLM's errors, and RequestError for a constraint that cannot be enforced.
    """
    fields = sampling_fields(
        sampling, defaults=defaults, remaining_tokens=remaining_tokens, detokenize=detokenize
    )
    neutral = {name: first_set(fields[name], value) for name, value in NEUTRAL_VALUES.items()}
    if sampling.answer_tokens:
        fields |= answer_fields(sampling.answer_tokens, most=MAX_ANSWERS) | {"logprobs": None}
    return SamplingParams.from_optional(
        **(fields | neutral),
        structured_outputs=_structured_outputs(sampling.constraint, constrained_field),
        prompt_logprobs=sampling.prompt_logprobs,
        extra_args=extra_arguments(sampling.extra),
        # Slow tokenizers, as Kimi's, would write a blank into markers of several tokens.
        spaces_between_special_tokens=False,
        skip_clone=True,  # made for this run alone
        **_output_parameters(sampling.step_tokens, fields["max_tokens"]),
    )


def _output_parameters(step_tokens: int, max_tokens: int) -> dict[str, Any]:
    if step_tokens > max_tokens:  # no stream to feed: one step with the whole output
        return {"output_kind": RequestOutputKind.FINAL_ONLY}
    return {"output_kind": RequestOutputKind.DELTA, "stream_interval": step_tokens}


def _structured_outputs(
    constraint: Constraint | None, field: str
) -> StructuredOutputsParams | None:
    if constraint is None:
        return None
    return StructuredOutputsParams(**structured_outputs(constraint, field=field))
