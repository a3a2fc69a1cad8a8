"""Read a block of text that is nothing but JSON calls of tools that a turn offers.

A block is a fence, a pair of tags in which some family writes its calls, or JSON on lines of its
own. What cannot become calls is known as soon as the text says so: at the first key that no call
has, at a name that is not offered, or where other text stands beside the JSON.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from antiphon.adapters.formats.chat_template.families import FAMILIES
from antiphon.adapters.formats.chat_template.parsing.family_markers import sort_markers
from antiphon.adapters.formats.chat_template.parsing.text_buffer import (
    MarkerFinder,
    Resumable,
    TextBuffer,
)
from antiphon.adapters.formats.chat_template.payloads.argument_fit import arguments_fit
from antiphon.adapters.formats.chat_template.payloads.json_values import (
    STRING_MARKERS,
    parse_json,
    unwrap_arguments,
)
from antiphon.adapters.formats.tools import ToolNames, text_property
from antiphon.domain.tools import ToolSpec

MAX_BLOCK_CHARS = 128 * 1024
"""Text that is held back because it may be calls; a longer block is text."""

MAX_NAME_CHARS = 256
MAX_LANGUAGE_CHARS = 24

FENCE = "```"
TAG_NAMES = (
    *("tool_call", "tool_calls", "tool", "tools", "tool_use", "toolcall", "call", "calls"),
    *("function_call", "function_calls", "function", "functions", "functioncall", "FUNCTIONS"),
    *("TOOLCALL", "TOOL_CALL", "TOOL_CALLS", "action", "json"),
)
"""The tags in which models without markers of their own write calls."""

MAX_TAGS = 2
"""One around all calls of a turn, and one around each."""

_TAG = re.compile(r"<[^\s=]+>|\[[^\s=\]]+\]")


def _family_tags() -> tuple[set[str], set[str]]:
    """Return what stands before calls in any family, and what stands after them."""
    openings, closings = set[str](), set[str]()
    for family in FAMILIES.values():
        markers = sort_markers(family)
        # A marker that also opens a message is no sign of a call.
        openings |= (
            markers.regions.keys() - markers.prose_changes.keys()
        ) | markers.section_openers
        closings.add(markers.section_end)
        for region in markers.regions.values():
            closings |= {region.end, region.tags.call_end if region.tags else ""}
    return {*filter(_TAG.fullmatch, openings)}, {*filter(_TAG.fullmatch, closings)}


_FAMILY_OPENINGS, _FAMILY_CLOSINGS = _family_tags()
OPENINGS = MarkerFinder(
    [
        *_FAMILY_OPENINGS,
        *(f"{left}{name}{right}" for name in TAG_NAMES for left, right in ("<>", ("<|", "|>"))),
        *("[TOOL_CALLS]", "[TOOL_CALL]"),
    ]
)
CLOSINGS = MarkerFinder(
    [
        *_FAMILY_CLOSINGS,
        *(
            f"{left}{name}{right}"
            for name in TAG_NAMES
            for left, right in (("</", ">"), ("<|/", "|>"))
        ),
        *("[/TOOL_CALLS]", "[/TOOL_CALL]"),
    ]
)
CODE_LANGUAGES = frozenset({"python", "py", "javascript", "js", "typescript", "ts"})
"""A fence that says that it holds a program holds no calls."""

NAME, TYPE, FUNCTION = "name", "type", "function"
ARGUMENTS = ("arguments", "parameters")
KEYS = frozenset({NAME, TYPE, FUNCTION, "id", *ARGUMENTS})
TYPES = frozenset({"function", "function_call", "tool_call", "tool_use"})

AFTER_BLOCK = frozenset("]})>,;.:=|+/\\`<\"'")
"""A character that, on the line below, makes JSON a part of something larger."""

_STRUCTURE = MarkerFinder(['"', "{", "}", "[", "]"])
_SCALAR_END = MarkerFinder([",", "}"])
_LANGUAGE = re.compile(r"[A-Za-z0-9_+.-]*")


class UnmarkedCall(Struct, frozen=True, gc=False):
    """A call of an offered tool; `arguments` are as a call's delta has them."""

    tool: ToolSpec
    arguments: str


def read_block(buffer: TextBuffer, tools: ToolNames) -> Resumable[Sequence[UnmarkedCall] | None]:
    """Read the block that starts here; return its calls, or None if it is something else.

    The caller has pinned the buffer here, and rewinds it if there are no calls.
    """
    is_fenced, tags = False, 0
    while True:
        char = yield from buffer.peek()
        if char == "`" and not is_fenced:
            is_fenced = yield from _read_fence(buffer)
            if not is_fenced:
                return None
        elif tags < MAX_TAGS and char in "<[" and (yield from buffer.read_marker(OPENINGS)):
            tags += 1
        elif char and char in "{[":
            break
        else:
            return None
        yield from buffer.skip_space()
    calls = yield from _read_calls(buffer, tools)
    if not calls or not (yield from _ends_block(buffer, is_fenced=is_fenced, tags=tags)):
        return None
    return calls


def _read_fence(buffer: TextBuffer) -> Resumable[bool]:
    """Read the start of a fence and its language; return whether calls may follow."""
    if not (yield from buffer.read_literal(FENCE)):
        return False
    language = ""
    while (char := (yield from buffer.peek())) and _LANGUAGE.fullmatch(char):
        language += yield from buffer.read_char()
        if len(language) > MAX_LANGUAGE_CHARS:
            return False
    return language.lower() not in CODE_LANGUAGES


def _ends_block(buffer: TextBuffer, *, is_fenced: bool, tags: int) -> Resumable[bool]:
    """Whether the block ends after its JSON; read what closes it."""
    is_bare, is_closed = not (is_fenced or tags), False
    while True:
        start = buffer.pos
        yield from buffer.skip_space()
        if buffer.at_end:
            return True
        has_line_end = "\n" in buffer.text[start : buffer.pos]
        if is_fenced and (yield from buffer.read_literal(FENCE)):
            is_fenced = False
            is_closed = True
        elif (yield from buffer.peek()) in "<[" and (yield from buffer.read_marker(CLOSINGS)):
            tags -= 1
            is_closed = True
        else:
            break
        if not is_fenced and tags <= 0:
            return not is_bare or (yield from _is_at_line_end(buffer))
    if is_fenced:
        return False
    follower = yield from buffer.peek()
    buffer.pos = start
    if is_closed:
        return True
    return has_line_end and (
        follower not in AFTER_BLOCK or (follower in "`<" and (yield from _starts_block(buffer)))
    )


def _is_at_line_end(buffer: TextBuffer) -> Resumable[bool]:
    char = yield from buffer.peek()
    return char in ("", "\n")


def _starts_block(buffer: TextBuffer) -> Resumable[bool]:
    """Whether the next thing opens a fence or a tag that may hold calls; read nothing."""
    start = buffer.pos
    yield from buffer.skip_space()
    found = bool(
        (yield from buffer.read_literal(FENCE)) or (yield from buffer.read_marker(OPENINGS))
    )
    buffer.pos = start
    return found


def _read_calls(buffer: TextBuffer, tools: ToolNames) -> Resumable[Sequence[UnmarkedCall] | None]:
    """Read one list of calls, or calls one after another."""
    calls: list[UnmarkedCall] = []
    limit = buffer.pos + MAX_BLOCK_CHARS
    is_list = yield from buffer.read_literal("[")
    while True:
        yield from buffer.skip_space()
        call = yield from _CallReader(buffer, tools, limit).read()
        if call is None or buffer.pos > limit:
            return None
        calls.append(call)
        end = buffer.pos
        yield from buffer.skip_space()
        char = yield from buffer.peek()
        if is_list and char == "]":
            buffer.pos += 1
            return calls
        if char and char in ",;":
            buffer.pos += 1
        elif is_list or char != "{":
            buffer.pos = end
            return None if is_list else calls


class _CallReader:
    """Reads one object, and stops where it turns out to be no call."""

    def __init__(self, buffer: TextBuffer, tools: ToolNames, limit: int) -> None:
        self._buffer = buffer
        self._tools = tools
        self._limit = limit
        self._tool: ToolSpec | None = None
        self._arguments: str | None = None

    def read(self) -> Resumable[UnmarkedCall | None]:
        """Return the call that starts here, None if there is none."""
        start = self._buffer.pos  # which stays: the buffer is pinned
        if not (yield from self._read_object(is_inner=False)):
            return None
        text = self._buffer.text[start : self._buffer.pos]
        if self._tool is None or self._arguments is None or parse_json(text) is None:
            return None
        return _call_of(self._tool, self._arguments)

    def _read_object(self, *, is_inner: bool) -> Resumable[bool]:
        buffer, keys = self._buffer, set[str]()
        if not (yield from buffer.read_literal("{")):
            return False
        while True:
            yield from buffer.skip_space()
            key = yield from self._read_short_string()
            if key is None or key in keys or key not in KEYS:
                return False
            keys.add(key)
            yield from buffer.skip_space()
            if not (yield from buffer.read_literal(":")):
                return False
            yield from buffer.skip_space()
            if not (yield from self._read_member(key, is_inner=is_inner)):
                return False
            yield from buffer.skip_space()
            if (yield from buffer.read_literal("}")):
                return True
            if not (yield from buffer.read_literal(",")):
                return False

    def _read_member(self, key: str, *, is_inner: bool) -> Resumable[bool]:
        if key in ARGUMENTS:
            return (yield from self._read_arguments())
        if key == FUNCTION and (yield from self._buffer.peek()) == "{":
            return not is_inner and (yield from self._read_object(is_inner=True))
        if key in (NAME, FUNCTION):
            name = yield from self._read_short_string()
            if name is None or self._tool is not None:
                return False
            self._tool = self._tools.find(name)
            return self._tool is not None
        if key == TYPE:
            return (yield from self._read_short_string()) in TYPES
        found = yield from self._buffer.read_up_to(_SCALAR_END, MAX_NAME_CHARS)
        if found is None:
            return False
        self._buffer.unread(found[1])
        return True

    def _read_arguments(self) -> Resumable[bool]:
        """Read an object, or a string that should hold one."""
        buffer = self._buffer
        first = yield from buffer.peek()
        if self._arguments is not None or not first or first not in '{"':
            return False
        start, depth = buffer.pos, 0
        while True:
            marker = yield from self._seek(_STRUCTURE)
            if marker == '"':
                while (marker := (yield from self._seek(STRING_MARKERS))) == "\\":
                    yield from buffer.read_char()
            elif marker:
                depth += 1 if marker in "{[" else -1
            if not marker:
                return False
            if depth == 0:
                break
        self._arguments = buffer.text[start : buffer.pos]
        return True

    def _seek(self, finder: MarkerFinder) -> Resumable[str]:
        """Go past the next marker and return it; "" if the text ends before, or is too long."""
        buffer = self._buffer
        while True:
            start, end = finder.find(buffer.text, buffer.pos, is_whole=buffer.closed)
            if end >= 0:
                buffer.pos = end
                return buffer.text[start:end]
            buffer.pos = start
            if buffer.closed or buffer.pos > self._limit:
                return ""
            yield

    def _read_short_string(self) -> Resumable[str | None]:
        """Read a string of a name's length; None if there is none."""
        buffer = self._buffer
        if not (yield from buffer.read_literal('"')):
            return None
        found = yield from buffer.read_up_to(STRING_MARKERS, MAX_NAME_CHARS)
        return found[0] if found and found[1] == '"' else None


def _call_of(tool: ToolSpec, written: str) -> UnmarkedCall | None:
    """Return the call of a tool with the arguments as they were written, None if they do not fit.

    A tool's own schema in their place is a description of the tool.
    """
    value: Any = parse_json(written)
    if isinstance(value, str):
        written = value
        value = parse_json(written)
    if not isinstance(value, dict) or tool.grammar is not None:
        return None
    key = text_property(tool)
    if key is not None:
        fits = value.keys() == {key} and isinstance(value[key], str)
    else:
        is_schema = bool(value) and value == tool.parameters
        fits = not is_schema and arguments_fit(value, tool.parameters, strict=tool.strict)
    return UnmarkedCall(tool, unwrap_arguments(tool, written)) if fits else None
