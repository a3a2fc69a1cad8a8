"""The names that a client has for the fields of the request that stands for its own.

Everything behind a door speaks of `input[3].output`; the client sent `messages[2].content`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

_ENTRY = re.compile(r"(?P<list>input|tools)\[(?P<index>\d+)\](?P<field>\.\w+)?(?P<rest>.*)")
_PART = re.compile(r"\[(\d+)\]")


def _same(rest: str) -> str:
    return rest


class SentPlace(Struct, frozen=True):
    """Where the client sent what became an item or a tool: a path, and the names of its fields.

    `is_one`: it became the whole item, whatever the item's field. `parts` are the paths of what
    became the parts of its content, if these are not in one list of the client's.

    >>> SentPlace("messages[2]", {".output": ".content"}).name_of(".output", "[0].type")
    'messages[2].content[0].type'
    """

    path: str
    fields: Mapping[str, str] = {}
    is_one: bool = False
    parts: Sequence[str] = ()

    def name_of(self, field: str, rest: str, name_in_part: Callable[[str], str] = _same) -> str:
        """Return the path of this field, or of something in it."""
        if self.is_one:
            return self.path
        part = _PART.match(rest)
        if part is not None and int(part[1]) < len(self.parts):
            return self.parts[int(part[1])]
        return self.path + self.fields.get(field, field) + name_in_part(rest)


class Places(Struct, frozen=True, kw_only=True):
    """The places of all items and tools.

    `fields` are the names of fields that have another one here; those in `sent` depend on the
    request. `name_in_part` returns the name of what is in a list of parts.
    """

    items: Sequence[SentPlace]
    tools: Sequence[SentPlace]
    fields: Mapping[str, str]
    sent: Mapping[str, str] = {}
    name_in_part: Callable[[str], str] = _same

    def name_of(self, path: str) -> str:
        """Return the client's name of what is at this path.

        >>> item, tool = SentPlace("messages[0]"), SentPlace("functions[0]")
        >>> places = Places(items=[item], tools=[tool], fields={"user": "metadata.user_id"})
        >>> [places.name_of(path) for path in ("input[0].content", "tools[0].name", "user")]
        ['messages[0].content', 'functions[0].name', 'metadata.user_id']
        """
        entry = _ENTRY.fullmatch(path)
        if entry is None:
            return self.sent.get(path) or self.fields.get(path, path)
        places = self.items if entry["list"] == "input" else self.tools
        index = int(entry["index"])
        if index >= len(places):
            return path
        return places[index].name_of(entry["field"] or "", entry["rest"], self.name_in_part)
