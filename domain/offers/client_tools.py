"""The built-in tools that a client runs, by the kind of their calls."""

from __future__ import annotations

from collections.abc import Mapping

from antiphon.domain.json import Json
from antiphon.domain.kinds import CALL_KINDS
from antiphon.domain.vocabulary.typed_call import ClientTool

CLIENT_TOOLS: Mapping[str, ClientTool] = {
    name: kind.arguments
    for name, kind in CALL_KINDS.items()
    if isinstance(kind.arguments, ClientTool)
}


def item_fields_of(kind: str, arguments: str) -> Json | None:
    """Return the item's fields for a call with these arguments, None if they are invalid.

    >>> item_fields_of("apply_patch", '{"operation": {"type": "delete_file", "path": "a.txt"}}')
    {'operation': {'type': 'delete_file', 'path': 'a.txt'}}
    >>> item_fields_of("apply_patch", '{"operation": {"type": "delete_f')
    """
    return CLIENT_TOOLS[kind].fields_of(arguments)
