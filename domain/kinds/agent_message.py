"""Messages between agents: of this server's sub-agents, or of a client that has its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from antiphon.domain import deltas as d
from antiphon.domain.bounds import Long, Text
from antiphon.domain.json import Json
from antiphon.domain.vocabulary.builder import Builder, BuilderContext
from antiphon.domain.vocabulary.event import Event
from antiphon.domain.vocabulary.item import Agent, Item
from antiphon.domain.vocabulary.kind import ItemKind, Kind, Shown
from antiphon.domain.vocabulary.steps import NO_EVENTS

TEXT_KEYS = ("text", "encrypted_content")
"""Where a part has its text. What an agent wrote with a model of this server is not encrypted: the
client repeats the text of a call."""


class AgentMessage(Item, frozen=True, kw_only=True, tag="agent_message"):
    """A message of one agent to another. Codex writes them as well, for the agents that it runs."""

    author: Text | None | UnsetType = UNSET
    recipient: Text | None | UnsetType = UNSET
    content: Text | Long[Json] | None | UnsetType = UNSET


def message_fields(
    author: str, recipient: str, text: str, *, sender: str, id: str | None = None
) -> Json:
    """Return the fields of a message; the agent `sender` has sent it, or the server for it."""
    return {
        **({} if id is None else {"id": id}),
        "agent": {"agent_name": sender},
        "author": author,
        "recipient": recipient,
        "content": [{"type": "input_text", "text": text}],
    }


def to_text(item: AgentMessage) -> str:
    """Return the message as a user's text.

    >>> parts = ({"type": "input_text", "text": "Look at a.py."},)
    >>> to_text(AgentMessage(author="/root", recipient="/root/a", content=parts))
    'Message from /root to /root/a:\\n\\nLook at a.py.'
    """
    sender = f" from {item.author}" if item.author else ""
    recipient = f" to {item.recipient}" if item.recipient else ""
    return f"Message{sender}{recipient}:\n\n" + "\n\n".join(_texts_of(item.content))


def _texts_of(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
        return
    for part in content or ():
        yield from (str(part[key]) for key in TEXT_KEYS if part.get(key))


class _MessageBuilder:
    """Builds a message whose parts are all known, under its own id if it has one."""

    def __init__(self, start: d.ToolStart, context: BuilderContext) -> None:
        self._context = context
        fields = {**start.fields, "agent": msgspec.convert(start.fields["agent"], Agent)}
        self.item = AgentMessage(**{"id": fields.get("id") or context.new_id("amsg"), **fields})

    def open(self) -> Sequence[Event]:
        return (self._context.added(self.item),)

    def accepts(self, delta: d.Delta) -> bool:  # noqa: ARG002 - it has all that it gets
        return False

    def add(self, delta: d.Delta) -> Sequence[Event]:  # noqa: ARG002
        return ()

    def close(self, status: str) -> Sequence[Event]:  # noqa: ARG002
        return (self._context.done(self.item),)


def _open(start: d.ToolStart, context: BuilderContext) -> Builder:
    return _MessageBuilder(start, context)


ITEM = ItemKind(
    item=AgentMessage,
    prefix="amsg",
    events=msgspec.structs.replace(NO_EVENTS.table(AgentMessage, "amsg"), open=_open),
    next="nobody",
    shown=Shown(text=to_text),
    include={},
)

KIND = Kind(name="agent_message", items=(ITEM,), tools=(), calls=())
