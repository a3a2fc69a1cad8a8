"""Read JSON as a model writes it: streamed, and kept even where it is broken."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from antiphon.adapters.formats.chat_template.parsing.text_buffer import (
    MarkerFinder,
    Resumable,
    TextBuffer,
    Write,
)
from antiphon.adapters.formats.chat_template.payloads.calls import (
    Calls,
    empty_arguments,
    ignore,
    is_name,
)
from antiphon.adapters.formats.tools import text_property
from antiphon.domain.tools import ToolSpec

STRING_MARKERS = MarkerFinder('"\\')
ESCAPES: Mapping[str, str] = {
    '"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t",
}  # fmt: skip
SURPLUS_MEMBERS = 4
MAX_MEMBER_LENGTH = 1000
FENCE = "```"
QUOTED = "\"'\\"
HEX = frozenset("0123456789abcdefABCDEF")
REPLACEMENT = "\ufffd"


JSON_MARKERS = ('"', "{", "}", "[", "]")
End = str | tuple[str, ...]
"""What ends a region: a marker, one of several, or "" if none does."""


def markers_of(end: End) -> tuple[str, ...]:
    return ((end,) if end else ()) if isinstance(end, str) else end


@cache
def _json_markers(end: End) -> MarkerFinder:
    return MarkerFinder([*JSON_MARKERS, *markers_of(end)])


@cache
def _scalar_ends(end: End) -> MarkerFinder:
    return MarkerFinder([",", "}", "]", " ", "\n", "\r", "\t", *markers_of(end)])


@cache
def _region_ends(end: End) -> MarkerFinder:
    return MarkerFinder(markers_of(end))


@cache
def _text_markers(end: End) -> MarkerFinder:
    # No string of valid JSON has a line break, so its closing quote is missing.
    unclosed = (f"{brackets}\n{each}" for each in markers_of(end) for brackets in ("}", "}}"))
    return MarkerFinder([*STRING_MARKERS.markers, *unclosed])


def read_json_value(buffer: TextBuffer, write: Write, end: End, depth: int = 0) -> Resumable[bool]:
    """Copy one JSON value, character by character; a broken one ends where its region does.

    Return whether the value has an end.

    `depth` is that of the brackets that were already read. Inside a string, the region's end marker
    is text.
    """
    if not depth and (yield from buffer.peek()) not in ("{", "[", '"'):
        marker = yield from buffer.read_until(_scalar_ends(end), write)
        buffer.unread(marker)
        return bool(marker)
    while True:
        marker = yield from buffer.read_until(_json_markers(end), write)
        if marker not in JSON_MARKERS:
            buffer.unread(marker)
            return False
        write(marker)
        if marker == '"':
            yield from copy_string(buffer, write)
        else:
            depth += 1 if marker in "{[" else -1
        if depth == 0:
            return True


def copy_string(
    buffer: TextBuffer, write: Write, quotes: MarkerFinder = STRING_MARKERS
) -> Resumable[None]:
    while (marker := (yield from buffer.read_until(quotes, write))) == "\\":
        write(marker + (yield from buffer.read_char()))
    write(marker)


def _unescape_string(buffer: TextBuffer, write: Write) -> Resumable[bool]:
    """Write the rest of a JSON string, unescaped; return whether it was closed."""
    while (marker := (yield from buffer.read_until(STRING_MARKERS, write))) == "\\":
        write((yield from read_escape(buffer)))
    return marker == '"'


def read_escape(buffer: TextBuffer) -> Resumable[str]:
    char = yield from buffer.read_char()
    if char != "u":
        return ESCAPES.get(char, "\\" + char)
    digits = yield from read_hex_digits(buffer)
    if len(digits) < 4:
        return "\\u" + digits
    code = int(digits, 16)
    if not 0xD800 <= code < 0xE000:
        return chr(code)
    # A surrogate: a high one and a low one that follows it make one character.
    if code >= 0xDC00 or not (yield from buffer.read_literal("\\u")):
        return REPLACEMENT
    digits = yield from read_hex_digits(buffer)
    if len(digits) < 4:
        return f"{REPLACEMENT}\\u{digits}"
    low = int(digits, 16)
    if 0xDC00 <= low < 0xE000:
        return chr(0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00))
    return REPLACEMENT + (REPLACEMENT if 0xD800 <= low < 0xDC00 else chr(low))


def read_hex_digits(buffer: TextBuffer, count: int = 4) -> Resumable[str]:
    digits = ""
    while len(digits) < count and (yield from buffer.peek()) in HEX:
        digits += yield from buffer.read_char()
    return digits


def read_string(buffer: TextBuffer) -> Resumable[str | None]:
    """Read a whole JSON string; return None if there is none or it has no end."""
    if not (yield from buffer.read_literal('"')):
        return None
    pieces: list[str] = []
    closed = yield from _unescape_string(buffer, pieces.append)
    return "".join(pieces) if closed else None


def read_arguments(buffer: TextBuffer, calls: Calls, tool: ToolSpec, end: End) -> Resumable[bool]:
    """Write the arguments of a call; return whether they have an end."""
    first = yield from buffer.peek()
    if first == '"':  # JSON inside a string, or a custom tool's unwrapped input
        yield from buffer.read_char()
        if text_property(tool) is None:
            calls.note("encoded_arguments")
            return (yield from _unescape_string(buffer, calls.write))
        return (yield from _read_loose_text(buffer, calls, end))
    if first not in ("{", "["):
        pieces: list[str] = []
        is_whole = yield from read_json_value(buffer, pieces.append, end)
        scalar = "".join(pieces)
        calls.write(empty_arguments(tool) if scalar == "null" else scalar)
        return is_whole
    if (key := text_property(tool)) is not None:
        return (yield from _read_text_property(buffer, calls, end, key))
    return (yield from read_json_value(buffer, calls.write, end))


def _read_text_property(buffer: TextBuffer, calls: Calls, end: End, key: str) -> Resumable[bool]:
    """Unwrap the text in `{key: "…"}`; any other value is the text itself."""
    buffer.pin()
    for part in ("{", f'"{key}"', ":", '"'):
        yield from buffer.skip_space()
        if not (yield from buffer.read_literal(part)):
            buffer.rewind()
            return (yield from read_json_value(buffer, calls.write, end))
    buffer.unpin()
    yield from _read_loose_text(buffer, calls, end)
    return (yield from _read_members_after_text(buffer, calls, end))


def _read_members_after_text(buffer: TextBuffer, calls: Calls, end: End) -> Resumable[bool]:
    """Read up to the bracket, and write what else stands before it, which is lost nowhere else.

    Only members with a number or the like are no text. Return whether the bracket is there.
    """
    while (yield from _skip_plain_member(buffer)):
        pass
    char = yield from _peek_after_space(buffer)
    if char in ("}", "]") or (yield from _is_at_end(buffer, end)):
        return (yield from read_json_value(buffer, ignore, end, depth=1))
    has_members = yield from buffer.read_literal(",")
    yield from buffer.skip_space()
    calls.write("\n{" if has_members else "\n")
    return (yield from read_json_value(buffer, calls.write, end, depth=1))


def _skip_plain_member(buffer: TextBuffer) -> Resumable[bool]:
    """Skip a comma, a name and a value that is no text and no list or object, if they follow."""
    buffer.pin()
    yield from buffer.skip_space()
    if (yield from buffer.read_literal(",")):
        yield from buffer.skip_space()
        key = yield from _read_short_string(buffer)
        if key is not None and is_name(key) and (yield from _peek_after_space(buffer)) == ":":
            buffer.pos += 1
            if (yield from _peek_after_space(buffer)) != '"' and (
                yield from _skip_short_value(buffer)
            ):
                buffer.unpin()
                return True
    buffer.rewind()
    return False


def _is_at_end(buffer: TextBuffer, end: End) -> Resumable[bool]:
    marker = yield from buffer.read_marker(_region_ends(end))
    buffer.unread(marker)
    return bool(marker) or buffer.at_end


def _read_loose_text(buffer: TextBuffer, calls: Calls, end: End) -> Resumable[bool]:
    """Write the rest of a JSON string, unescaped; return whether it was closed.

    Models forget to escape the quotes of a program, so a quote only closes the text where the call
    goes on after it, or ends. They also forget the last quote.
    """
    is_first = True
    while marker := (yield from buffer.read_until(_text_markers(end), calls.write)):
        if marker == "\\":
            calls.write((yield from read_escape(buffer)))
            continue
        buffer.pin()
        if marker == '"':
            is_end = yield from _ends_text(buffer, calls, end, is_first=is_first)
        else:
            is_end = yield from _is_before_marker(buffer, calls, end)
        buffer.rewind()
        if is_end:
            buffer.unread(marker.removeprefix('"'))
            return True
        calls.write(marker)
        calls.note("quotes")
        is_first = False
    return False


def _ends_text(buffer: TextBuffer, calls: Calls, end: End, *, is_first: bool) -> Resumable[bool]:
    """Whether a quote that was read ends the text: brackets follow, and then what follows a call.

    The first quote may also end the text of a call with anything else after it: all of it is JSON.
    """
    closers = members = 0
    while char := (yield from _peek_after_space(buffer)):
        if char == "}" or (char == "]" and closers):
            buffer.pos += 1
            closers += 1
        elif char in ",;":
            buffer.pos += 1
            if (yield from _peek_after_space(buffer)) == "{":
                return closers > 1  # the next call of a list
            key = yield from _read_short_string(buffer)
            if key is None or (yield from _peek_after_space(buffer)) != ":":
                return False
            if is_first or (closers and calls.is_name(key)):
                return True
            buffer.pos += 1
            members += 1
            if members > SURPLUS_MEMBERS or not (yield from _skip_short_value(buffer)):
                return False
        else:
            break
    if not char:
        return is_first or closers > 0
    if char == "{":
        return closers > (0 if is_first else 1)
    if closers:
        yield from buffer.read_literal(FENCE)
        follows = yield from _reads_marker(buffer, calls, end)
        return follows or (is_first and char not in QUOTED)
    has_end = yield from _reads_marker(buffer, calls, end)
    return has_end and (yield from _is_before_marker(buffer, calls, end))


def _is_before_marker(buffer: TextBuffer, calls: Calls, end: End) -> Resumable[bool]:
    """Whether the text ends here, or a marker follows."""
    char = yield from _peek_after_space(buffer)
    return not char or (yield from _reads_marker(buffer, calls, end))


def _reads_marker(buffer: TextBuffer, calls: Calls, end: End) -> Resumable[bool]:
    marker = yield from buffer.read_marker(_region_ends(end))
    return bool(marker or (yield from buffer.read_marker(calls.markers)))


def _peek_after_space(buffer: TextBuffer) -> Resumable[str]:
    yield from buffer.skip_space()
    return (yield from buffer.peek())


def _read_short_string(buffer: TextBuffer) -> Resumable[str | None]:
    """Read a JSON string; return it without unescaping it, or None if it is none or too long."""
    if not (yield from buffer.read_literal('"')):
        return None
    start = buffer.pos
    while found := (yield from buffer.read_up_to(STRING_MARKERS, MAX_MEMBER_LENGTH)):
        if found[1] == '"':
            return buffer.text[start : buffer.pos - 1]
        yield from buffer.read_char()
    return None


def _skip_short_value(buffer: TextBuffer) -> Resumable[bool]:
    """Skip a JSON value that has no parts; return whether there is one."""
    if (yield from _peek_after_space(buffer)) == '"':
        return (yield from _read_short_string(buffer)) is not None
    scalar = yield from buffer.read_up_to(_scalar_ends(""), MAX_MEMBER_LENGTH)
    if scalar is None:
        return False
    buffer.unread(scalar[1])
    return scalar[0] == "null" or parse_json(scalar[0]) is not None


def unwrap_arguments(tool: ToolSpec, arguments: str) -> str:
    """Return complete arguments as a call's delta has them: a wrapped text without its wrapping."""
    value = parse_json(arguments)
    if isinstance(value, str):
        return value
    if value is None and arguments == "null":
        return empty_arguments(tool)
    key = text_property(tool)
    if key is not None and isinstance(value, dict) and isinstance(value.get(key), str):
        text: str = value.pop(key)
        rest = {name: each for name, each in value.items() if isinstance(each, str | list | dict)}
        return f"{text}\n{json.dumps(rest, ensure_ascii=False)}" if rest else text
    return arguments


def parse_json(text: str) -> Any:
    """Return the value of a JSON text, None if it is not JSON (or null)."""
    try:
        return json.loads(text, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        return None


def _reject_constant(constant: str) -> Any:
    raise ValueError(constant)


def quote_json(text: str) -> str:
    """Return the text as a JSON string."""
    return json.dumps(text, ensure_ascii=False)
