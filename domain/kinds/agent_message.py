"""Messages between agents, which clients with sub-agents put into a conversation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import UNSET, UnsetType

from antiphon.domain.bounds import Long, Text
from antiphon.domain.json import Json
from antiphon.domain.vocabulary.item import Item
from antiphon.domain.vocabulary.kind import ItemKind, Kind, Shown
from antiphon.domain.vocabulary.steps import INPUT_ONLY

TEXT_KEYS = ("text", "encrypted_content")
"""Where a part has its text. What an agent wrote with a model of this server is not encrypted: the
client repeats the text of a call."""


class AgentMessage(Item, frozen=True, kw_only=True, tag="agent_message"):
    """A message of one agent to another. The newest Codex writes them."""

    author: Text | None | UnsetType = UNSET
    recipient: Text | None | UnsetType = UNSET
    content: Text | Long[Json] | None | UnsetType = UNSET


def _to_text(item: AgentMessage) -> str:
    """Return the message as a user's text.

    >>> parts = ({"type": "input_text", "text": "Look at a.py."},)
    >>> _to_text(AgentMessage(author="/root", recipient="/root/a", content=parts))
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


ITEM = ItemKind(
    item=AgentMessage,
    prefix="amsg",
    events=INPUT_ONLY,
    next="nobody",
    shown=Shown(text=_to_text),
    include={},
)

KIND = Kind(name="agent_message", items=(ITEM,), tools=(), calls=())
