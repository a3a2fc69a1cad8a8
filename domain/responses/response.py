"""The Response object (docs/reference/api.md#the-response-object).

Every key that is not UNSET is always sent.
"""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Raw, Struct, UnsetType, field, structs

from antiphon.domain.history.tool_uses import ClearedToolUses
from antiphon.domain.items import AnyItem
from antiphon.domain.json import Json
from antiphon.domain.requests.request import PromptParam
from antiphon.domain.responses.cache_diagnostics import CacheDiagnostics
from antiphon.domain.responses.guards import ResponseModeration
from antiphon.domain.responses.metrics import ResponseMetrics
from antiphon.domain.responses.preview import ResponsePreview
from antiphon.domain.responses.usage import TurnTokens, Usage

TERMINAL = frozenset({"completed", "incomplete", "failed", "cancelled"})
"""Final statuses of a response."""


class Failure(Struct, frozen=True, kw_only=True):
    """Why a response failed; docs/reference/errors.md#failed-responses lists the codes."""

    code: str
    message: str


class IncompleteDetails(Struct, frozen=True, kw_only=True):
    reason: str


class ConversationRef(Struct, frozen=True, kw_only=True):
    id: str


class InputTransformation(Struct, frozen=True, kw_only=True):
    """An input item that the model is not shown, and the reason
    (docs/reference/api.md#reasoning)."""

    type: str = "reasoning"
    id: str | None = None
    action: str = "removed"
    reason: Literal["organization_mismatch", "prefix_mismatch"]


class TextConfig(Struct, frozen=True, kw_only=True):
    """`format` is `{"type": "text" | "json_object"}` or a `json_schema`
    (docs/reference/api.md#text-formats)."""

    format: Json = field(default_factory=lambda: {"type": "text"})
    verbosity: str | None = "medium"


class CacheConfig(Struct, frozen=True, kw_only=True):
    mode: str
    ttl: str
    comparison_response_id: str | UnsetType = UNSET


class ReasoningConfig(Struct, frozen=True, kw_only=True):
    effort: str | None = None
    summary: str | None = None
    context: str | None | UnsetType = UNSET
    mode: str | None | UnsetType = UNSET


class Response(Struct, frozen=True, kw_only=True):
    """A response; the sequencer replaces this frozen object whenever its state changes.

    `tools` are echoed with their defaults filled in; a tool of unknown type is echoed unchanged.
    `usage_per_turn` is this server's own field: it is set if the model had several turns or the
    client requested messages. So are `metrics` and `preview`: stores keep them, and clients see
    them if they `include` metrics. So is `stop_string`: it is set if one of the request's ended the
    last turn.
    """

    id: str
    object: str = "response"
    created_at: int
    completed_at: int | None = None
    status: str = "in_progress"
    background: bool = False
    error: Failure | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    model: str
    output: tuple[AnyItem, ...] = ()
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    conversation: ConversationRef | None = None
    reasoning: ReasoningConfig = ReasoningConfig()
    service_tier: str = "default"
    store: bool = True
    temperature: float | None = 1.0
    text: TextConfig = TextConfig()
    tool_choice: str | Json = "auto"
    tools: tuple[Raw, ...] = ()
    top_logprobs: int = 0
    top_p: float | None = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    truncation: str = "disabled"
    usage: Usage | None = None
    usage_per_turn: tuple[TurnTokens, ...] | UnsetType = UNSET
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    metadata: dict[str, str] = {}
    prompt_cache_options: CacheConfig | UnsetType = UNSET
    prompt_cache_diagnostics: CacheDiagnostics | UnsetType = UNSET
    prompt_cache_retention: str | UnsetType = UNSET
    input_transformations: tuple[InputTransformation, ...] | UnsetType = UNSET
    cleared_tool_uses: ClearedToolUses | UnsetType = UNSET
    prompt: PromptParam | UnsetType = UNSET
    request_id: str | UnsetType = UNSET
    input_messages: tuple[Json, ...] | UnsetType = UNSET
    output_messages: tuple[Json, ...] | UnsetType = UNSET
    stop_string: str | UnsetType = UNSET
    moderation: ResponseModeration | UnsetType = UNSET
    metrics: ResponseMetrics | UnsetType = UNSET
    preview: ResponsePreview | UnsetType = UNSET

    @property
    def keeps_items(self) -> bool:
        """Whether its items become part of its conversation; those of a failed response do not."""
        return self.status != "failed"

    def failed(self, failure: Failure) -> Response:
        """Return this response as failed, with its output so far."""
        return structs.replace(self, status="failed", error=failure, completed_at=None)
