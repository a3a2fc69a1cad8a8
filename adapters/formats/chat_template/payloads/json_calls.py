"""Read calls as JSON objects: `{"name": …, "arguments": {…}}`, one, several or a list.

The keys have other names in some models, and OpenAI's shape nests the object in `function`. A few
models write `{"name of the tool": {…}}` instead.
"""

from __future__ import annotations

from collections.abc import Callable

from antiphon.adapters.formats.chat_template.families.family import Region
from antiphon.adapters.formats.chat_template.parsing.text_buffer import Resumable, TextBuffer
from antiphon.adapters.formats.chat_template.payloads.calls import (
    Calls,
    empty_arguments,
    read_more_calls,
)
from antiphon.adapters.formats.chat_template.payloads.json_values import (
    parse_json,
    read_arguments,
    read_json_value,
    read_string,
    unwrap_arguments,
)
from antiphon.domain.tools import ToolSpec

NAME_KEYS = frozenset({"name", "tool_name"})
ARGUMENT_KEYS = frozenset({"arguments", "parameters", "args"})
OTHER_KEYS = frozenset({"id", "type", "index", "call_id", "tool_call_id"})
NESTING_KEY = "function"

ReadCall = Callable[[TextBuffer, Calls, str], Resumable[bool]]
"""Reads one call of a list; the last argument is the marker that ends the region."""


def read_json_calls(buffer: TextBuffer, calls: Calls, region: Region) -> Resumable[bool]:
    """Read `{"name": …, "arguments": {…}}`, several in a row or in a list."""
    return (yield from _read_calls(buffer, calls, region, _read_json_call))


def read_opened_list(buffer: TextBuffer, calls: Calls, region: Region) -> Resumable[bool]:
    """Read a list of calls whose opening bracket was part of the marker."""
    return (yield from _read_calls(buffer, calls, region, _read_json_call, is_list=True))


def read_keyed_calls(buffer: TextBuffer, calls: Calls, region: Region) -> Resumable[bool]:
    """Read `{"name of the tool": {…}}`, several in a row or in a list."""
    return (yield from _read_calls(buffer, calls, region, _read_keyed_call))


def _read_calls(
    buffer: TextBuffer, calls: Calls, region: Region, read_one: ReadCall, *, is_list: bool = False
) -> Resumable[bool]:
    yield from buffer.skip_space()
    is_list = is_list or (yield from buffer.read_literal("["))
    yield from buffer.skip_space()
    if not (yield from read_one(buffer, calls, region.end)):
        return False

    def read_call() -> Resumable[bool]:
        if (yield from buffer.peek()) in (",", ";"):  # models forget it
            yield from buffer.read_char()
            yield from buffer.skip_space()
        return (yield from read_one(buffer, calls, region.end))

    yield from read_more_calls(buffer, read_call, is_list=is_list)
    if region.end:
        yield from _skip_surplus_brackets(buffer, calls)
        # Where the marker is ordinary text elsewhere, only this one belongs to the calls.
        yield from buffer.read_literal(region.end)
    return True


def _skip_surplus_brackets(buffer: TextBuffer, calls: Calls) -> Resumable[None]:
    """Skip surplus closing brackets: models miscount, and the marker still follows."""
    yield from buffer.skip_space()
    while (yield from buffer.peek()) in ("}", "]"):
        calls.note("surplus_bracket")
        yield from buffer.read_char()
        yield from buffer.skip_space()


def _read_json_call(
    buffer: TextBuffer, calls: Calls, end: str, *, is_nested: bool = False
) -> Resumable[bool]:
    if not (yield from buffer.read_literal("{")):
        return False
    tool: ToolSpec | None = None
    early_arguments: str | None = None  # arguments that were written before the name
    while True:
        key = yield from _read_key(buffer)
        if key is None:
            break
        if key == NESTING_KEY and tool is None and (yield from buffer.peek()) == "{":
            if is_nested or not (yield from _read_json_call(buffer, calls, end, is_nested=True)):
                return False
            yield from _skip_members(buffer)
            yield from buffer.read_literal("}")
            return True
        if key in (*NAME_KEYS, NESTING_KEY) and tool is None:
            tool = calls.find_tool((yield from read_string(buffer)) or "")
            if tool is None:
                return False
            if early_arguments is not None:
                calls.start(tool)
                calls.write(unwrap_arguments(tool, early_arguments))
                return (yield from _end_call(buffer, calls))
        elif key in ARGUMENT_KEYS and tool:
            calls.start(tool)
            yield from read_arguments(buffer, calls, tool, end)
            return (yield from _end_call(buffer, calls))
        elif key in ARGUMENT_KEYS and early_arguments is None:
            early_arguments = yield from _collect_json_value(buffer, end)
        elif key not in OTHER_KEYS or not (yield from _skip_short_value(buffer)):
            return False
        yield from buffer.skip_space()
        if not (yield from buffer.read_literal(",")):
            break
    if tool is None or not (yield from _is_without_arguments(buffer)):
        return False
    calls.start(tool)
    if not buffer.at_end:
        calls.write(empty_arguments(tool))
    return (yield from _end_call(buffer, calls))


def _read_key(buffer: TextBuffer) -> Resumable[str | None]:
    """Read a key and the colon after it; if there is no key, read nothing but whitespace.

    The buffer must be pinned.
    """
    yield from buffer.skip_space()
    start = buffer.pos
    key = yield from read_string(buffer)
    if key is None:
        buffer.pos = start
        return None
    yield from buffer.skip_space()
    yield from buffer.read_literal(":")
    yield from buffer.skip_space()
    return key


def _is_without_arguments(buffer: TextBuffer) -> Resumable[bool]:
    """Whether a call ends here, or the text, which may be in the middle of a key.

    Only the end of the text excuses a call that lacks both arguments and bracket.
    """
    if (yield from buffer.peek()) in ("}", ""):
        return True
    rest = buffer.text[buffer.pos :]
    is_cut = buffer.closed and any(f'"{key}"'.startswith(rest) for key in ARGUMENT_KEYS)
    if is_cut:
        buffer.pos += len(rest)
    return is_cut


def _end_call(buffer: TextBuffer, calls: Calls) -> Resumable[bool]:
    """End a call whose object ends here, unless the text ends before it."""
    yield from _skip_members(buffer)
    if not buffer.at_end:
        if not (yield from buffer.read_literal("}")):
            calls.note("open_call")
        calls.end()
    return True


def starts_json_call(buffer: TextBuffer, calls: Calls) -> Resumable[bool]:
    """Whether an object starts with the name of a tool; read nothing. The buffer is pinned."""
    start = buffer.pos
    has_name = False
    if (yield from buffer.read_literal("{")) and (yield from _read_key(buffer)) in (
        *NAME_KEYS,
        NESTING_KEY,
    ):
        has_name = calls.find_tool((yield from read_string(buffer)) or "") is not None
    buffer.pos = start
    return has_name


def _collect_json_value(buffer: TextBuffer, end: str) -> Resumable[str]:
    pieces: list[str] = []
    yield from read_json_value(buffer, pieces.append, end)
    return "".join(pieces)


def _skip_members(buffer: TextBuffer) -> Resumable[None]:
    """Skip the other members of a call's object; those with a text of their own stay text."""
    while True:
        buffer.pin()
        yield from buffer.skip_space()
        if not (yield from buffer.read_literal(",")):
            break
        key = yield from _read_key(buffer)
        if key not in OTHER_KEYS or not (yield from _skip_short_value(buffer)):
            buffer.rewind()
            return
    buffer.unpin()


def _skip_short_value(buffer: TextBuffer) -> Resumable[bool]:
    """Skip a text, a number or the like; return whether there is one."""
    if (yield from buffer.peek()) == '"':
        return (yield from read_string(buffer)) is not None or buffer.closed
    pieces: list[str] = []
    yield from read_json_value(buffer, pieces.append, "")
    value = "".join(pieces)
    is_short = not value.startswith(("{", "["))
    return is_short and (value == "null" or parse_json(value) is not None or buffer.at_end)


def _read_keyed_call(buffer: TextBuffer, calls: Calls, end: str) -> Resumable[bool]:
    """Read an object in which each key names a tool and its value is the arguments."""
    if not (yield from buffer.read_literal("{")):
        return False
    tool = yield from _read_tool_key(buffer, calls)
    if tool is None:
        return False
    while tool is not None:
        calls.start(tool)
        yield from read_arguments(buffer, calls, tool, end)
        if buffer.at_end:
            return True
        calls.end()
        buffer.pin()
        yield from buffer.skip_space()
        if not (yield from buffer.read_literal(",")):
            buffer.unpin()
            yield from buffer.read_literal("}")
            return True
        tool = yield from _read_tool_key(buffer, calls)
    buffer.rewind()  # another key is no call, but text
    return True


def _read_tool_key(buffer: TextBuffer, calls: Calls) -> Resumable[ToolSpec | None]:
    yield from buffer.skip_space()
    key = yield from read_string(buffer)
    tool = None if key is None else calls.find_tool(key)
    yield from buffer.skip_space()
    yield from buffer.read_literal(":")
    yield from buffer.skip_space()
    return tool
