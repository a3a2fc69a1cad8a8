"""Read calls as Python: `[name(key=value, …), …]`, or a call on each line.

A text is streamed while it is read. Models forget to escape its quotes, so a quote ends a text only
where the call goes on after it or ends.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import warnings
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
from antiphon.adapters.formats.chat_template.payloads.json_calls import read_json_calls
from antiphon.adapters.formats.chat_template.payloads.json_values import (
    parse_json,
    quote_json,
    read_escape,
    read_hex_digits,
)
from antiphon.adapters.formats.chat_template.payloads.schema_types import PYTHON_NAMES
from antiphon.adapters.formats.tools import text_property
from antiphon.domain.tools import ToolSpec

NAME_END = MarkerFinder("()[]{}<> \n,:;=\"'")
KEY_END = MarkerFinder("=,()[]{}:;\"'")
QUOTES = ('"', "'")
ESCAPES: Mapping[str, str] = {"'": "'", "\n": "", "a": "\a", "v": "\v", "0": "\0"}
HEX_LENGTHS: Mapping[str, int] = {"x": 2, "U": 8}
SEPARATORS = (",", ";")
PREFIXES = frozenset("fFrRbBuU")
LEADING_ZEROS = re.compile(r"\A(-?)0+(?=[1-9][0-9]*\Z)")
"""Of a number, which Python allows none."""
PLAIN_VALUE = re.compile(r"-?[0-9.]+|True|False|None|true|false|null")


@cache
def _value_markers(end: str) -> MarkerFinder:
    return MarkerFinder([*"()[]{}\"',", *([end] if end else [])])


@cache
def _text_markers(quote: str, end: str) -> MarkerFinder:
    # A text whose closing quote is missing ends where its calls end.
    ends = [f"){end}", f")]{end}"] if end else [")"]
    return MarkerFinder([quote, "\\", *ends])


def read_pythonic_calls(buffer: TextBuffer, calls: Calls, region: Region) -> Resumable[bool]:
    """Read `[name(key=value, …), …]` or calls without a list, call by call; or calls as JSON."""
    yield from buffer.skip_space()
    start = buffer.pos
    is_list = yield from buffer.read_literal("[")
    yield from buffer.skip_space()
    if region.end and (yield from buffer.peek()) == "{":
        buffer.pos = start
        return (yield from read_json_calls(buffer, calls, region))
    if not (yield from _read_python_call(buffer, calls, region.end)):
        return False

    def read_call() -> Resumable[bool]:
        if (yield from buffer.peek()) in SEPARATORS:
            yield from buffer.read_char()
        return (yield from _read_python_call(buffer, calls, region.end))

    yield from read_more_calls(buffer, read_call, is_list=is_list)
    return True


def _read_python_call(buffer: TextBuffer, calls: Calls, end: str) -> Resumable[bool]:
    yield from buffer.skip_space()
    head = yield from buffer.read_up_to(NAME_END, MAX_NAME_LENGTH)
    tool = calls.find_tool(head[0]) if head and head[1] == "(" else None
    if tool is None:
        return False
    arguments = _Arguments(buffer, calls, tool, end)
    if not (yield from arguments.read()):
        return False
    if arguments.is_closed or not buffer.at_end:
        calls.end()
    return True


class _Arguments:
    """Copies `key=value, …)` as JSON; the text of a custom tool without its wrapping."""

    def __init__(self, buffer: TextBuffer, calls: Calls, tool: ToolSpec, end: str) -> None:
        self._buffer = buffer
        self._calls = calls
        self._tool = tool
        self._end = end
        self._write: Write = calls.write
        self._is_text = False  # what is written is a custom tool's text
        self._has_started = False
        self._separator = "{"
        self.is_closed = False

    def read(self) -> Resumable[bool]:
        """Return whether these are the arguments of a call.

        Until the first value was read, they may turn out to be no literals with names.
        """
        buffer = self._buffer
        while True:
            yield from buffer.skip_space()
            char = yield from buffer.peek()
            if char == ")":
                yield from buffer.read_char()
                self._close()
                return True
            if char == "]" or (char and (yield from self._is_at_end_marker())):
                if self._has_started:
                    self._close()
                return self._has_started
            if not char:
                # Between markers this can only be a call that was cut.
                if self._end:
                    self._start()
                return self._has_started
            if char in ",}":
                yield from buffer.read_char()
            elif not (yield from self._read_argument()):
                return False

    def _is_at_end_marker(self) -> Resumable[bool]:
        if not self._end or not (yield from self._buffer.read_literal(self._end)):
            return False
        self._buffer.unread(self._end)
        return True

    def _close(self) -> None:
        if not self._has_started:
            self._start()
            self._write(empty_arguments(self._tool))
        elif not self._is_text:
            self._write("}")
        self.is_closed = True

    def _start(self) -> None:
        if not self._has_started:
            self._calls.start(self._tool)
            self._has_started = True

    def _read_argument(self) -> Resumable[bool]:
        """Read `key=value`; return False for anything else where no call has started."""
        buffer = self._buffer
        if (yield from self._read_dict()):
            return True
        key = yield from self._read_key()
        if key is None and not self._has_started and text_property(self._tool) is None:
            return False
        yield from buffer.skip_space()
        is_raw = (yield from self._skip_prefix()) in ("r", "R")
        quote = yield from self._read_quote()
        if quote:
            self._start()
            yield from self._read_text(key, quote, is_raw=is_raw)
            return True
        pieces: list[str] = []
        marker = yield from self._read_other_value(pieces)
        source = "".join(pieces).strip()
        value = python_value_to_json(source) if marker else source
        if marker in QUOTES:  # that of a text without its first quote
            self._calls.note("quotes")
            value = quote_json(source)
        if not self._has_started and (value is None or not (marker or self._end)):
            return False
        self._start()
        has_input = key is None and text_property(self._tool) is not None and self._separator == "{"
        if self._is_text or has_input:
            self._write_input(source)
        else:
            self._write_member(key, quote_json(source) if value is None else value)
        return True

    def _read_dict(self) -> Resumable[bool]:
        """Read arguments in a dictionary, with stars before it or alone; else read nothing."""
        buffer, start = self._buffer, self._buffer.pos
        has_stars = yield from buffer.read_literal("**")
        is_alone = not self._has_started and text_property(self._tool) is None
        pieces: list[str] = []
        if (has_stars or is_alone) and (yield from buffer.peek()) == "{":
            yield from self._read_other_value(pieces)
        value = parse_json(python_value_to_json("".join(pieces).strip()) or "")
        is_named = isinstance(value, dict) and all(_is_key((key, "=")) for key in value)
        if not value or not is_named or self._is_text:
            buffer.pos = start
            return False
        self._start()
        self._calls.note("wrapped_arguments")
        for key, each in value.items():
            self._write_member(key, json.dumps(each, ensure_ascii=False))
        return True

    def _skip_prefix(self) -> Resumable[str]:
        """Skip a letter that says how the text after it is written, and return it."""
        buffer, start = self._buffer, self._buffer.pos
        prefix = yield from buffer.peek()
        if prefix and prefix in PREFIXES:
            yield from buffer.read_char()
            quote = yield from buffer.peek()
            if quote and quote in QUOTES:
                position = buffer.pos
                yield from buffer.read_char()
                is_end = yield from self._goes_on()  # of a text without its first quote
                buffer.pos = position
                if not is_end:
                    return prefix
        buffer.pos = start
        return ""

    def _read_key(self) -> Resumable[str | None]:
        position = self._buffer.pos
        head = yield from self._buffer.read_up_to(KEY_END, MAX_NAME_LENGTH)
        if _is_key(head):
            assert head
            return head[0].strip()
        self._buffer.pos = position
        return None

    def _write_input(self, text: str) -> None:
        # A model may write more than the text, which is lost nowhere else.
        if not self._is_text or not PLAIN_VALUE.fullmatch(text):
            self._write(f"\n{text}" if self._is_text else text)
        self._is_text = True

    def _write_member(self, key: str | None, value: str) -> None:
        # A value without a name stays where it is: broken arguments show what the model wrote.
        name = "" if key is None else f"{quote_json(key)}: "
        self._write(f"{self._separator}{name}{value}")
        self._separator = ", "

    # --- texts ------------------------------------------------------------------------------------

    def _read_quote(self) -> Resumable[str]:
        for quote in ('"', "'"):
            if (yield from self._buffer.read_literal(quote)):
                is_long = yield from self._buffer.read_literal(quote * 2)
                return quote * 3 if is_long else quote
        return ""

    def _read_text(self, key: str | None, quote: str, *, is_raw: bool) -> Resumable[None]:
        is_first = self._separator == "{" and not self._is_text
        if self._is_text or (is_first and key in (text_property(self._tool), None)):
            self._write_input("")
            yield from self._copy_text(quote, self._write, is_raw=is_raw)
            return
        self._write_member(key, '"')

        def write_part(text: str) -> None:
            self._write(quote_json(text)[1:-1])

        if (yield from self._copy_text(quote, write_part, is_raw=is_raw)):
            self._write('"')

    def _copy_text(self, quote: str, write: Write, *, is_raw: bool) -> Resumable[bool]:
        """Write a text without its escapes; return whether it was closed."""
        buffer, markers = self._buffer, _text_markers(quote, self._end)
        while marker := (yield from buffer.read_until(markers, write)):
            if marker == "\\":
                is_kept = is_raw and (yield from buffer.peek()) != quote
                write(marker if is_kept else (yield from _read_python_escape(buffer)))
            elif marker != quote:
                if self._end or (yield from self._is_last_bracket()):
                    self._calls.note("quotes")
                    buffer.unread(marker)
                    return True
                write(marker)
            elif (yield from self._goes_on()):
                return True
            else:
                write(marker)
        return False

    def _is_last_bracket(self) -> Resumable[bool]:
        """Whether the message ends after the bracket that was read; read nothing."""
        buffer, position = self._buffer, self._buffer.pos
        yield from buffer.read_literal("]")
        yield from buffer.skip_space()
        is_last = (yield from buffer.peek()) == ""
        buffer.pos = position
        return is_last

    def _goes_on(self) -> Resumable[bool]:
        """Whether the call goes on or ends here: if not, the quote before was part of a text."""
        buffer, position = self._buffer, self._buffer.pos
        yield from buffer.skip_space()
        char = yield from buffer.peek()
        goes_on = char == "" or (yield from self._is_at_end_marker())
        if char == ")":
            yield from buffer.read_char()
            goes_on = yield from self._ends_call()
        elif char == "]":
            yield from buffer.read_char()
            goes_on = yield from self._is_at_end_marker()
        elif char == ",":
            yield from buffer.read_char()
            yield from buffer.skip_space()
            rest = yield from buffer.read_up_to(KEY_END, MAX_NAME_LENGTH)
            is_cut = rest is None and len(buffer.text) - buffer.pos <= MAX_NAME_LENGTH
            goes_on = is_cut or _is_key(rest) or rest == ("", ")")
        buffer.pos = position
        return goes_on

    def _ends_call(self) -> Resumable[bool]:
        buffer = self._buffer
        yield from buffer.skip_space()
        char = yield from buffer.peek()
        if char in ("", "]", "<", *SEPARATORS) or (yield from self._is_at_end_marker()):
            return True
        following = yield from buffer.read_up_to(NAME_END, MAX_NAME_LENGTH)
        return bool(following and following[1] == "(" and self._calls.is_name(following[0]))

    # --- other values -----------------------------------------------------------------------------

    def _read_other_value(self, pieces: list[str]) -> Resumable[str]:
        """Read a value that is no text, up to a comma or bracket; return that, "" at the end.

        A quote after a text that has none before it ends the value, and is returned, too.
        """
        buffer, depth, write = self._buffer, 0, pieces.append
        while marker := (yield from buffer.read_until(_value_markers(self._end), write)):
            if marker == self._end or (not depth and marker in ",)]"):
                buffer.unread(marker)
                return marker
            if marker in QUOTES and not depth and "".join(pieces).strip():
                if (yield from self._goes_on()):
                    return marker
                write(marker)
                continue
            if marker in "([{":
                depth += 1
            elif marker in ")]}":
                depth = max(depth - 1, 0)
            write(marker)
            if marker in QUOTES and not (yield from self._copy_string(marker, write)):
                return (yield from buffer.peek())
        return ""

    def _copy_string(self, quote: str, write: Write) -> Resumable[bool]:
        """Copy the rest of a string with its quote; without one, up to the end of the calls.

        Return whether it has one.
        """
        buffer, markers = self._buffer, _text_markers(quote, self._end)
        while marker := (yield from buffer.read_until(markers, write)):
            if marker == "\\":
                write(marker + (yield from buffer.read_char()))
            elif marker == quote:
                write(marker)
                return True
            elif self._end or (yield from self._is_last_bracket()):
                buffer.unread(marker)
                return False
            else:
                write(marker)
        return False


def _is_key(head: tuple[str, str] | None) -> bool:
    return head is not None and head[1] == "=" and head[0].strip().replace("-", "_").isidentifier()


def _read_python_escape(buffer: TextBuffer) -> Resumable[str]:
    char = yield from buffer.peek()
    if char in ESCAPES:
        yield from buffer.read_char()
        return ESCAPES[char]
    if char in HEX_LENGTHS:
        yield from buffer.read_char()
        digits = yield from read_hex_digits(buffer, HEX_LENGTHS[char])
        is_whole = len(digits) == HEX_LENGTHS[char] and int(digits, 16) <= sys.maxunicode
        return chr(int(digits, 16)) if is_whole else f"\\{char}{digits}"
    return (yield from read_escape(buffer))


def python_value_to_json(source: str) -> str | None:
    """Return a Python literal as JSON, or None if it is none.

    >>> python_value_to_json("{'city': 'Paris', 'days': [1, 2], 'metric': True}")
    '{"city": "Paris", "days": [1, 2], "metric": true}'
    """
    source = LEADING_ZEROS.sub(r"\1", source)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # for an odd escape in the model's text
            value = _literal_value(ast.parse(source, mode="eval").body)
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def _literal_value(node: ast.expr) -> Any:
    match node:
        case ast.Name(id=name) if name in PYTHON_NAMES:
            return PYTHON_NAMES[name]
        case ast.List(elts=values) | ast.Tuple(elts=values) | ast.Set(elts=values):
            return [_literal_value(value) for value in values]
        case ast.Dict(keys=keys, values=values):
            pairs = zip(keys, values, strict=True)
            return {_literal_value(k): _literal_value(v) for k, v in pairs if k is not None}
        case _:
            return ast.literal_eval(node)
