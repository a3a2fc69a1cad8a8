"""The base of all items, and the types of their fields."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from antiphon.domain.bounds import Long, Text
from antiphon.domain.content import OutputPart

MAX_CALL_ID_CHARS = 256
"""The ids of calls are the clients', and gateways make long ones."""

CallId = Annotated[str, Meta(min_length=1, max_length=MAX_CALL_ID_CHARS)]
OptionalId = Text | None | UnsetType
Output = Text | Long[OutputPart]


class Agent(Struct, frozen=True, kw_only=True, gc=False):
    """The agent of a tree to which an item or an event belongs: `/root`, `/root/reader`…"""

    agent_name: Text


# gc=False, here and below: a history has many items, none of which refers to itself. The garbage
# collector held up every client for 50 to 120 ms when a few long histories were read.
class Item(Struct, frozen=True, kw_only=True, gc=False, tag_field="type"):
    """Base class of all items; `id` is an opaque string that the client sees.

    `agent` is the one that made the item, if the response has sub-agents.
    """

    id: OptionalId = UNSET
    agent: Agent | None | UnsetType = UNSET


def type_of(kind: type[Struct]) -> str:
    """Return the `type` that an item, an event or a tool has in JSON."""
    return str(kind.__struct_config__.tag)
