"""A vLLM server's error as ours. Nothing in it names the server."""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from antiphon.adapters.engines.vllm_names import refusal
from antiphon.domain.errors import CONTEXT_EXCEEDED, RequestError


class Outcome(enum.Enum):
    """The meaning of an error status for the request and the server."""

    INVALID = "no server will run this request"
    BUSY = "another server may run it now"
    FAILED = "the server is not usable"


OUTCOMES = {
    400: Outcome.INVALID,
    413: Outcome.INVALID,
    422: Outcome.INVALID,
    429: Outcome.BUSY,
    503: Outcome.BUSY,
}
"""All other error statuses are failures: 401 of a wrong key, 404 of a server that has another model
now, 5xx."""

CONTEXT_PARAMETERS = frozenset({"input_tokens", "max_model_len"})
CONTEXT_PHRASE = "longer than the maximum model length"


class VllmError(msgspec.Struct, frozen=True, kw_only=True):
    """The error object of vLLM, in a body and in an event."""

    message: str = ""
    param: str | None = None
    code: Any = None


class _ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    error: VllmError = VllmError()


_decoder = msgspec.json.Decoder(_ErrorBody)


def outcome_of(status: Any) -> Outcome:
    return OUTCOMES.get(status, Outcome.FAILED)


def read_details(body: bytes) -> VllmError:
    """Return the error in a body, an empty one if it has none."""
    try:
        return _decoder.decode(body).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        return VllmError()


def to_request_error(details: VllmError, *, default_param: str | None = None) -> RequestError:
    """Return the error for a client; `default_param` is the field to blame if vLLM names none."""
    if details.param in CONTEXT_PARAMETERS or CONTEXT_PHRASE in details.message:
        message = "Your input exceeds the context window of this model. Please shorten your input."
        return RequestError(message, param="input", code=CONTEXT_EXCEEDED)
    # A path like `body.token_ids` is in a request of ours, which the client does not know.
    parameter = None if details.param is None or "." in details.param else details.param
    message = details.message or "The model server refused the request."
    return refusal(message, parameter=parameter, default_param=default_param)
