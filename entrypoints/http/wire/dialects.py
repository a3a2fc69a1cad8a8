"""The differences between OpenAI's API and Open Responses on the wire
(docs/reference/api.md#dialects).

The server uses OpenAI's names internally. A dialect is applied only when an event, a response, or
an error is encoded as JSON; the log and the store do not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import asdict

from antiphon.application.responses.compact import CompactedWindow
from antiphon.domain import events as e
from antiphon.domain.errors import RequestError
from antiphon.domain.responses.response import Response
from antiphon.entrypoints.http.api.requests import (
    Connection,
    HttpRequest,
    header,
    speaks_messages,
)

HEADER = "x-antiphon-dialect"
DIALECT_HEADER = HEADER.encode()
_encode = msgspec.json.Encoder().encode


class Dialect(Struct, frozen=True, kw_only=True):
    """The names and shapes of one specification.

    `renamed` maps OpenAI's event names to others. `error_types` are keyed by HTTP status, with 0
    for any other below 500 and 500 for any other. `statuses` are sent in place of others.
    `nests_errors`: an `error` event contains its error as an object. `tags_errors`: an error is an
    object with a type and the id of its request. `has_statuses`: every item has a status. `done`
    follows the last event. `keepalive_event` is the sign of life for clients that need events,
    b"" if comments are all there is. `always_events`: all clients need events.
    """

    name: str
    renamed: Mapping[str, str] = {}
    error_types: Mapping[int, str]
    statuses: Mapping[int, int] = {}
    nests_errors: bool = False
    tags_errors: bool = False
    has_statuses: bool = False
    done: bytes = b""
    keepalive_event: bytes = b'event: keepalive\ndata: {"type":"keepalive"}\n\n'
    always_events: bool = False

    def status(self, status: int) -> int:
        """Return the HTTP status that is sent for this one."""
        return self.statuses.get(status, status)

    def error_type(self, status: int) -> str:
        if status >= 500:
            default = self.error_types.get(500, "server_error")
            return self.error_types.get(status, default)
        return self.error_types.get(status, self.error_types[0])

    def event_name(self, name: str) -> str:
        return self.renamed.get(name, name)

    def fields_of(self, event: e.Event) -> dict[str, Any]:
        """Return the fields of an event, with its type."""
        fields = {name: value for name, value in asdict(event).items() if value is not UNSET}
        return {"type": self.event_name(str(type(event).__struct_config__.tag)), **fields}

    @property
    def encode(self) -> Callable[[Any], bytes]:
        """The JSON encoder for events and responses: plain msgspec if nothing differs."""
        differs = self.renamed or self.nests_errors or self.has_statuses
        return self._encode if differs else _encode

    def _encode(self, value: Any) -> bytes:
        if isinstance(value, e.Error) and self.nests_errors:
            error = {"type": "server_error", "code": value.code, "message": value.message}
            error["param"] = value.param
            return _encode(
                {"type": "error", "sequence_number": value.sequence_number, "error": error}
            )
        if self.has_statuses and isinstance(value, _WITH_ITEMS):
            # `to_builtins` cannot read the Raw of tools and of a client's items.
            return _encode(_add_statuses(msgspec.json.decode(_encode(value))))
        if type(value).__struct_config__.tag in self.renamed:
            return _encode(self.fields_of(value))
        return _encode(value)


_WITH_ITEMS = (
    Response,
    e.ItemAdded,
    e.ItemDone,
    e.Completed,
    e.Incomplete,
    e.Failed,
    CompactedWindow,
)


def _add_statuses(value: dict[str, Any]) -> dict[str, Any]:
    is_added = value.get("type") == e.ItemAdded.__struct_config__.tag
    added_or_done = value.get("item")
    output = value.get("response", value).get("output") or ()
    for item in [added_or_done] if added_or_done else output:
        if not item.get("status"):
            final_status = "failed" if item.get("error") else "completed"
            item["status"] = "in_progress" if is_added else final_status
    return value


OPENAI = Dialect(
    name="openai",
    error_types={0: "invalid_request_error", 429: "rate_limit_error"},
)
OPEN_RESPONSES = Dialect(
    name="open-responses",
    renamed={
        "response.reasoning_text.delta": "response.reasoning.delta",
        "response.reasoning_text.done": "response.reasoning.done",
    },
    error_types={0: "invalid_request", 404: "not_found", 429: "too_many_requests"},
    nests_errors=True,
    has_statuses=True,
    done=b"data: [DONE]\n\n",
)
CHAT = Dialect(
    name="chat",
    error_types=OPENAI.error_types,
    done=b"data: [DONE]\n\n",
    keepalive_event=b"",  # its clients would read one as a chunk
)
"""Not of a specification of responses: that of the doors for Chat Completions and Completions."""

MESSAGES = Dialect(
    name="messages",
    error_types={
        0: "invalid_request_error",
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        500: "api_error",
        503: "overloaded_error",
        529: "overloaded_error",
    },
    statuses={503: 529},
    tags_errors=True,
    keepalive_event=b'event: ping\ndata: {"type":"ping"}\n\n',
    always_events=True,
)
"""That of the door for Messages."""

DOORS: Mapping[str, Dialect] = {"/v1/chat/completions": CHAT, "/v1/completions": CHAT}
"""The dialects of paths that have one of their own, whatever the settings say."""

DIALECTS: Mapping[str, Dialect] = {each.name: each for each in (OPENAI, OPEN_RESPONSES)}


def dialect_or_default(default: Dialect, request: Connection) -> Dialect:
    """Return the dialect of the request's door, or that its header names, or the default."""
    if (door := DOORS.get(request.scope["path"])) is not None:
        return door
    if speaks_messages(request.scope):
        return MESSAGES
    return DIALECTS.get(header(request, HEADER.encode()), default)


def dialect_of(request: HttpRequest, default: Dialect) -> Dialect:
    """Return the dialect that the request's header names. Raises: RequestError."""
    name = header(request, HEADER.encode())
    if name and name not in DIALECTS:
        raise RequestError(
            f"There is no dialect {name[:100]!r}. There are: {', '.join(DIALECTS)}.",
            param=HEADER,
            code="invalid_value",
        )
    return DIALECTS.get(name, default)
