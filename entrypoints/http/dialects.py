"""Where OpenAI's API and Open Responses differ on the wire
(docs/reference/api.md#dialects): one table.

Everything inside speaks OpenAI's names. A dialect is put on at the very edge, when an event, an
answer or an error becomes JSON; the log and the store know of none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.application.responses.compact import CompactedWindow
from antiphon.domain import events as e
from antiphon.domain.errors import RequestError
from antiphon.domain.response import Response
from antiphon.entrypoints.http.requests import Connection, HttpRequest, header

HEADER = "x-antiphon-dialect"
_encode = msgspec.json.Encoder().encode


class Dialect(Struct, frozen=True, kw_only=True):
    """`renamed` are events, by OpenAI's names; `error_types` are by HTTP status, 0 for any other
    below 500. `nests_errors`: an `error` event holds its error as an object. `has_statuses`: every
    item has a status. `done` is what follows the last event.
    """

    name: str
    renamed: Mapping[str, str] = {}
    error_types: Mapping[int, str]
    nests_errors: bool = False
    has_statuses: bool = False
    done: bytes = b""

    def error_type(self, status: int) -> str:
        if status >= 500:
            return self.error_types.get(status, "server_error")
        return self.error_types.get(status, self.error_types[0])

    def event_name(self, name: str) -> str:
        return self.renamed.get(name, name)

    @property
    def encode(self) -> Callable[[Any], bytes]:
        """Return what makes JSON of an event or a Response: msgspec alone where nothing differs."""
        differs = self.renamed or self.nests_errors or self.has_statuses
        return self._encode if differs else _encode

    def _encode(self, told: Any) -> bytes:
        if isinstance(told, e.Error) and self.nests_errors:
            error = {"type": "server_error", "code": told.code, "message": told.message}
            error["param"] = told.param
            return _encode(
                {"type": "error", "sequence_number": told.sequence_number, "error": error}
            )
        if self.has_statuses and isinstance(told, _WITH_ITEMS):
            # Not `to_builtins`, which cannot read the Raw of tools and of a client's items.
            return _encode(_with_statuses(msgspec.json.decode(_encode(told))))
        body = _encode(told)
        name = str(type(told).__struct_config__.tag)
        if name not in self.renamed:
            return body
        # The type comes first, always.
        return b'{"type":"%b"' % self.renamed[name].encode() + body[len(name) + 10 :]


_WITH_ITEMS = (
    Response,
    e.ItemAdded,
    e.ItemDone,
    e.Completed,
    e.Incomplete,
    e.Failed,
    CompactedWindow,
)


def _with_statuses(told: dict[str, Any]) -> dict[str, Any]:
    is_added = told.get("type") == e.ItemAdded.__struct_config__.tag
    item = told.get("item")
    output = told.get("response", told).get("output") or ()
    for each in [item] if item else output:
        if not each.get("status"):
            end = "failed" if each.get("error") else "completed"
            each["status"] = "in_progress" if is_added else end
    return told


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
DIALECTS: Mapping[str, Dialect] = {each.name: each for each in (OPENAI, OPEN_RESPONSES)}


def dialect_or_default(default: Dialect, request: Connection) -> Dialect:
    """Return the dialect that the request's header names, or the default."""
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
