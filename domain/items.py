"""Items: the input and output of a response (docs/reference/api.md#items).

Each type has one Struct for both directions, since clients send output back as input. On input
nearly every field may be missing or null; the builders fill in what the API requires on output. A
key that a client must not see while it is unused defaults to UNSET and is left out of the JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from antiphon.domain.kinds import ITEM_KINDS
from antiphon.domain.kinds.additional_tools import AdditionalTools
from antiphon.domain.kinds.agent_message import AgentMessage
from antiphon.domain.kinds.apply_patch import ApplyPatchCall, ApplyPatchCallOutput
from antiphon.domain.kinds.code_interpreter import CodeInterpreterCall
from antiphon.domain.kinds.compaction import Compaction, CompactionTrigger
from antiphon.domain.kinds.computer import ComputerCall, ComputerCallOutput
from antiphon.domain.kinds.configuration_update import ConfigurationUpdate
from antiphon.domain.kinds.custom import CustomToolCall, CustomToolCallOutput
from antiphon.domain.kinds.file_search import FileSearchCall
from antiphon.domain.kinds.function import FunctionCall, FunctionCallOutput
from antiphon.domain.kinds.image_generation import ImageGenerationCall
from antiphon.domain.kinds.item_reference import ItemReference
from antiphon.domain.kinds.local_shell import LocalShellCall, LocalShellCallOutput
from antiphon.domain.kinds.mcp import McpApprovalRequest, McpApprovalResponse, McpCall, McpListTools
from antiphon.domain.kinds.message import Message
from antiphon.domain.kinds.multi_agent import MultiAgentCall, MultiAgentCallOutput
from antiphon.domain.kinds.program import Program, ProgramOutput
from antiphon.domain.kinds.reasoning import Reasoning
from antiphon.domain.kinds.shell import (
    CONTAINER_REFERENCE,
    ShellCall,
    ShellCallOutput,
    is_container_call,
)
from antiphon.domain.kinds.tool_search import ToolSearchCall, ToolSearchOutput
from antiphon.domain.kinds.web_search import WebSearchCall
from antiphon.domain.vocabulary.item import CallId, Item, type_of
from antiphon.domain.vocabulary.kind import ItemKind

ITEM_TYPES: Mapping[str, type[Item]] = {name: kind.item for name, kind in ITEM_KINDS.items()}
"""The item types by their `type` in JSON."""

if TYPE_CHECKING:
    AnyItem = Item
else:
    AnyItem = reduce(or_, ITEM_TYPES.values())
"""Any item, as msgspec decodes it."""

ANSWERED_BY: Mapping[type[Item], type[Item]] = {
    kind.item: kind.answered_by for kind in ITEM_KINDS.values() if kind.answered_by is not None
}
"""The item that answers each call of a tool that the client runs. A tool search that the server
runs has no call_id."""

_OUTPUT_TYPES = frozenset(ANSWERED_BY.values())

ID_PREFIXES: Mapping[type[Item], str] = {
    kind.item: kind.prefix for kind in ITEM_KINDS.values() if kind.prefix is not None
}
"""The prefix of the ids of each item type."""


def kind_of(item: Item) -> ItemKind:
    """Return what the item's kind declares of it."""
    return ITEM_KINDS[type_of(type(item))]


def answered_call_id(item: Item) -> str | None:
    """Return the call_id that `item` answers, None if it is not the output of a call."""
    if type(item) not in _OUTPUT_TYPES:
        return None
    if isinstance(item, LocalShellCallOutput):
        return item.id or None
    return getattr(item, "call_id", None) or None


def call_id_of(item: Item) -> str | None:
    """Return the call_id of `item`, None if it is not a call that another item answers."""
    return getattr(item, "call_id") if type(item) in ANSWERED_BY else None  # noqa: B009


def has_another_turn(item: Item) -> bool:
    """Return whether the item records what this server did, so that the model's turn follows."""
    return kind_of(item).next == "model"


def may_end_after(item: Item) -> bool:
    """Return whether nobody need act after this item: a turn with it may stop there."""
    return kind_of(item).next == "nobody"


def is_server_run_call(item: Item) -> bool:
    """Return whether the server answers this call, so that the client need not.

    The output is missing if the response ended before the call did.
    """
    return isinstance(item, Program | MultiAgentCall) or is_container_call(item)


def waits_for_client(item: Item) -> bool:
    """Return whether the client must answer this item before the model's next turn."""
    kind = kind_of(item)
    if kind.answered_by is None:
        return kind.next == "client"
    return bool(call_id_of(item)) and not is_server_run_call(item)
