"""What is wrong with a request although each of its fields is well formed
(docs/reference/api.md#rules-between-fields)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from antiphon.domain.errors import RequestError, missing_parameter
from antiphon.domain.request import CreateResponse, JsonSchemaFormat

Check = Callable[[CreateResponse], RequestError | None]

CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


def check_request(request: CreateResponse) -> None:
    """Raises: RequestError of the first rule that the request breaks."""
    _check(request, RULES)


def check_conversation(request: CreateResponse) -> None:
    """As check_request, where nothing is to be answered. Raises: RequestError."""
    _check(request, RULES_OF_CONVERSATIONS)


def _check(request: CreateResponse, rules: Sequence[Check]) -> None:
    for rule in rules:
        error = rule(request)
        if error is not None:
            raise error


def constraint_of(request: CreateResponse) -> tuple[str, Any] | None:
    """Return the one constraint of `structured_outputs`, as (kind, value)."""
    given = _constraints(request)
    return given[0] if given else None


def _constraints(request: CreateResponse) -> list[tuple[str, Any]]:
    given = request.structured_outputs
    if given is None:
        return []
    values = ((kind, getattr(given, kind)) for kind in CONSTRAINTS)
    return [(kind, value) for kind, value in values if value not in (None, False)]


def _model_is_named(request: CreateResponse) -> RequestError | None:
    if request.model:
        return None
    return missing_parameter("model")


def _something_to_answer(request: CreateResponse) -> RequestError | None:
    sources = (
        request.input,
        request.previous_response_id,
        request.conversation,
        request.prompt,
        request.previous_input_messages,
    )
    if any(source is not None for source in sources):
        return None
    return missing_parameter("input")


def _exclusive(first: str, second: str) -> Check:
    def check(request: CreateResponse) -> RequestError | None:
        if getattr(request, first) is None or getattr(request, second) is None:
            return None
        return RequestError(
            f"Mutually exclusive parameters: {first!r} and {second!r}. Send only one of them.",
            param=second,
            code="mutually_exclusive_parameters",
        )

    return check


def _background_is_stored(request: CreateResponse) -> RequestError | None:
    if not request.background or request.store is not False:
        return None
    return RequestError(
        "'background' can only be used when 'store' is true.",
        param="background",
        code="invalid_value",
    )


def _one_constraint(request: CreateResponse) -> RequestError | None:
    if request.structured_outputs is None:
        return None
    if len(_constraints(request)) != 1:
        return RequestError(
            f"'structured_outputs' needs exactly one of {', '.join(CONSTRAINTS)}.",
            param="structured_outputs",
            code="invalid_value",
        )
    if request.text is not None and request.text.format is not None:
        return RequestError(
            "Cannot specify both structured_outputs and text.format.",
            param="structured_outputs",
            code="mutually_exclusive_parameters",
        )
    return None


def _schema_is_named_right(request: CreateResponse) -> RequestError | None:
    wanted = request.text.format if request.text else None
    if not isinstance(wanted, JsonSchemaFormat):
        return None
    kind = wanted.schema.get("type")
    if wanted.strict and kind is not None and kind != "object":
        return RequestError(
            f"Invalid schema for response_format {wanted.name!r}: its type must be 'object'.",
            param="text.format.schema",
            code="invalid_json_schema",
        )
    return None


RULES_OF_CONVERSATIONS: Sequence[Check] = (
    _exclusive("previous_response_id", "conversation"),
    _exclusive("previous_response_id", "previous_input_messages"),
    _exclusive("conversation", "previous_input_messages"),
    _one_constraint,
    _schema_is_named_right,
)
RULES: Sequence[Check] = (
    _model_is_named,
    *RULES_OF_CONVERSATIONS,
    _something_to_answer,
    _background_is_stored,
)
"""In the order in which they are told to the client."""
