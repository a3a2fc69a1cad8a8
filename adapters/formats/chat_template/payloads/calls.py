"""Shared parts of the readers of calls: who receives calls, and how a list of them continues.

A reader returns False if it finds no call of an offered tool. It has then written nothing, and its
caller rewinds the buffer to where the call would have started, so that the text is kept. Once a
call has started there is no way back: what follows is its arguments, however broken. A reader stops
after its last call; the rest (the closing marker, or stray text) is read as prose again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Protocol

from antiphon.adapters.formats.chat_template.families.family import Region
from antiphon.adapters.formats.chat_template.parsing.text_buffer import (
    MarkerFinder,
    Resumable,
    TextBuffer,
)
from antiphon.adapters.formats.tools import text_property
from antiphon.domain.tools import ToolSpec
from antiphon.domain.vocabulary.repairs import Repair

if TYPE_CHECKING:  # it needs this module
    from antiphon.adapters.formats.chat_template.payloads.schema_types import ArgumentSchemas

MAX_NAME_LENGTH = 128


class Calls(Protocol):
    """Receives the calls that a reader finds.

    `markers` are all those of the family: none of them is a part of a call's markup in JSON.
    `openers` stand before a call, or before the first one. `names` are those of the tools that may
    be called.
    """

    markers: MarkerFinder
    openers: tuple[str, ...]

    @property
    def names(self) -> Collection[str]: ...

    def find_tool(self, name: str) -> ToolSpec | None:
        """Return the tool that a call means by this name, in whichever spelling."""

    def schemas_of(self, tool: ToolSpec) -> ArgumentSchemas:
        """Return the schemas of a tool's arguments."""

    def is_name(self, name: str) -> bool:
        """Whether text is the name of a tool, where it may also be a part of an argument."""

    def write_prose(self, text: str, offset: int) -> None:
        """Write text that stands at `offset` of the turn, inside the markup of a call to come."""

    def note(self, repair: Repair) -> None:
        """Note what was repaired of the call that has started, or is about to."""

    def start(self, tool: ToolSpec, call_id: str | None = None) -> None: ...

    def write(self, text: str) -> None: ...

    def end(self) -> None: ...


is_name = re.compile(r"[\w.$-]*").fullmatch

_WORD = re.compile(r"[\w.$-]+")
_ATTRIBUTES = frozenset(
    {"key", "name", "type", "string", "true", "false", "number", "integer", "boolean", "null"}
    | {"array", "object"}
)
"""Words that stand beside the name of an argument in its tag."""


def find_key(text: str, names: Collection[str]) -> str | None:
    """Return the argument that a damaged key means, None if none: no key is made up.

    `names` are those that the tool has; if it says none, a key may have spaces.

    >>> find_key('key"city" type', ["city"]), find_key("town", ["city"])
    ('city', 'town')
    >>> find_key("city, France", ["city"]) is None
    True
    """
    name = text.strip()
    if name and (name in names or is_name(name)):
        return name
    words: list[str] = _WORD.findall(name)
    known = [word for word in words if word in names]
    if len(known) == 1 and all(word in _ATTRIBUTES for word in words if word != known[0]):
        return known[0]
    return name if not names and name and is_name(name.replace(" ", "")) else None


Reader = Callable[[TextBuffer, Calls, Region], Resumable[bool]]


def ignore(text: str) -> None:
    """Drop text that is markup."""


def read_more_calls(
    buffer: TextBuffer, read_call: Callable[[], Resumable[bool]], *, is_list: bool = False
) -> Resumable[None]:
    """Read the calls after the first; leave anything but a call or the end of a list unread."""
    while True:
        buffer.pin()
        yield from buffer.skip_space()
        if is_list and (yield from buffer.read_literal("]")):
            break
        if not (yield from read_call()):
            buffer.rewind()
            break
    buffer.unpin()


def empty_arguments(tool: ToolSpec) -> str:
    """Return the arguments of a call for which the model wrote none."""
    return "" if text_property(tool) is not None else "{}"


def text_in_name(name: str) -> str:
    """Return what the name of an argument adds to a custom tool's text: nothing if it is a name.

    >>> text_in_name("input"), text_in_name("in: put")
    ('', 'in: put')
    """
    return "" if is_name(name) else name
