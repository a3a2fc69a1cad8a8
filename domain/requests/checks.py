"""Check the rules between a request's fields
(docs/reference/api.md#rules-between-fields)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from antiphon.domain.errors import RequestError, missing_parameter
from antiphon.domain.json_schema import find_schema_problem
from antiphon.domain.requests.request import CreateResponse, JsonSchemaFormat

Check = Callable[[CreateResponse], RequestError | None]

MAX_CONSTRAINT_CHARS = 262_144
"""Of a regular expression, a grammar, or all choices: engines compile them for all clients."""

EXCLUSIVE_FIELDS = (
    ("previous_response_id", "conversation"),
    ("previous_response_id", "previous_input_messages"),
    ("conversation", "previous_input_messages"),
)
"""Pairs of fields of which a request may have one, in the order in which they are checked."""

CONVERSATION_FIELDS = (
    "input",
    "instructions",
    "previous_response_id",
    "conversation",
    "prompt",
    "previous_input_messages",
    "tools",
    "tool_choice",
    "reasoning",
    "text",
    "context_management",
    "multi_agent",
)
"""What a request cannot have beside `raw_prompt`: all of it is written by a model's template."""

CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


def check_request(request: CreateResponse) -> None:
    """Check all rules of a request. Raises: RequestError for the first rule that it breaks."""
    for rule in RULES:
        if (error := rule(request)) is not None:
            raise error


def check_conversation(request: CreateResponse) -> None:
    """Check only the rules that do not require anything to answer. Raises: RequestError."""
    for rule in CONVERSATION_RULES:
        if (error := rule(request)) is not None:
            raise error


def constraint_of(request: CreateResponse) -> tuple[str, Any] | None:
    """Return the constraint in `structured_outputs` as (kind, value), None if there is none."""
    constraints = _constraints_of(request)
    return constraints[0] if constraints else None


def count_chars(constraint: Any) -> int:
    """Return the characters of a text or of a list of texts; 0 for a schema."""
    if isinstance(constraint, str):
        return len(constraint)
    return sum(map(len, constraint)) if isinstance(constraint, list | tuple) else 0


def _constraints_of(request: CreateResponse) -> list[tuple[str, Any]]:
    outputs = request.structured_outputs
    if outputs is None:
        return []
    values = ((kind, getattr(outputs, kind)) for kind in CONSTRAINTS)
    return [(kind, value) for kind, value in values if value not in (None, False)]


def _check_model(request: CreateResponse) -> RequestError | None:
    if request.model:
        return None
    return missing_parameter("model")


def _check_input_exists(request: CreateResponse) -> RequestError | None:
    sources = (
        request.input,
        request.previous_response_id,
        request.conversation,
        request.prompt,
        request.previous_input_messages,
        request.raw_prompt,
    )
    if sources.count(None) < len(sources):
        return None
    return missing_parameter("input")


def _check_exclusive(request: CreateResponse) -> RequestError | None:
    for first, second in EXCLUSIVE_FIELDS:
        if getattr(request, first) is None or getattr(request, second) is None:
            continue
        return _excluded(first, second)
    return None


def _excluded(first: str, second: str) -> RequestError:
    return RequestError(
        f"Mutually exclusive parameters: {first!r} and {second!r}. Send only one of them.",
        param=second,
        code="mutually_exclusive_parameters",
    )


def _check_background(request: CreateResponse) -> RequestError | None:
    if not request.background or request.store is not False:
        return None
    return RequestError(
        "'background' can only be used when 'store' is true.",
        param="background",
        code="invalid_value",
    )


def _check_agents(request: CreateResponse) -> RequestError | None:
    if not request.has_agents:
        return None
    if request.store is False:
        return RequestError(
            "'multi_agent' can only be used when 'store' is true: sub-agents are stored responses.",
            param="multi_agent",
            code="invalid_value",
        )
    if request.max_tool_calls is not None:
        return RequestError(
            "'max_tool_calls' cannot be used with 'multi_agent'; 'max_output_tokens' bounds the "
            "whole tree of agents.",
            param="max_tool_calls",
            code="unsupported_parameter",
        )
    return None


def _check_structured_outputs(request: CreateResponse) -> RequestError | None:
    if request.structured_outputs is None:
        return None
    constraints = _constraints_of(request)
    if len(constraints) != 1:
        return RequestError(
            f"'structured_outputs' needs exactly one of {', '.join(CONSTRAINTS)}.",
            param="structured_outputs",
            code="invalid_value",
        )
    ((kind, value),) = constraints
    if count_chars(value) > MAX_CONSTRAINT_CHARS:
        return RequestError(
            f"'structured_outputs.{kind}' may have {MAX_CONSTRAINT_CHARS} characters in all.",
            param=f"structured_outputs.{kind}",
            code="string_above_max_length",
        )
    if request.text is not None and request.text.format is not None:
        return RequestError(
            "Cannot specify both structured_outputs and text.format.",
            param="structured_outputs",
            code="mutually_exclusive_parameters",
        )
    return None


def _check_schema(request: CreateResponse) -> RequestError | None:
    outputs = request.structured_outputs
    schema = outputs.json if outputs is not None else None
    if isinstance(schema, dict) and (problem := find_schema_problem(schema)):
        return _invalid_schema("structured_outputs.json", f"Invalid schema: {problem}.")
    text_format = request.text.format if request.text else None
    if not isinstance(text_format, JsonSchemaFormat):
        return None
    what = f"Invalid schema for response_format {text_format.name!r}"
    kind = text_format.schema.get("type")
    if text_format.strict and kind is not None and kind != "object":
        return _invalid_schema("text.format.schema", f"{what}: its type must be 'object'.")
    if problem := find_schema_problem(text_format.schema, is_strict=text_format.strict is True):
        return _invalid_schema("text.format.schema", f"{what}: {problem}.")
    return None


def _invalid_schema(param: str, message: str) -> RequestError:
    return RequestError(message, param=param, code="invalid_json_schema")


def _check_raw_prompt(request: CreateResponse) -> RequestError | None:
    raw = request.raw_prompt
    if raw is None:
        return None
    if (raw.text is None) == (raw.tokens is None):
        return RequestError(
            "'raw_prompt' needs either 'text' or 'tokens'.",
            param="raw_prompt",
            code="invalid_value",
        )
    if not raw.text and not raw.tokens:
        return RequestError("The prompt is empty.", param="raw_prompt", code="invalid_value")
    if raw.echo_only and not raw.echo:
        return RequestError(
            "'raw_prompt.echo_only' needs 'raw_prompt.echo'.",
            param="raw_prompt.echo_only",
            code="invalid_value",
        )
    for name in CONVERSATION_FIELDS:
        if getattr(request, name) is not None:
            return _excluded("raw_prompt", name)
    if request.store is not False:  # nothing could go on from it
        return RequestError(
            "'raw_prompt' can only be used when 'store' is false.",
            param="raw_prompt",
            code="invalid_value",
        )
    return None


CONVERSATION_RULES: Sequence[Check] = (
    _check_exclusive,
    _check_structured_outputs,
    _check_schema,
)
RULES: Sequence[Check] = (
    _check_model,
    *CONVERSATION_RULES,
    _check_input_exists,
    _check_raw_prompt,
    _check_background,
    _check_agents,
)
"""The rules in the order in which they are checked."""
