"""A turn as the body of a Chat Completions request."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from msgspec import Struct

from antiphon.adapters.formats.fitting import ALTERNATING
from antiphon.adapters.formats.transcript import function_of
from antiphon.adapters.models.chat_completions.capabilities import SAMPLING_FIELDS, check_binding
from antiphon.application.ports import Constraint, Turn
from antiphon.domain.errors import RequestError
from antiphon.domain.json import Json
from antiphon.domain.tools import ToolSpec

OUTPUT_LIMITS = ("max_tokens", "max_completion_tokens")
"""The old name, which all but OpenAI know, and the new one."""

SALTED = frozenset({"vllm", "sglang"})
"""The kinds of servers whose prompt cache keeps tenants apart by a salt."""

CONSTRAINED = frozenset({"vllm"})
"""The kinds of servers that know `structured_outputs`. Others do nothing with it, and say nothing.
"""

SPELLINGS: Mapping[str, Mapping[str, str]] = {
    "llamacpp": {"repetition_penalty": "repeat_penalty"},
    "lmstudio": {"repetition_penalty": "repeat_penalty"},
    "mistralai": {"seed": "random_seed"},
}
"""By kind of server, fields that it knows under another name."""


class RequestBody(Struct, frozen=True, kw_only=True):
    """A body, the features in it that a server might refuse, and those that were left out."""

    fields: Json
    used: frozenset[str]
    ignored: frozenset[str]


def write_body(
    turn: Turn,
    messages: Sequence[Json],
    *,
    model: str,
    missing: Collection[str],
    kind: str = "",
    extra: Mapping[str, Any] = {},
) -> RequestBody:
    """Return the request for a turn, without the features that are `missing`.

    Raises: RequestError for what cannot be left out.
    """
    wanted = _wanted_fields(turn, kind)
    features = set(wanted) | _features_in(turn, messages)
    ignored = features & set(missing)
    if f"reasoning_effort {turn.effort}" in ignored:
        ignored.add("reasoning_effort")
    check_binding(ignored)
    names = SPELLINGS.get(kind, {})
    fields: Json = {"model": model, "messages": list(messages), "stream": True}
    for name, value in wanted.items():
        if name == "max_tokens":
            fields[OUTPUT_LIMITS[name in ignored]] = value
        elif name == "tools":
            fields[name] = _functions(turn, is_strict="strict" not in ignored)
        elif name not in ignored:
            fields |= value if name == "logprobs" else {names.get(name, name): value}
    return RequestBody(
        fields=fields | dict(extra),
        used=frozenset(features - ignored),
        ignored=frozenset(ignored),
    )


def offered_tools(turn: Turn) -> Sequence[ToolSpec]:
    """Return the tools that the server is told of.

    Servers know no list of allowed tools, and some call tools whatever the choice is. So they are
    told only of those that may be called.
    """
    return [tool for tool in turn.tools if turn.choice.allows(tool.name)]


def _wanted_fields(turn: Turn, kind: str) -> Json:
    """Return the fields of the body that a server might refuse."""
    sampling = turn.sampling
    wanted = {
        name: getattr(sampling, name)
        for name in SAMPLING_FIELDS
        if getattr(sampling, name) is not None
    }
    optional = {
        "stream_options": {"include_usage": True},
        "max_tokens": sampling.max_tokens,
        "stop_token_ids": list(sampling.stop_token_ids),
        "ignore_eos": sampling.ignore_eos,
        "logit_bias": dict(sampling.logit_bias),
        "priority": turn.priority,
        "chat_template_kwargs": dict(turn.template_kwargs),
        "reasoning_effort": turn.effort,
        "cache_salt": turn.cache_salt if kind in SALTED else None,
        **sampling.extra,
    }
    wanted |= {name: value for name, value in optional.items() if value}
    if sampling.logprobs is not None:
        wanted["logprobs"] = {"logprobs": True} | (
            {"top_logprobs": sampling.logprobs} if sampling.logprobs else {}
        )
    return wanted | _response_format(turn, server=kind) | _tool_fields(turn)


def _features_in(turn: Turn, messages: Sequence[Json]) -> set[str]:
    """Return the features of a request that are no fields of its body."""
    features: set[str] = set()
    if any(tool.strict for tool in offered_tools(turn)):
        features.add("strict")
    if turn.effort is not None:
        features.add(f"reasoning_effort {turn.effort}")
    if ALTERNATING.apply(messages)[1]:
        features.add("role_order")
    for message in messages:
        if "reasoning_content" in message or "reasoning" in message:
            features.add("reasoning_content")
        if isinstance(message.get("content"), list):  # texts alone are one text
            features.add("images")
        if message.get("tool_calls"):
            features.add("long_call_ids")
    return features


def _functions(turn: Turn, *, is_strict: bool) -> list[Json]:
    functions = []
    for tool in offered_tools(turn):
        function = function_of(tool)
        if tool.strict and is_strict:
            function["function"]["strict"] = True
        functions.append(function)
    return functions


def _tool_fields(turn: Turn) -> Json:
    tools = offered_tools(turn)
    if not tools:
        return {}
    fields: Json = {"tools": True}
    if not turn.parallel_tool_calls:
        fields["parallel_tool_calls"] = False
    if turn.choice.mode == "required":
        fields["tool_choice"] = "required"
        if turn.choice.names is not None and len(tools) == 1:
            fields["tool_choice"] = {"type": "function", "function": {"name": tools[0].name}}
    return fields


def _response_format(turn: Turn, *, server: str) -> Json:
    if turn.sampling.constraint is not None:
        return _constraint_fields(turn.sampling.constraint, server=server)
    text_format = turn.text.format
    kind = text_format.get("type", "text")
    if kind == "json_object":
        return {"response_format": {"type": "json_object"}}
    if kind != "json_schema":
        return {}
    keys = ("name", "description", "schema", "strict")
    schema = {key: text_format[key] for key in keys if text_format.get(key) is not None}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _constraint_fields(constraint: Constraint, *, server: str) -> Json:
    write = CONSTRAINTS.get(constraint.kind)
    if write is None and server in CONSTRAINED:
        write = VLLM_CONSTRAINTS.get(constraint.kind)
    if write is None:
        raise RequestError(
            f"Unsupported parameter: 'structured_outputs.{constraint.kind}' is not supported by "
            "the server that runs this model.",
            param=f"structured_outputs.{constraint.kind}",
            code="unsupported_parameter",
        )
    return write(constraint)


CONSTRAINTS: Mapping[str, Callable[[Constraint], Json]] = {
    "json_object": lambda _: {"response_format": {"type": "json_object"}},
    "json_schema": lambda constraint: {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": constraint.value, "strict": True},
        }
    },
}
"""By kind of constraint, the fields for it that the API has."""

VLLM_CONSTRAINTS: Mapping[str, Callable[[Constraint], Json]] = dict.fromkeys(
    ("regex", "choice", "grammar"),
    lambda constraint: {"structured_outputs": {constraint.kind: constraint.value}},
)
"""By kind of constraint, the fields for it that only vLLM has."""
