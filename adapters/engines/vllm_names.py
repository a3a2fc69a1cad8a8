"""vLLM's names for what our ports name, for the engine in this process and for vLLM over HTTP.

Nothing here needs vLLM.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from antiphon.adapters.engines.vllm_schemas import rewrite_schemas
from antiphon.application.ports import Constraint, Sampling, Turn
from antiphon.domain.errors import CONTEXT_EXCEEDED, RequestError
from antiphon.domain.requests.decisions import too_many_answers

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

API_FIELD_OF = {"max_tokens": "max_output_tokens", "logprobs": "top_logprobs"}
"""The API's names of parameters that vLLM names differently."""

FINISH_REASONS = {"stop": "stop", "length": "length", "repetition": "stop"}
"""vLLM's reasons for a normal end; the others (`abort`, `error`) are failures of the engine."""

FAILURE_MESSAGES = {
    "abort": "The engine aborted this run.",
    "error": "The engine could not continue this run; it may succeed if you try again.",
}

_PARAMETER_SUFFIX = re.compile(r" ?\(parameter=.*\)\Z", re.DOTALL)


def sampling_fields(
    sampling: Sampling, *, defaults: Mapping[str, Any], remaining_tokens: int, detokenize: bool
) -> dict[str, Any]:
    """Return the fields that both engines have by these names; a field may be None."""
    fields = {
        name: first_set(getattr(sampling, name), defaults.get(name)) for name in DEFAULTED_FIELDS
    }
    max_tokens = min(
        remaining_tokens,
        first_set(sampling.max_tokens, defaults.get("max_tokens"), remaining_tokens),
    )
    return {
        **fields,
        "seed": sampling.seed,
        "max_tokens": max_tokens,
        "stop_token_ids": list(sampling.stop_token_ids),
        "ignore_eos": sampling.ignore_eos,
        "skip_special_tokens": sampling.skip_special_tokens,
        "detokenize": detokenize,
        "logit_bias": dict(sampling.logit_bias) or None,
        "logprobs": sampling.logprobs,
    }


def answer_fields(tokens: Sequence[int], *, most: int) -> dict[str, Any]:
    """Return the fields of a run that writes one of these tokens and tells how likely each is.

    vLLM takes the log probabilities before it looks at what is allowed.
    Raises: RequestError for more than so many.
    """
    if len(tokens) > most:
        raise too_many_answers(len(tokens), most)
    ids = list(tokens)
    return {"allowed_token_ids": ids, "logprob_token_ids": ids, "logprobs": len(ids)}


def structured_outputs(constraint: Constraint, *, field: str) -> dict[str, Any]:
    """Return the fields of vLLM's structured outputs; `field` is that of the request.

    Raises: RequestError for unknown options, and for a schema that cannot be enforced.
    """
    name, convert = CONSTRAINTS[constraint.kind]
    for option in constraint.options.keys() - CONSTRAINT_OPTIONS:
        raise RequestError(
            f"Unknown parameter: 'structured_outputs.{option}'.",
            param=f"structured_outputs.{option}",
            code="unknown_parameter",
        )
    value = constraint.value
    if constraint.kind in ("json_schema", "structural_tag"):
        value = rewrite_schemas(constraint.kind, value, field=field)
    return {name: convert(value), **constraint.options}


def extra_arguments(extra: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the `extra_args` of a run. Raises: RequestError for a field that vLLM lacks."""
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


def check_priority(priority: int, *, is_scheduled: bool) -> None:
    """Raises: RequestError for a priority that vLLM would accept and ignore."""
    if priority and not is_scheduled:
        raise RequestError(
            "'priority' needs an engine that was started with --scheduling-policy priority.",
            param="priority",
            code="unsupported_parameter",
        )


def remaining_tokens(prompt_tokens: int, context_length: int) -> int:
    """Return the room for output. Raises: RequestError if there is none."""
    if prompt_tokens >= context_length:
        raise RequestError(
            f"Your input has {prompt_tokens} tokens; the context window of "
            f"this model is {context_length} tokens. Please shorten your input.",
            param="input",
            code=CONTEXT_EXCEEDED,
        )
    return context_length - prompt_tokens


def refusal(message: str, *, parameter: str | None, default_param: str | None) -> RequestError:
    """Return vLLM's refusal as ours; `default_param` is the field to blame if vLLM names none.

    >>> refusal("Too hot. (parameter=x, value=7)", parameter="logprobs", default_param=None).message
    'Too hot.'
    """
    param = API_FIELD_OF.get(parameter, parameter) if parameter else default_param
    return RequestError(_PARAMETER_SUFFIX.sub("", message), param=param)


def constrained_field(turn: Turn) -> str:
    """Return the field that the constraint most likely comes from: constraints do not say."""
    if turn.text.format["type"] == "json_schema":
        return "text.format.schema"
    return "tools" if turn.tools else "structured_outputs"


def first_set(*values: Any) -> Any:
    """Return the first value that is not None, else None."""
    return next((value for value in values if value is not None), None)
