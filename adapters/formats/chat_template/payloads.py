"""Readers of what stands inside a call's markers: one for each way to write name and arguments.

A reader returns False where it finds no call of an offered tool: nothing has been given out then,
and the tape goes back to where the call began, so that the text is kept. Once a call has begun
there is no way back: what follows is its arguments, however broken. A reader stops after its last
call; what is left (the closing marker, or text that should not be there) is read as prose again.
"""

# ruff: noqa: RUF001 - DeepSeek's markers are spelled with a full-width bar

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

LONGEST_NAME = 128


class Calls(Protocol):
    """Takes the calls that a reader finds."""

    def offered(self, name: str) -> ToolSpec | None: ...

    def begin(self, tool: ToolSpec, call_id: str | None = None) -> None: ...

    def write(self, text: str) -> None: ...

    def end(self) -> None: ...


Reader = Callable[[TextBuffer, Calls, Region], Resumable[bool]]


def _ignore(text: str) -> None:
    """Take text that is markup."""


def _others(
    tape: TextBuffer, another: Callable[[], Resumable[bool]], *, listed: bool = False
) -> Resumable[None]:
    """Read the calls that follow the first; what is no call (nor the end of a list) stays."""
    while True:
        tape.pin()
        yield from tape.space()
        if listed and (yield from tape.literal("]")):
            break
        if not (yield from another()):
            tape.back()
            break
    tape.release()


# --- JSON -----------------------------------------------------------------------------------------

STRING = MarkerFinder('"\\')
ESCAPES: Mapping[str, str] = {
    '"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t",
}  # fmt: skip
HEX = frozenset("0123456789abcdefABCDEF")
LOST = "\ufffd"


@cache
def _structure(end: str) -> MarkerFinder:
    return MarkerFinder(['"', "{", "}", "[", "]", *([end] if end else [])])


@cache
def _after_scalar(end: str) -> MarkerFinder:
    return MarkerFinder([",", "}", "]", " ", "\n", "\r", "\t", *([end] if end else [])])


def json_value(tape: TextBuffer, write: Write, end: str, depth: int = 0) -> Resumable[None]:
    """Pass one JSON value on, letter for letter; a broken one ends where its region does.

    With `depth` the value has been entered already. Inside a string the region's end is text.
    """
    if not depth and (yield from tape.peek()) not in ("{", "[", '"'):
        tape.unread((yield from tape.until(_after_scalar(end), write)))
        return
    while True:
        mark = yield from tape.until(_structure(end), write)
        if not mark or mark == end:
            tape.unread(mark)
            return
        write(mark)
        if mark == '"':
            yield from _raw_string(tape, write)
        else:
            depth += 1 if mark in "{[" else -1
        if depth == 0:
            return


def _raw_string(tape: TextBuffer, write: Write, quotes: MarkerFinder = STRING) -> Resumable[None]:
    while (mark := (yield from tape.until(quotes, write))) == "\\":
        write(mark + (yield from tape.next()))
    write(mark)


def _unescaped(tape: TextBuffer, write: Write) -> Resumable[bool]:
    """Pass on what the rest of a JSON string says; return whether it was closed."""
    while (mark := (yield from tape.until(STRING, write))) == "\\":
        write((yield from _escape(tape)))
    return mark == '"'


def _escape(tape: TextBuffer) -> Resumable[str]:
    char = yield from tape.next()
    if char != "u":
        return ESCAPES.get(char, "\\" + char)
    digits = yield from _hex(tape)
    if len(digits) < 4:
        return "\\u" + digits
    code = int(digits, 16)
    if not 0xD800 <= code < 0xE000:
        return chr(code)
    # Half of a character: only a low half that follows a high one makes it whole.
    if code >= 0xDC00 or not (yield from tape.literal("\\u")):
        return LOST
    digits = yield from _hex(tape)
    if len(digits) < 4:
        return f"{LOST}\\u{digits}"
    low = int(digits, 16)
    if 0xDC00 <= low < 0xE000:
        return chr(0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00))
    return LOST + (LOST if 0xD800 <= low < 0xDC00 else chr(low))


def _hex(tape: TextBuffer) -> Resumable[str]:
    digits = ""
    while len(digits) < 4 and (yield from tape.peek()) in HEX:
        digits += yield from tape.next()
    return digits


def _string(tape: TextBuffer) -> Resumable[str | None]:
    """Read a JSON string whole; None if there is none, or only its beginning."""
    if not (yield from tape.literal('"')):
        return None
    pieces: list[str] = []
    closed = yield from _unescaped(tape, pieces.append)
    return "".join(pieces) if closed else None


def _arguments(tape: TextBuffer, calls: Calls, tool: ToolSpec, end: str) -> Resumable[None]:
    first = yield from tape.peek()
    if first == '"':  # JSON inside a string, or a custom tool's input as it is
        yield from tape.next()
        yield from _unescaped(tape, calls.write)
    elif first not in ("{", "["):
        pieces: list[str] = []
        yield from json_value(tape, pieces.append, end)
        scalar = "".join(pieces)
        calls.write(empty(tool) if scalar == "null" else scalar)
    elif (key := text_property(tool)) is not None:
        yield from _input(tape, calls, end, key)
    else:
        yield from json_value(tape, calls.write, end)


def _input(tape: TextBuffer, calls: Calls, end: str, key: str) -> Resumable[None]:
    """Unwrap `{"input": "…"}`, or what else `key` is; any other value is the input itself."""
    tape.pin()
    for part in ("{", f'"{key}"', ":", '"'):
        yield from tape.space()
        if not (yield from tape.literal(part)):
            tape.back()
            yield from json_value(tape, calls.write, end)
            return
    tape.release()
    yield from _unescaped(tape, calls.write)
    yield from json_value(tape, _ignore, end, depth=1)


def empty(tool: ToolSpec) -> str:
    """Return what a call hands over if the model wrote no arguments."""
    return "" if text_property(tool) is not None else "{}"


# --- calls as JSON objects ------------------------------------------------------------------------

NAME_KEYS = frozenset({"name"})
ARGUMENT_KEYS = frozenset({"arguments", "parameters"})
OTHER_KEYS = frozenset({"id", "type"})


def json_calls(tape: TextBuffer, calls: Calls, region: Region) -> Resumable[bool]:
    """Read `{"name": …, "arguments": {…}}`, several in a row or in a list."""
    yield from tape.space()
    listed = yield from tape.literal("[")
    yield from tape.space()
    if not (yield from _json_call(tape, calls, region.end)):
        return False

    def another() -> Resumable[bool]:
        separator = yield from tape.next()
        yield from tape.space()
        return separator in (",", ";") and (yield from _json_call(tape, calls, region.end))

    yield from _others(tape, another, listed=listed)
    if region.end:
        yield from _surplus_brackets(tape)
    return True


def _surplus_brackets(tape: TextBuffer) -> Resumable[None]:
    """Read past a closing bracket too many: models miscount, and the marker still follows."""
    yield from tape.space()
    while (yield from tape.peek()) in ("}", "]"):
        yield from tape.next()
        yield from tape.space()


def _json_call(tape: TextBuffer, calls: Calls, end: str) -> Resumable[bool]:
    if not (yield from tape.literal("{")):
        return False
    tool: ToolSpec | None = None
    early: str | None = None  # arguments that were written before the name
    begun = False
    while True:
        yield from tape.space()
        key = yield from _string(tape)
        if key is None:
            break
        yield from tape.space()
        yield from tape.literal(":")
        yield from tape.space()
        if key in NAME_KEYS and tool is None:
            tool = calls.offered((yield from _string(tape)) or "")
            if tool is None:
                return False
            if early is not None:
                calls.begin(tool)
                calls.write(whole(tool, early))
                begun = True
        elif key in ARGUMENT_KEYS and tool and not begun:
            calls.begin(tool)
            begun = True
            yield from _arguments(tape, calls, tool, end)
        elif key in ARGUMENT_KEYS and not begun:
            early = yield from _kept(tape, end)
        elif begun or key in OTHER_KEYS:
            yield from json_value(tape, _ignore, end)
        else:
            return False
        yield from tape.space()
        if not (yield from tape.literal(",")):
            break
    if tool is None:
        return False
    if not begun:
        # Only the end of the text may leave a call without arguments and without its bracket.
        if (yield from tape.peek()) not in ("}", ""):
            return False
        calls.begin(tool)
        if not tape.over:
            calls.write(empty(tool))
    if not tape.over:
        yield from tape.literal("}")
        calls.end()
    return True


def _kept(tape: TextBuffer, end: str) -> Resumable[str]:
    pieces: list[str] = []
    yield from json_value(tape, pieces.append, end)
    return "".join(pieces)


def whole(tool: ToolSpec, arguments: str) -> str:
    """Return arguments that are known in full as the call's delta has them."""
    value = _loads(arguments)
    if isinstance(value, str):
        return value
    if value is None and arguments == "null":
        return empty(tool)
    key = text_property(tool)
    if key is not None and isinstance(value, dict) and isinstance(value.get(key), str):
        text: str = value[key]
        return text
    return arguments


def _loads(text: str) -> Any:
    """Return what a JSON text says; None if it is not JSON (or null)."""
    try:
        return json.loads(text, parse_constant=_not_json)
    except (ValueError, RecursionError):
        return None


def _not_json(constant: str) -> Any:
    raise ValueError(constant)


# --- name first, then JSON arguments --------------------------------------------------------------

DRAWN_ID = 9
AFTER_NAME = MarkerFinder(["[ARGS]", "[CALL_ID]", "{"])
AFTER_ID = MarkerFinder(["[ARGS]", "{"])
SEPARATOR = MarkerFinder(["<｜tool▁sep｜>"])
BRACE = MarkerFinder(["{"])


def named_call(tape: TextBuffer, calls: Calls, region: Region) -> Resumable[bool]:
    """Read `name[ARGS]{…}`, `name[CALL_ID]id[ARGS]{…}` or `name{…}`; else a JSON list of calls."""
    yield from tape.space()
    if (yield from tape.peek()) in ("[", "{"):
        return (yield from json_calls(tape, calls, region))
    found = yield from tape.upto(AFTER_NAME, LONGEST_NAME)
    if found is None:
        return False
    name, mark = found
    tool = calls.offered(name.strip())
    call_id: str | None = None
    if mark == "[CALL_ID]":
        identified = yield from tape.upto(AFTER_ID, 64)
        if identified is None:
            return False
        call_id, mark = _unique(identified[0]), identified[1]
    if tool is None:
        return False
    tape.unread(mark if mark == "{" else "")
    return (yield from _call(tape, calls, tool, region, call_id))


def _unique(call_id: str) -> str | None:
    # A drawn id is as good as ours. One that is counted ("call_1") would come again in each turn.
    return call_id if len(call_id) == DRAWN_ID and call_id.isalnum() else None


def fenced_call(tape: TextBuffer, calls: Calls, region: Region) -> Resumable[bool]:
    """Read `function<sep>name`, then arguments in a JSON fence; or `name<sep>{…}`."""
    kind = yield from tape.upto(SEPARATOR, LONGEST_NAME)
    if kind is None:
        return False
    head = yield from tape.upto(BRACE, 2 * LONGEST_NAME)
    if head is None:
        return False
    tool = calls.offered(head[0].split("\n")[0].strip() or kind[0].strip())
    if tool is None:
        return False
    tape.unread("{")
    done = yield from _call(tape, calls, tool, region, None)
    tape.pin()
    yield from tape.space()
    if (yield from tape.literal("```")):
        tape.release()
    else:
        tape.back()
    return done


def _call(
    tape: TextBuffer, calls: Calls, tool: ToolSpec, region: Region, call_id: str | None
) -> Resumable[bool]:
    calls.begin(tool, call_id)
    yield from tape.space()
    yield from _arguments(tape, calls, tool, region.end)
    if not tape.over:
        calls.end()
    return True


# --- XML ------------------------------------------------------------------------------------------

TAG_END = MarkerFinder([">"])
# A newline before the closing tag belongs to the tag.
VALUE_END = MarkerFinder(["\n</parameter>", "</parameter>"])


def tool_call(tape: TextBuffer, calls: Calls, region: Region) -> Resumable[bool]:
    """Read what follows `<tool_call>`: JSON or, where a `<` comes first, XML."""
    yield from tape.space()
    if (yield from tape.literal("<function=")):
        return (yield from xml_calls(tape, calls, region))
    return (yield from json_calls(tape, calls, region))


def xml_calls(tape: TextBuffer, calls: Calls, _: Region) -> Resumable[bool]:
    """Read on from `<function=`: `name>`, then `<parameter=key>` value `</parameter>`, …"""
    if not (yield from _xml_call(tape, calls)):
        return False

    def another() -> Resumable[bool]:
        return (yield from tape.literal("<function=")) and (yield from _xml_call(tape, calls))

    yield from _others(tape, another)
    return True


def _xml_call(tape: TextBuffer, calls: Calls) -> Resumable[bool]:
    head = yield from tape.upto(TAG_END, LONGEST_NAME)
    tool = calls.offered(head[0].strip()) if head else None
    if tool is None:
        return False
    calls.begin(tool)
    before = "{"
    while True:
        yield from tape.space()
        if not (yield from tape.literal("<parameter=")):
            break
        key = yield from tape.upto(TAG_END, LONGEST_NAME)
        if key is None:
            break
        if text_property(tool) is not None:
            write = calls.write if key[0].strip() == text_property(tool) else _ignore
            yield from _xml_value(tape, write)
        else:
            calls.write(f"{before}{_quoted(key[0].strip())}: ")
            before = ", "
            yield from _xml_argument(tape, calls, tool, key[0].strip())
    # Cut off by the end of the text, the call stays open and its arguments unfinished.
    closed = yield from tape.literal("</function>")
    if closed or not tape.over:
        if text_property(tool) is None:
            calls.write("{}" if before == "{" else "}")
        calls.end()
    return True


def _xml_argument(tape: TextBuffer, calls: Calls, tool: ToolSpec, key: str) -> Resumable[None]:
    if may_be_json(tool.parameters or {}, key):
        pieces: list[str] = []
        if (yield from _xml_value(tape, pieces.append)):
            calls.write(typed("".join(pieces)))
        else:
            calls.write("".join(pieces))
        return
    calls.write('"')
    if (yield from _xml_value(tape, lambda text: calls.write(_escaped(text)))):
        calls.write('"')


def _xml_value(tape: TextBuffer, write: Write) -> Resumable[bool]:
    if (yield from tape.peek()) == "\n":
        yield from tape.next()
    return bool((yield from tape.until(VALUE_END, write)))


def may_be_json(schema: Mapping[str, Any], key: str) -> bool:
    """Whether the schema allows `key` to be anything but a string; what it does not know is one."""
    properties = schema.get("properties")
    about = properties.get(key) if isinstance(properties, dict) else None
    return bool(_types(about) - {"string"})


def _types(about: Any) -> set[str]:
    if not isinstance(about, dict):
        return set()
    if "$ref" in about:
        return {"object"}
    named = about.get("type")
    found = {name for name in (_list(named) or [named]) if isinstance(name, str)}
    for alternative in (*_list(about.get("anyOf")), *_list(about.get("oneOf"))):
        found |= _types(alternative)
    return found or {
        "string" if isinstance(value, str) else "other" for value in _list(about.get("enum"))
    }


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


PYTHON_NAMES: Mapping[str, Any] = {
    "True": True, "False": False, "None": None, "true": True, "false": False, "null": None,
}  # fmt: skip


def typed(text: str) -> str:
    """Return text as the JSON that it is, or as a JSON string.

    >>> typed(" 3"), typed("True"), typed("three")
    ('3', 'true', '"three"')
    """
    bare = text.strip()
    if bare in PYTHON_NAMES:
        return json.dumps(PYTHON_NAMES[bare])
    return _quoted(text) if _loads(bare) is None else bare


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _escaped(text: str) -> str:
    return _quoted(text)[1:-1]


# --- Python ---------------------------------------------------------------------------------------

NOT_A_NAME = MarkerFinder("()[]{}<> \n,:;=\"'")
PYTHON = MarkerFinder("()[]{}\"'")
PYTHON_QUOTES: Mapping[str, MarkerFinder] = {'"': STRING, "'": MarkerFinder("'\\")}


def pythonic_calls(tape: TextBuffer, calls: Calls, _: Region) -> Resumable[bool]:
    """Read `[name(key=value, …), …]`, each call whole: its values are Python, not JSON."""
    yield from tape.space()
    listed = yield from tape.literal("[")
    if not (yield from _python_call(tape, calls)):
        return False

    def another() -> Resumable[bool]:
        return (yield from tape.literal(",")) and (yield from _python_call(tape, calls))

    yield from _others(tape, another, listed=listed)
    return True


def _python_call(tape: TextBuffer, calls: Calls) -> Resumable[bool]:
    yield from tape.space()
    head = yield from tape.upto(NOT_A_NAME, LONGEST_NAME)
    tool = calls.offered(head[0]) if head and head[1] == "(" else None
    if tool is None:
        return False
    pieces: list[str] = []
    depth = 1
    while depth:
        mark = yield from tape.until(PYTHON, pieces.append)
        if not mark:
            return False
        pieces.append(mark)
        if mark in PYTHON_QUOTES:
            yield from _raw_string(tape, pieces.append, PYTHON_QUOTES[mark])
        else:
            depth += 1 if mark in "([{" else -1
    arguments = python_arguments("".join(pieces))
    if arguments is None:
        return False
    calls.begin(tool)
    calls.write(whole(tool, arguments))
    calls.end()
    return True


def python_arguments(source: str) -> str | None:
    """Return `key=value, …)` as JSON, or None if it is anything but literals by name.

    >>> python_arguments("city='Paris', days=[1, 2], metric=True)")
    '{"city": "Paris", "days": [1, 2], "metric": true}'
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an odd escape in what a model writes
            call = ast.parse(f"f({source}", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            return None
        values = {keyword.arg: _literal(keyword.value) for keyword in call.keywords}
        if None in values:
            return None
        return json.dumps(values, ensure_ascii=False, allow_nan=False)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def _literal(node: ast.expr) -> Any:
    match node:
        case ast.Name(id=name) if name in PYTHON_NAMES:
            return PYTHON_NAMES[name]
        case ast.List(elts=values) | ast.Tuple(elts=values):
            return [_literal(value) for value in values]
        case ast.Dict(keys=keys, values=values):
            return {
                _literal(k): _literal(v) for k, v in zip(keys, values, strict=True) if k is not None
            }
        case _:
            return ast.literal_eval(node)


READERS: Mapping[str, Reader] = {
    "tool_call": tool_call,
    "json": json_calls,
    "xml": xml_calls,
    "named": named_call,
    "fenced": fenced_call,
    "pythonic": pythonic_calls,
}
