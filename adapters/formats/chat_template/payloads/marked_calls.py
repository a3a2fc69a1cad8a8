"""Read calls whose parts stand between markers: perhaps an id, the name, arguments in JSON."""

from __future__ import annotations

import re
from functools import cache

from antiphon.adapters.formats.chat_template.families.family import Region
from antiphon.adapters.formats.chat_template.parsing.text_buffer import (
    MarkerFinder,
    Resumable,
    TextBuffer,
)
from antiphon.adapters.formats.chat_template.payloads.calls import (
    MAX_NAME_LENGTH,
    Calls,
    empty_arguments,
)
from antiphon.adapters.formats.chat_template.payloads.json_values import read_arguments

MAX_HEAD_LENGTH = 3 * MAX_NAME_LENGTH
"""Of a name, an id and the markers around them."""

HEAD = re.compile(
    r"(?:\s*[\w.:-]*\s*<\|tool_call:name\|>)?(?P<name>[^<]+)(?:<\|[a-z_:]*\|>(?:j|js|jso|json)?|\s)*"
)

CUT_MARKER = re.compile(r"<(?:\|[a-z_:]*\|?)?\Z")


@cache
def _head_ends(end: str) -> MarkerFinder:
    return MarkerFinder(["{", end])


def read_marked_call(buffer: TextBuffer, calls: Calls, region: Region) -> Resumable[bool]:
    """Read `id<|tool_call:name|>name<|…|>{…}` or `name<|…|>{…}`."""
    finder = _head_ends(region.end)
    head = yield from buffer.read_up_to(finder, MAX_HEAD_LENGTH, or_end=True)
    if head is None:
        return False
    match = HEAD.fullmatch(head[0] if head[1] else CUT_MARKER.sub("", head[0]))
    tool = calls.find_tool(match["name"].strip()) if match else None
    if tool is None:
        return False
    calls.start(tool)
    if not head[1]:
        return True
    if head[1] == region.end:
        calls.write(empty_arguments(tool))
        calls.end()
        return True
    buffer.unread("{")
    yield from read_arguments(buffer, calls, tool, region.end)
    if not buffer.at_end:
        calls.end()
    return True
