"""The bases of all events, and the events of content parts.

Only the sequencer sets an event's number (sequencer.py); -1 means that it has none yet.
"""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from antiphon.domain.content import OutputText, ReasoningText, Refusal
from antiphon.domain.responses.usage import Usage
from antiphon.domain.vocabulary.item import Agent


class Event(Struct, frozen=True, kw_only=True, gc=False, tag_field="type"):
    """Base class of all events; `agent` is whose event it is, if the response has sub-agents.

    `usage` counts the tokens up to this event, if the request asks for
    `stream_options.continuous_usage_stats`.
    """

    sequence_number: int = -1
    agent: Agent | UnsetType = UNSET
    usage: Usage | UnsetType = UNSET


class ItemEvent(Event, frozen=True, kw_only=True, gc=False):
    """Base class of the events of an open item."""

    item_id: str
    output_index: int


class PartEvent(ItemEvent, frozen=True, kw_only=True, gc=False):
    """Base class of the events of an open content part."""

    content_index: int


AnyPart = OutputText | Refusal | ReasoningText


class PartAdded(PartEvent, frozen=True, kw_only=True, tag="response.content_part.added"):
    part: AnyPart


class PartDone(PartEvent, frozen=True, kw_only=True, tag="response.content_part.done"):
    part: AnyPart
