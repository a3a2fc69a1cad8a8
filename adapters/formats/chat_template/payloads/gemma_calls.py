"""Read calls as Gemma writes them: `call:name{key:<|"|>text<|"|>,other:[1,true]}`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from antiphon.adapters.formats.chat_template.families.family import Region
from antiphon.adapters.formats.chat_template.parsing.text_buffer import (
    MarkerFinder,
    Resumable,
    TextBuffer,
    Write,
)
from antiphon.adapters.formats.chat_template.payloads.calls import (
    MAX_NAME_LENGTH,
    Calls,
    empty_arguments,
    read_more_calls,
)
from antiphon.adapters.formats.chat_template.payloads.json_values import (
    parse_json,
    quote_json,
    read_json_value,
)
from antiphon.adapters.formats.chat_template.payloads.pythonic_calls import python_value_to_json
from antiphon.adapters.formats.chat_template.payloads.schema_types import (
    NULLS,
    STRING,
    TEXT_TYPES,
    UNKNOWN,
    property_types,
    text_to_json,
)
from antiphon.adapters.formats.chat_template.payloads.tag_types import value_to_json
from antiphon.adapters.formats.tools import text_property
from antiphon.domain.tools import ToolSpec

QUOTES = ('<|"|>', "<escape>")
"""What stands before and after a text: of Gemma 4, and of FunctionGemma."""

CLOSERS: Mapping[str, str] = {"{": "}", "(": "}", "[": "]"}
NO_VALUES = (*NULLS, "")


@cache
def _name_ends(end: str) -> MarkerFinder:
    return MarkerFinder(["{", "(", end])


@cache
def _key_ends(end: str) -> MarkerFinder:
    return MarkerFinder([":", "=", ",", "{", "}", "[", "]", end])


@cache
def _value_ends(end: str, opening: str) -> MarkerFinder:
    return MarkerFinder([",", "}", "]", end, *([")"] if opening == "(" else [])])


@cache
def _text_ends(quote: str, end: str) -> MarkerFinder:
    # A text whose closing quote is missing ends where its call ends.
    return MarkerFinder([quote, f"}}{end}", f"}}]{end}"] if quote else [f"}}{end}", end])


def read_gemma_calls(buffer: TextBuffer, calls: Calls, region: Region) -> Resumable[bool]:
    """Read `call:name{key:value,…}`; the first `call` is optional."""
    yield from buffer.skip_space()
    if not (yield from buffer.read_literal("call:")):
        yield from buffer.read_literal(":")
    if not (yield from _read_call(buffer, calls, region.end)):
        return False

    def read_call() -> Resumable[bool]:
        yield from buffer.read_literal(",")
        has_call = yield from buffer.read_literal("call:")
        return has_call and (yield from _read_call(buffer, calls, region.end))

    yield from read_more_calls(buffer, read_call)
    return True


def _read_call(buffer: TextBuffer, calls: Calls, end: str) -> Resumable[bool]:
    head = yield from buffer.read_up_to(_name_ends(end), MAX_NAME_LENGTH)
    tool = calls.find_tool(head[0].strip()) if head else None
    if head is None or tool is None:
        return False
    calls.start(tool)
    if head[1] == end:
        buffer.unread(end)
        calls.write(empty_arguments(tool))
        closed = True
    else:
        opening = head[1]
        if opening == "(":
            yield from buffer.skip_space()
            opening = "{" if (yield from buffer.read_literal("{")) else opening
        closed = yield from _read_arguments(buffer, calls, tool, end, opening)
        yield from _skip_surplus_brackets(buffer)
    if closed or not buffer.at_end:
        calls.end()
    return True


def _skip_surplus_brackets(buffer: TextBuffer) -> Resumable[None]:
    buffer.pin()
    yield from buffer.skip_space()
    while (yield from buffer.peek()) in (")", "}"):
        yield from buffer.read_char()
        buffer.pin()
        yield from buffer.skip_space()
    buffer.rewind()


def _read_arguments(
    buffer: TextBuffer, calls: Calls, tool: ToolSpec, end: str, opening: str
) -> Resumable[bool]:
    key = text_property(tool)
    if key is None:
        members = _Members(buffer, calls.write, tool.parameters or {}, end)
        return (yield from members.read(opening))
    buffer.pin()
    yield from buffer.skip_space()
    has_key = yield from buffer.read_literal(key)
    yield from buffer.skip_space()
    if has_key and (yield from buffer.read_literal(":")):
        buffer.unpin()
        return (yield from _read_text(buffer, calls, end))
    buffer.rewind()
    return (yield from _Members(buffer, calls.write, {}, end).read())


def _read_text(buffer: TextBuffer, calls: Calls, end: str) -> Resumable[bool]:
    """Write the text of a custom tool, and on a line of its own what a model writes after it."""
    yield from buffer.skip_space()
    quote = yield from _read_quote(buffer)
    marker = yield from buffer.read_until(_text_ends(quote, end), calls.write)
    if marker != quote or not quote:
        buffer.unread(marker)
        return bool(marker)
    while (yield from buffer.peek()).isspace() or (yield from buffer.peek()) == ",":
        yield from buffer.read_char()
    char = yield from buffer.peek()
    if char in ("}", ")"):
        yield from buffer.read_char()
        return True
    if not char or (yield from buffer.read_literal(end)):
        buffer.unread(end if char else "")
        return bool(char)
    calls.write("\n")
    return (yield from _Members(buffer, calls.write, {}, end).read())


def _read_quote(buffer: TextBuffer) -> Resumable[str]:
    for quote in QUOTES:
        if (yield from buffer.read_literal(quote)):
            return quote
    return ""


class _Members:
    """Copies the members of an object as JSON, up to its closing bracket.

    It keeps a stack of brackets, so that no depth of nesting is too deep.
    """

    def __init__(self, buffer: TextBuffer, write: Write, schema: Mapping[str, Any], end: str):
        self._buffer = buffer
        self._write = write
        self._schema = schema
        self._properties = schema.get("properties")
        self._end = end
        self._value_ends = _value_ends(end, "")
        self._open: list[str] = []
        self._separator = ""

    def read(self, opening: str = "{") -> Resumable[bool]:
        """Read what follows the bracket; return whether the object ended before the text."""
        self._value_ends = _value_ends(self._end, opening)
        self._enter(opening)
        while self._open:
            yield from self._buffer.skip_space()
            char = yield from self._buffer.peek()
            if not char:
                return False
            if (yield from self._buffer.read_literal(self._end)):
                self._buffer.unread(self._end)
                self._leave(self._open[0], all_levels=True)
            elif char in ",}])":
                yield from self._buffer.read_char()
                self._leave("}" if char == ")" else char)
            else:
                yield from self._read_member()
        return True

    def _enter(self, bracket: str) -> None:
        self._write("{" if bracket == "(" else bracket)
        self._open.append(CLOSERS[bracket])
        self._separator = ""

    def _leave(self, closer: str, *, all_levels: bool = False) -> None:
        """Close the innermost bracket of this kind; a comma or a surplus bracket closes none."""
        if closer not in self._open:
            return
        while self._open:
            innermost = self._open.pop()
            self._write(innermost)
            self._separator = ", "
            if innermost == closer and not all_levels:
                return

    def _read_member(self) -> Resumable[None]:
        buffer = self._buffer
        self._write(self._separator)
        key: str | None = None
        if self._open[-1] == "}":
            key, has_value = yield from self._read_key()
            if buffer.at_end and not has_value:
                self._write(quote_json(key)[:-1])
                return
            self._write(f"{quote_json(key)}: ")
            if not has_value:
                self._write('""')
                self._separator = ", "
                return
            yield from buffer.skip_space()
        char = yield from buffer.peek()
        if char and char in "{[":
            yield from buffer.read_char()
            self._enter(char)
            return
        yield from self._read_leaf(key if len(self._open) == 1 else None, char)
        self._separator = ", "

    def _read_key(self) -> Resumable[tuple[str, bool]]:
        """Return the key, and whether a value follows it."""
        buffer = self._buffer
        pieces: list[str] = []
        quote = yield from _read_quote(buffer)
        if quote:
            yield from buffer.read_until(_text_ends(quote, self._end), pieces.append)
            yield from buffer.skip_space()
        marker = yield from buffer.read_until(_key_ends(self._end), pieces.append)
        if marker not in (":", "="):
            buffer.unread(marker)
        key = "".join(pieces).strip()
        return key if quote else key.strip("\"'"), marker in (":", "=", "{", "[")

    def _read_leaf(self, key: str | None, char: str) -> Resumable[None]:
        quote = yield from _read_quote(self._buffer)
        if quote:
            yield from self._read_quoted(key, quote)
            return
        pieces: list[str] = []
        if char == '"':
            yield from read_json_value(self._buffer, pieces.append, self._end)
            marker = '"'
        else:
            marker = yield from self._buffer.read_until(self._value_ends, pieces.append)
            self._buffer.unread(marker)
        text = "".join(pieces)
        self._write(self._bare_to_json(key, text.strip()) if marker else text)

    def _read_quoted(self, key: str | None, quote: str) -> Resumable[None]:
        buffer, finder = self._buffer, _text_ends(quote, self._end)
        types = UNKNOWN if key is None else property_types(self._schema, key)
        if types and STRING not in types:
            pieces: list[str] = []
            marker = yield from buffer.read_until(finder, pieces.append)
            text = "".join(pieces)
            self._write(python_value_to_json(text) or text_to_json(text) if marker else text)
        else:
            self._write('"')
            marker = yield from buffer.read_until(finder, self._write_text)
            self._write('"' if marker else "")
        buffer.unread("" if marker == quote else marker)

    def _write_text(self, text: str) -> None:
        self._write(quote_json(text)[1:-1])

    def _bare_to_json(self, key: str | None, text: str) -> str:
        is_known = isinstance(self._properties, dict) and key in self._properties
        if not is_known or text in NO_VALUES:
            return text_to_json(text)
        types = property_types(self._schema, str(key))
        if types <= TEXT_TYPES:
            return text if isinstance(parse_json(text), str) else quote_json(text)
        return value_to_json(text, types)
