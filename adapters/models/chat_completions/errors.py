"""The errors of a model's server as ours."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Mapping
from email.utils import parsedate_to_datetime
from time import time
from typing import Any

import msgspec

from antiphon.adapters.models.chat_completions.capabilities import FEATURES, SYNONYMS
from antiphon.adapters.upstreams.client import UpstreamRefused
from antiphon.domain.errors import (
    CONTEXT_EXCEEDED,
    AntiphonError,
    EngineDead,
    EngineError,
    ModelBusy,
    RequestError,
)

logger = logging.getLogger("antiphon.chat_completions")

MAX_MESSAGE_CHARS = 400
MAX_RETRY_AFTER_S = 3600.0
WRONG_SETTINGS = frozenset({401, 402, 403, 404, 405, 407})
"""The server does not know the key, the model or the path: the operator must change something."""
UNAVAILABLE = frozenset({502, 503, 529})
WRONG_REQUEST = frozenset({400, 409, 413, 415, 422})

CONTEXT = re.compile(
    r"context[ _-]?(length|window|size)|maximum (context|sequence|input) length|prompt is too long"
    r"|too many (input )?tokens|exceeds? the (model's |available )?(context|maximum)"
    r"|longer than the (model|maximum)|`inputs` tokens",
    re.IGNORECASE,
)
FILTER = re.compile(r"content[ _-]?(filter|policy|management)|moderation|safety", re.IGNORECASE)

IMAGES = re.compile(r"multimodal|multi-modal|image|vision", re.IGNORECASE)

REQUEST_FIELDS: Mapping[str, str] = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "tools": "tools",
    "model": "model",
    **{name: feature.path for name, feature in FEATURES.items() if feature.path},
}
"""The field of a body -> the request's field that it comes from."""


class UpstreamRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a server's error: its message, and the names of a code and of a field."""

    message: str
    code: str = ""
    param: str = ""

    @property
    def text(self) -> str:
        return " ".join(part for part in (self.param, self.code, self.message) if part)


def read_refusal(body: bytes) -> UpstreamRefusal:
    """Return what the body of an error says, in any of the shapes that servers have for it."""
    try:
        value: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return UpstreamRefusal(message=_one_line(body.decode(errors="replace")))
    while (inner := _inner(value)) is not None:
        value = inner
    if not isinstance(value, dict):
        return UpstreamRefusal(message=_one_line(str(value)))
    place = value.get("loc")
    param = value.get("param") or (place[-1] if isinstance(place, list) and place else "")
    message = value.get("message") or value.get("msg") or ""
    codes = (value.get("code"), value.get("type"))
    return UpstreamRefusal(
        message=_one_line(str(message)),
        code=" ".join(code for code in codes if isinstance(code, str)),
        param=param if isinstance(param, str) else "",
    )


def failure_message(failure: Any, redact: Callable[[str], str]) -> str:
    """Return the message for a server's error in the middle of an answer."""
    said = read_refusal(redact(msgspec.json.encode(failure).decode()).encode()).message
    start = "The model server failed while it wrote the answer"
    return f"{start}: {said}" if said and failure else f"{start}."


def _one_line(text: str) -> str:
    return " ".join(text[:MAX_MESSAGE_CHARS].split())


def _inner(value: Any) -> Any:
    """Return what is in the envelope of an error, None if there is no further one.

    FastAPI's errors are lists in `detail`, and some servers have those in a `message`.
    """
    if isinstance(value, list):
        return value[0] if value else None
    if not isinstance(value, dict):
        return None
    inner = next((value[key] for key in ("error", "detail") if value.get(key)), None)
    message = value.get("message")
    return message if inner is None and isinstance(message, dict | list) else inner


def is_context_exceeded(refusal: UpstreamRefusal) -> bool:
    return bool(CONTEXT.search(refusal.text))


def to_our_error(
    error: UpstreamRefused, refusal: UpstreamRefusal, *, model: str, used: Collection[str]
) -> AntiphonError:
    """Return our error for a server's. What clients must not know goes to the log alone.

    `refusal` is the error's, without the key; `used` are the features of the request.
    """
    status = error.status
    if status == 429:
        return ModelBusy(retry_after_s=_retry_after_s(error.retry_after))
    if is_context_exceeded(refusal) and (status in WRONG_REQUEST or status == 500):
        return RequestError(
            "Your input exceeds the context window of this model. Please adjust your input and try "
            "again.",
            param="input",
            code=CONTEXT_EXCEEDED,
        )
    if status in WRONG_REQUEST:
        return _request_error(refusal, used)
    logger.error("model %r: its server answered with status %d: %s", model, status, refusal.text)
    if status in WRONG_SETTINGS or status < 400:
        return EngineDead(f"The model's server does not serve this model (status {status}).")
    if status in UNAVAILABLE:
        return EngineDead(f"The model's server is not available (status {status}).")
    return EngineError(f"The model's server failed (status {status}).")


def _request_error(refusal: UpstreamRefusal, used: Collection[str]) -> RequestError:
    if FILTER.search(refusal.text):
        return RequestError(
            "The filter of the model's server refuses the input.",
            param="input",
            code="content_filter",
        )
    if "images" in used and IMAGES.search(refusal.text):
        return RequestError(
            "The model's server refuses the images of the input. Does the model read images?",
            param="input",
            code="unsupported_value",
        )
    return RequestError(
        f"The model's server refuses the request: {refusal.message or 'it does not say why'}",
        param=_field_in(refusal, used),
    )


def _field_in(refusal: UpstreamRefusal, used: Collection[str]) -> str | None:
    """Return the request's field that the server's error is about, if that can be told."""
    param = re.split(r"[.\[]", refusal.param)[0]
    if param:
        return REQUEST_FIELDS.get(SYNONYMS.get(param, param))
    names = [
        name
        for name in (*used, "messages")
        if name in REQUEST_FIELDS and re.search(rf"\b{name}\b", refusal.message)
    ]
    return REQUEST_FIELDS[names[0]] if len(names) == 1 else None


def _retry_after_s(value: str | None) -> float:
    """Return the seconds of a Retry-After header, which has a number or a date."""
    if value is None:
        return 1.0
    try:
        wait_s = float(value)
    except ValueError:
        try:
            wait_s = parsedate_to_datetime(value).timestamp() - time()
        except (ValueError, OverflowError):
            return 1.0
    return min(max(wait_s, 1.0), MAX_RETRY_AFTER_S) if wait_s == wait_s else 1.0
