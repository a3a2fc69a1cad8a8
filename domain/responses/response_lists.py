"""Lists of responses: what a list shows of each, and which ones a filter finds
(docs/reference/api.md#list-responses)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import UNSET, Struct, UnsetType

from antiphon.domain.responses.metrics import ResponseMetrics
from antiphon.domain.responses.preview import ResponsePreview
from antiphon.domain.responses.response import (
    ConversationRef,
    Failure,
    IncompleteDetails,
    Response,
)
from antiphon.domain.responses.usage import Usage


class ResponseSummary(Struct, frozen=True, kw_only=True):
    """A response without its input, its output, its instructions and its tools.

    In the answer of a search, `match` is the text around words that were searched for.
    """

    id: str
    object: str = "response"
    created_at: int
    completed_at: int | None = None
    status: str = "in_progress"
    background: bool = False
    error: Failure | None = None
    incomplete_details: IncompleteDetails | None = None
    model: str
    previous_response_id: str | None = None
    conversation: ConversationRef | None = None
    service_tier: str = "default"
    usage: Usage | None = None
    metadata: dict[str, str] = {}
    metrics: ResponseMetrics | UnsetType = UNSET
    preview: ResponsePreview | UnsetType = UNSET
    match: str | UnsetType = UNSET

    @property
    def awaits_approval(self) -> bool:
        """Whether its client has to approve or deny a call."""
        return (
            self.status == "completed"
            and self.preview is not UNSET
            and self.preview.awaits_approval
        )


_SHARED = tuple(name for name in ResponseSummary.__struct_fields__ if name != "match")

_decode_summary = msgspec.json.Decoder(ResponseSummary).decode


def summary_from(body: bytes) -> ResponseSummary:
    """Return the summary of a response, whose JSON may have no output.

    >>> summary_from(b'{"id": "resp_1", "created_at": 1, "model": "m", "tools": []}').status
    'in_progress'
    """
    return _decode_summary(body)


def summary_of(response: Response) -> ResponseSummary:
    return ResponseSummary(
        **{name: getattr(response, name) for name in _SHARED},
    )


class ResponseFilter(Struct, frozen=True, kw_only=True):
    """Which responses a list has: those that match everything that is set.

    `key` is the id or the name of an API key, `door` the API that its client speaks. `tool` is the
    type or the name of a tool that this server called, or the label of its server. `error` is the
    code of a failure, or the reason of an incomplete response. Times are seconds since the epoch.
    """

    statuses: frozenset[str] = frozenset()
    model: str | None = None
    key: str | None = None
    door: str | None = None
    conversation: str | None = None
    previous_response_id: str | None = None
    tool: str | None = None
    error: str | None = None
    created_after: float | None = None
    created_before: float | None = None
    metadata: Mapping[str, str] = {}
    awaits_approval: bool | None = None

    def matches(self, response: ResponseSummary) -> bool:
        """Return whether the list has this response."""
        conversation = response.conversation and response.conversation.id
        return (
            (not self.statuses or response.status in self.statuses)
            and self.model in (None, response.model)
            and self.conversation in (None, conversation)
            and self.previous_response_id in (None, response.previous_response_id)
            and (self.created_after is None or response.created_at > self.created_after)
            and (self.created_before is None or response.created_at < self.created_before)
            and (self.key is None or self.key in _keys_of(response))
            and self.door in (None, _door_of(response))
            and (self.error is None or self.error in _errors_of(response))
            and (self.tool is None or self.tool in _tools_of(response))
            and self.awaits_approval in (None, response.awaits_approval)
            and self.metadata.items() <= response.metadata.items()
        )


def _keys_of(response: ResponseSummary) -> tuple[str, ...]:
    metrics = response.metrics
    return () if metrics is UNSET else (metrics.key_id, metrics.key_name)


def _door_of(response: ResponseSummary) -> str | None:
    return None if response.metrics is UNSET else response.metrics.door


def _errors_of(response: ResponseSummary) -> tuple[str | None, ...]:
    failure, details = response.error, response.incomplete_details
    return (failure.code if failure else None), (details.reason if details else None)


def _tools_of(response: ResponseSummary) -> frozenset[str]:
    turns = () if response.metrics is UNSET else response.metrics.turns
    calls = (call for turn in turns for call in turn.tool_calls)
    return frozenset(name for call in calls for name in (call.type, call.name, call.server))
