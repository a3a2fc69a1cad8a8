"""Readers of the text inside a call's markers: one for each way to write name and arguments.

A reader returns False if it finds no call of an offered tool. It has then written nothing, and its
caller rewinds the buffer to where the call would have started, so that the text is kept. Once a
call has started there is no way back: what follows is its arguments, however broken. A reader stops
after its last call; the rest (the closing marker, or stray text) is read as prose again.
"""

# ruff: noqa: RUF001 - DeepSeek's markers contain a full-width bar

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Protocol

from antiphon.adapters.formats.chat_template.families import Region
from antiphon.adapters.formats.chat_template.text_buffer import (
    MarkerFinder,
    Resumable,
    TextBuffer,
    Write,
)
from antiphon.adapters.formats.tools import text_property
from antiphon.domain.tools import ToolSpec

MAX_NAME_LENGTH = 128


class Calls(Protocol):
    """Receives the calls that a reader finds."""

    def find_tool(self, name: str) -> ToolSpec | None: ...

    def start(self, tool: ToolSpec, call_id: str | None = None) -> None: ...

    def write(self, text: str) -> None: ...

    def end(self) -> None: ...


Reader = Callable[[TextBuffer, Calls, Region], Resumable[bool]]


def _ignore(text: str) -> None:
    """Drop text that is markup."""


def _read_more_calls(
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


# --- JSON -----------------------------------------------------------------------------------------

STRING_MARKERS = MarkerFinder('"\\')
ESCAPES: Mapping[str, str] = {
    '"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t",
}  # fmt: skip
HEX = frozenset("0123456789abcdefABCDEF")
REPLACEMENT = "\ufffd"


@cache
def _json_markers(end: str) -> MarkerFinder:
    return MarkerFinder(['"', "{", "}", "[", "]", *([end] if end else [])])


@cache
def _scalar_ends(end: str) -> MarkerFinder:
    return MarkerFinder([",", "}", "]", " ", "\n", "\r", "\t", *([end] if end else [])])


def read_json_value(buffer: TextBuffer, write: Write, end: str, depth: int = 0) -> Resumable[None]:
    """Copy one JSON value, character by character; a broken one ends where its region does.

    `depth` is that of the brackets that were already read. Inside a string, the region's end marker
    is text.
    """
    if not depth and (yield from buffer.peek()) not in ("{", "[", '"'):
        buffer.unread((yield from buffer.read_until(_scalar_ends(end), write)))
        return
    while True:
        marker = yield from buffer.read_until(_json_markers(end), write)
        if not marker or marker == end:
            buffer.unread(marker)
            return
        write(marker)
        if marker == '"':
            yield from _copy_string(buffer, write)
        else:
            depth += 1 if marker in "{[" else -1
        if depth == 0:
            return


def _copy_string(
    buffer: TextBuffer, write: Write, quotes: MarkerFinder = STRING_MARKERS
) -> Resumable[None]:
    while (marker := (yield from buffer.read_until(quotes, write))) == "\\":
        write(marker + (yield from buffer.read_char()))
    write(marker)


def _unescape_string(buffer: TextBuffer, write: Write) -> Resumable[bool]:
    """Write the rest of a JSON string, unescaped; return whether it was closed."""
    while (marker := (yield from buffer.read_until(STRING_MARKERS, write))) == "\\":
        write((yield from _read_escape(buffer)))
    return marker == '"'


def _read_escape(buffer: TextBuffer) -> Resumable[str]:
    char = yield from buffer.read_char()
    if char != "u":
        return ESCAPES.get(char, "\\" + char)
    digits = yield from _read_hex_digits(buffer)
    if len(digits) < 4:
        return "\\u" + digits
    code = int(digits, 16)
    if not 0xD800 <= code < 0xE000:
        return chr(code)
    # A surrogate: a high one and a low one that follows it make one character.
    if code >= 0xDC00 or not (yield from buffer.read_literal("\\u")):
        return REPLACEMENT
    digits = yield from _read_hex_digits(buffer)
    if len(digits) < 4:
        return f"{REPLACEMENT}\\u{digits}"
    low = int(digits, 16)
    if 0xDC00 <= low < 0xE000:
        return chr(0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00))
    return REPLACEMENT + (REPLACEMENT if 0xD800 <= low < 0xDC00 else chr(low))


def _read_hex_digits(buffer: TextBuffer) -> Resumable[str]:
    digits = ""
    while len(digits) < 4 and (yield from buffer.peek()) in HEX:
        digits += yield from buffer.read_char()
    return digits


def _read_string(buffer: TextBuffer) -> Resumable[str | None]:
    """Read a whole JSON string; return None if there is none or it has no end."""
    if not (yield from buffer.read_literal('"')):
        return None
    pieces: list[str] = []
    closed = yield from _unescape_string(buffer, pieces.append)
    return "".join(pieces) if closed else None


def _read_arguments(buffer: TextBuffer, calls: Calls, tool: ToolSpec, end: str) -> Resumable[None]:
    first = yield from buffer.peek()
    if first == '"':  # JSON inside a string, or a custom tool's unwrapped input
        yield from buffer.read_char()
        yield from _unescape_string(buffer, calls.write)
    elif first not in ("{", "["):
        pieces: list[str] = []
        yield from read_json_value(buffer, pieces.append, end)
        scalar = "".join(pieces)
        calls.write(empty_arguments(tool) if scalar == "null" else scalar)
    elif (key := text_property(tool)) is not None:
        yield from _read_text_property(buffer, calls, end, key)
    else:
        yield from read_json_value(buffer, calls.write, end)


def _read_text_property(buffer: TextBuffer, calls: Calls, end: str, key: str) -> Resumable[None]:
    """Unwrap the text in `{key: "…"}`; any other value is the text itself."""
    buffer.pin()
    for part in ("{", f'"{key}"', ":", '"'):
        yield from buffer.skip_space()
        if not (yield from buffer.read_literal(part)):
            buffer.rewind()
            yield from read_json_value(buffer, calls.write, end)
            return
    buffer.unpin()
    yield from _unescape_string(buffer, calls.write)
    yield from read_json_value(buffer, _ignore, end, depth=1)


def empty_arguments(tool: ToolSpec) -> str:
    """Return the arguments of a call for which the model wrote none."""
    return "" if text_property(tool) is not None else "{}"


# --- calls as JSON objects ------------------------------------------------------------------------

NAME_KEYS = frozenset({"name"})
ARGUMENT_KEYS = frozenset({"arguments", "parameters"})
OTHER_KEYS = frozenset({"id", "type"})


def read_json_calls(buffer: TextBuffer, calls: Calls, region: Region) -> Resumable[bool]:
    """Read `{"name": …, "arguments": {…}}`, several in a row or in a list."""
    yield from buffer.skip_space()
    is_list = yield from buffer.read_literal("[")
    yield from buffer.skip_space()
    if not (yield from _read_json_call(buffer, calls, region.end)):
        return False

    def read_call() -> Resumable[bool]:
        separator = yield from buffer.read_char()
        yield from buffer.skip_space()
        return separator in (",", ";") and (yield from _read_json_call(buffer, calls, region.end))

    yield from _read_more_calls(buffer, read_call, is_list=is_list)
    if region.end:
        yield from _skip_surplus_brackets(buffer)
    return True


def _skip_surplus_brackets(buffer: TextBuffer) -> Resumable[None]:
    """Skip surplus closing brackets: models miscount, and the marker still follows."""
    yield from buffer.skip_space()
    while (yield from buffer.peek()) in ("}", "]"):
        yield from buffer.read_char()
        yield from buffer.skip_space()


def _read_json_call(buffer: TextBuffer, calls: Calls, end: str) -> Resumable[bool]:
    if not (yield from buffer.read_literal("{")):
        return False
    tool: ToolSpec | None = None
    early_arguments: str | None = None  # arguments that were written before the name
    has_started = False
    while True:
        yield from buffer.skip_space()
        key = yield from _read_string(buffer)
        if key is None:
            break
        yield from buffer.skip_space()
        yield from buffer.read_literal(":")
        yield from buffer.skip_space()
        if key in NAME_KEYS and tool is None:
            tool = calls.find_tool((yield from _read_string(buffer)) or "")
            if tool is None:
                return False
            if early_arguments is not None:
                calls.start(tool)
                calls.write(unwrap_arguments(tool, early_arguments))
                has_started = True
        elif key in ARGUMENT_KEYS and tool and not has_started:
            calls.start(tool)
            has_started = True
            yield from _read_arguments(buffer, calls, tool, end)
        elif key in ARGUMENT_KEYS and not has_started:
            early_arguments = yield from _collect_json_value(buffer, end)
        elif has_started or key in OTHER_KEYS:
            yield from read_json_value(buffer, _ignore, end)
        else:
            return False
        yield from buffer.skip_space()
        if not (yield from buffer.read_literal(",")):
            break
    if tool is None:
        return False
    if not has_started:
        # Only the end of the text excuses a call that lacks both arguments and bracket.
        if (yield from buffer.peek()) not in ("}", ""):
            return False
        calls.start(tool)
        if not buffer.at_end:
            calls.write(empty_arguments(tool))
    if not buffer.at_end:
        yield from buffer.read_literal("}")
        calls.end()
    return True


def _collect_json_value(buffer: TextBuffer, end: str) -> Resumable[str]:
    pieces: list[str] = []
    yield from read_json_value(buffer, pieces.append, end)
    return "".join(pieces)


def unwrap_arguments(tool: ToolSpec, arguments: str) -> str:
    """Return complete arguments as a call's delta has them: a wrapped text without its wrapping."""
    value = _parse_json(arguments)
    if isinstance(value, str):
        return value
    if value is None and arguments == "null":
        return empty_arguments(tool)
    key = text_property(tool)
    if key is not None and isinstance(value, dict) and isinstance(value.get(key), str):
        text: str = value[key]
        return text
    return arguments


def _parse_json(text: str) -> Any:
    """Return the value of a JSON text, None if it is not JSON (or null)."""
    try:
        return json.loads(text, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        return None


def _reject_constant(constant: str) -> Any:
    raise ValueError(constant)


# --- name first, then JSON arguments --------------------------------------------------------------

RANDOM_ID_LENGTH = 9
AFTER_NAME = MarkerFinder(["[ARGS]", "[CALL_ID]", "{"])
AFTER_ID = MarkerFinder(["[ARGS]", "{"])
SEPARATOR = MarkerFinder(["<｜tool▁sep｜>"])
OPENING_BRACE = MarkerFinder(["{"])


def read_named_call(buffer: TextBuffer, calls: Calls, region: Region) -> Resumable[bool]:
    """Read `name[ARGS]{…}`, `name[CALL_ID]id[ARGS]{…}` or `name{…}`; else a JSON list of calls."""
    yield from buffer.skip_space()
    if (yield from buffer.peek()) in ("[", "{"):
        return (yield from read_json_calls(buffer, calls, region))
    head = yield from buffer.read_up_to(AFTER_NAME, MAX_NAME_LENGTH)
    if head is None:
        return False
    name, marker = head
    tool = calls.find_tool(name.strip())
    call_id: str | None = None
    if marker == "[CALL_ID]":
        id_head = yield from buffer.read_up_to(AFTER_ID, 64)
        if id_head is None:
            return False
        call_id, marker = _usable_call_id(id_head[0]), id_head[1]
    if tool is None:
        return False
    buffer.unread(marker if marker == "{" else "")
    return (yield from _read_call(buffer, calls, tool, region, call_id))


def _usable_call_id(call_id: str) -> str | None:
    # A random id is as good as ours. A counted one ("call_1") would repeat in every turn.
    return call_id if len(call_id) == RANDOM_ID_LENGTH and call_id.isalnum() else None


def read_fenced_call(buffer: TextBuffer, calls: Calls, region: Region) -> Resumable[bool]:
    """Read `function<sep>name`, then arguments in a JSON fence; or `name<sep>{…}`."""
    kind = yield from buffer.read_up_to(SEPARATOR, MAX_NAME_LENGTH)
    if kind is None:
        return False
    head = yield from buffer.read_up_to(OPENING_BRACE, 2 * MAX_NAME_LENGTH)
    if head is None:
        return False
    tool = calls.find_tool(head[0].split("\n")[0].strip() or kind[0].strip())
    if tool is None:
        return False
    buffer.unread("{")
    has_call = yield from _read_call(buffer, calls, tool, region, None)
    buffer.pin()
    yield from buffer.skip_space()
    if (yield from buffer.read_literal("```")):
        buffer.unpin()
    else:
        buffer.rewind()
    return has_call


def _read_call(
    buffer: TextBuffer, calls: Calls, tool: ToolSpec, region: Region, call_id: str | None
) -> Resumable[bool]:
    calls.start(tool, call_id)
    yield from buffer.skip_space()
    yield from _read_arguments(buffer, calls, tool, region.end)
    if not buffer.at_end:
        calls.end()
    return True


# --- XML ------------------------------------------------------------------------------------------

TAG_END = MarkerFinder([">"])
# A newline before the closing tag belongs to the tag.
VALUE_END = MarkerFinder(["\n</parameter>", "</parameter>"])


def read_tool_call(buffer: TextBuffer, calls: Calls, region: Region) -> Resumable[bool]:
    """Read the text after `<tool_call>`: JSON or, if it starts with `<function=`, XML."""
    yield from buffer.skip_space()
    if (yield from buffer.read_literal("<function=")):
        return (yield from read_xml_calls(buffer, calls, region))
    return (yield from read_json_calls(buffer, calls, region))


def read_xml_calls(buffer: TextBuffer, calls: Calls, _: Region) -> Resumable[bool]:
    """Read the text after `<function=`: `name>`, then `<parameter=key>` value `</parameter>`, …"""
    if not (yield from _read_xml_call(buffer, calls)):
        return False

    def read_call() -> Resumable[bool]:
        has_tag = yield from buffer.read_literal("<function=")
        return has_tag and (yield from _read_xml_call(buffer, calls))

    yield from _read_more_calls(buffer, read_call)
    return True


def _read_xml_call(buffer: TextBuffer, calls: Calls) -> Resumable[bool]:
    head = yield from buffer.read_up_to(TAG_END, MAX_NAME_LENGTH)
    tool = calls.find_tool(head[0].strip()) if head else None
    if tool is None:
        return False
    calls.start(tool)
    separator = "{"
    while True:
        yield from buffer.skip_space()
        if not (yield from buffer.read_literal("<parameter=")):
            break
        key = yield from buffer.read_up_to(TAG_END, MAX_NAME_LENGTH)
        if key is None:
            break
        if text_property(tool) is not None:
            write = calls.write if key[0].strip() == text_property(tool) else _ignore
            yield from _read_xml_value(buffer, write)
        else:
            calls.write(f"{separator}{_quote(key[0].strip())}: ")
            separator = ", "
            yield from _read_xml_argument(buffer, calls, tool, key[0].strip())
    # If the text ends here, the call stays open and its arguments unfinished.
    closed = yield from buffer.read_literal("</function>")
    if closed or not buffer.at_end:
        if text_property(tool) is None:
            calls.write("{}" if separator == "{" else "}")
        calls.end()
    return True


def _read_xml_argument(
    buffer: TextBuffer, calls: Calls, tool: ToolSpec, key: str
) -> Resumable[None]:
    if may_be_json(tool.parameters or {}, key):
        pieces: list[str] = []
        if (yield from _read_xml_value(buffer, pieces.append)):
            calls.write(text_to_json("".join(pieces)))
        else:
            calls.write("".join(pieces))
        return
    calls.write('"')
    if (yield from _read_xml_value(buffer, lambda text: calls.write(_escape_text(text)))):
        calls.write('"')


def _read_xml_value(buffer: TextBuffer, write: Write) -> Resumable[bool]:
    if (yield from buffer.peek()) == "\n":
        yield from buffer.read_char()
    return bool((yield from buffer.read_until(VALUE_END, write)))


def may_be_json(schema: Mapping[str, Any], key: str) -> bool:
    """Whether the schema allows anything but a string for `key`; an unknown key is a string."""
    properties = schema.get("properties")
    property_schema = properties.get(key) if isinstance(properties, dict) else None
    return bool(_allowed_types(property_schema) - {"string"})


def _allowed_types(schema: Any) -> set[str]:
    if not isinstance(schema, dict):
        return set()
    if "$ref" in schema:
        return {"object"}
    declared = schema.get("type")
    types = {name for name in (_as_list(declared) or [declared]) if isinstance(name, str)}
    for alternative in (*_as_list(schema.get("anyOf")), *_as_list(schema.get("oneOf"))):
        types |= _allowed_types(alternative)
    return types or {
        "string" if isinstance(value, str) else "other" for value in _as_list(schema.get("enum"))
    }


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


PYTHON_NAMES: Mapping[str, Any] = {
    "True": True, "False": False, "None": None, "true": True, "false": False, "null": None,
}  # fmt: skip


def text_to_json(text: str) -> str:
    """Return the text itself if it is JSON, or as a JSON string.

    >>> text_to_json(" 3"), text_to_json("True"), text_to_json("three")
    ('3', 'true', '"three"')
    """
    bare = text.strip()
    if bare in PYTHON_NAMES:
        return json.dumps(PYTHON_NAMES[bare])
    return _quote(text) if _parse_json(bare) is None else bare


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _escape_text(text: str) -> str:
    return _quote(text)[1:-1]


# --- Python ---------------------------------------------------------------------------------------

NAME_END = MarkerFinder("()[]{}<> \n,:;=\"'")
PYTHON_MARKERS = MarkerFinder("()[]{}\"'")
PYTHON_QUOTES: Mapping[str, MarkerFinder] = {'"': STRING_MARKERS, "'": MarkerFinder("'\\")}


def read_pythonic_calls(buffer: TextBuffer, calls: Calls, _: Region) -> Resumable[bool]:
    """Read `[name(key=value, …), …]`, call by call: the values are Python, not JSON."""
    yield from buffer.skip_space()
    is_list = yield from buffer.read_literal("[")
    if not (yield from _read_python_call(buffer, calls)):
        return False

    def read_call() -> Resumable[bool]:
        has_comma = yield from buffer.read_literal(",")
        return has_comma and (yield from _read_python_call(buffer, calls))

    yield from _read_more_calls(buffer, read_call, is_list=is_list)
    return True


def _read_python_call(buffer: TextBuffer, calls: Calls) -> Resumable[bool]:
    yield from buffer.skip_space()
    head = yield from buffer.read_up_to(NAME_END, MAX_NAME_LENGTH)
    tool = calls.find_tool(head[0]) if head and head[1] == "(" else None
    if tool is None:
        return False
    pieces: list[str] = []
    depth = 1
    while depth:
        marker = yield from buffer.read_until(PYTHON_MARKERS, pieces.append)
        if not marker:
            return False
        pieces.append(marker)
        if marker in PYTHON_QUOTES:
            yield from _copy_string(buffer, pieces.append, PYTHON_QUOTES[marker])
        else:
            depth += 1 if marker in "([{" else -1
    arguments = python_to_json("".join(pieces))
    if arguments is None:
        return False
    calls.start(tool)
    calls.write(unwrap_arguments(tool, arguments))
    calls.end()
    return True


def python_to_json(source: str) -> str | None:
    """Return `key=value, …)` as JSON, or None unless all arguments are literals with names.

    >>> python_to_json("city='Paris', days=[1, 2], metric=True)")
    '{"city": "Paris", "days": [1, 2], "metric": true}'
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # for an odd escape in the model's text
            call = ast.parse(f"f({source}", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            return None
        values = {keyword.arg: _literal_value(keyword.value) for keyword in call.keywords}
        if None in values:
            return None
        return json.dumps(values, ensure_ascii=False, allow_nan=False)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def _literal_value(node: ast.expr) -> Any:
    match node:
        case ast.Name(id=name) if name in PYTHON_NAMES:
            return PYTHON_NAMES[name]
        case ast.List(elts=values) | ast.Tuple(elts=values):
            return [_literal_value(value) for value in values]
        case ast.Dict(keys=keys, values=values):
            pairs = zip(keys, values, strict=True)
            return {_literal_value(k): _literal_value(v) for k, v in pairs if k is not None}
        case _:
            return ast.literal_eval(node)


READERS: Mapping[str, Reader] = {
    "tool_call": read_tool_call,
    "json": read_json_calls,
    "xml": read_xml_calls,
    "named": read_named_call,
    "fenced": read_fenced_call,
    "pythonic": read_pythonic_calls,
}
