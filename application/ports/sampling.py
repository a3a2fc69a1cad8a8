"""The sampling parameters of an engine run, and the constraint on its output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct


class Constraint(Struct, frozen=True, kw_only=True):
    """A constraint on the engine's output, from the first token on.

    The type of `value` depends on `kind`: json_schema: a schema (dict); json_object: None;
    regex: a pattern; grammar: a Lark or EBNF text; choice: a list of strings; structural_tag: an
    xgrammar structural tag (dict). `options` are vLLM's switches (`disable_any_whitespace`…).
    """

    kind: Literal["json_schema", "json_object", "regex", "grammar", "choice", "structural_tag"]
    value: Any = None
    options: Mapping[str, Any] = {}


class Sampling(Struct, frozen=True, kw_only=True):
    """Sampling parameters. None means the model's default (its generation config), or the engine's.

    `logprobs`: the number of alternatives for each token, or None for no logprobs.
    `answer_tokens`: if there are any, the output has these tokens alone (see `Engine.generate`).
    `prompt_logprobs`: the same for the tokens of the prompt; only an engine that `scores_prompts`
    gets it.
    `step_tokens`: how many tokens the engine may collect in a step; 1 streams every token.
    `extra`: fields that the engine adapter passes on by name (`vllm_xargs`, `kv_transfer_params`…).
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = False
    logit_bias: Mapping[str, float] = {}
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    constraint: Constraint | None = None
    answer_tokens: tuple[int, ...] = ()
    step_tokens: int = 1
    extra: Mapping[str, Any] = {}


def json_of_sampling(sampling: Sampling) -> dict[str, Any]:
    """Return the parameters that are set, as JSON.

    >>> json_of_sampling(Sampling(temperature=0.5))
    {'temperature': 0.5}
    """
    return {
        name: value
        for name, value in msgspec.to_builtins(sampling, enc_hook=str).items()
        if value != DEFAULTS.get(name)
    }


ALL_AT_ONCE = 1 << 30
"""A value of `step_tokens` with which the engine may return everything in one step."""

DEFAULTS: Mapping[str, Any] = msgspec.to_builtins(Sampling())
