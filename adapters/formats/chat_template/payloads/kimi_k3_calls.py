"""Read calls as Kimi K3 writes them: elements with attributes, each argument with its type."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

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
    find_key,
    text_in_name,
)
from antiphon.adapters.formats.chat_template.payloads.json_values import (
    quote_json,
    unwrap_arguments,
)
from antiphon.adapters.formats.chat_template.payloads.schema_types import (
    NULL,
    STRING,
    TEXT_TYPES,
)
from antiphon.adapters.formats.chat_template.payloads.tag_types import (
    TextWriter,
    literal_to_json,
    value_to_json,
)
from antiphon.adapters.formats.tools import text_property
from antiphon.domain.tools import ToolSpec

OPEN_ARGUMENT, OPEN_JSON = "<|open|>argument", "<|open|>json"
HEAD_END = MarkerFinder(["<|sep|>", "<|open|>", "<|close|>"])
# A missing end is excused where the next element begins, or one around it ends.
VALUE_END = MarkerFinder(
    [
        "<|close|>argument<|sep|>",
        "<|close|>json<|sep|>",
        "<|close|>call<|sep|>",
        "<|close|>tools<|sep|>",
        "<|close|>message<|sep|>",
        "<|open|>argument ",
        "<|open|>call ",
        "<|end_of_msg|>",
    ]
)
CALL_ENDS = MarkerFinder(each for each in VALUE_END.markers if "argument" not in each)
OWN_ENDS = ("<|close|>argument<|sep|>", "<|close|>json<|sep|>")
CALL_END = "<|close|>call<|sep|>"
ATTRIBUTE = re.compile(r'\b(?:(tool|key)\s*=\s*"([^"]*)"|(index|type)\s*=\s*"([a-z0-9]*)")')
CUT_KEY = re.compile(r'\bkey\s*=\s*"([^"]*)\Z')
CUT_MARKUP = re.compile(
    r'(?:(?!key\s*=\s*")[a-z]+\s*(?:=\s*"?[a-z0-9]*)?)?(?:<(?:\|(?:s(?:e(?:p\|?)?)?)?)?)?'
)
UNTYPED = ""


class _Head(Struct, frozen=True):
    """The attributes of an element, the text beside them, and whether the text ends in it."""

    attributes: Mapping[str, str]
    rest: str = ""
    is_cut: bool = False
    text: str = ""


def read_kimi_k3_call(buffer: TextBuffer, calls: Calls, _: Region) -> Resumable[bool]:
    """Read the text after `<|open|>call`: ` tool="name" index="1"<|sep|>`, then arguments."""
    head = yield from _read_head(buffer, "tool", "index")
    tool = calls.find_tool(head.attributes.get("tool", ""))
    # A call has no place for text beside its attributes.
    if tool is None or head.rest or head.is_cut:
        return False
    if text_property(tool) is None:
        closed = yield from _read_arguments(buffer, calls, tool)
        if closed is None:
            return False
    else:
        calls.start(tool)
        closed = yield from _read_input(buffer, calls, tool)
    if closed or not buffer.at_end:
        calls.end()
    return True


def _read_head(buffer: TextBuffer, *names: str) -> Resumable[_Head]:
    """Read the attributes of these names, each once, and the marker after them."""
    limit = 2 * MAX_NAME_LENGTH
    head = yield from buffer.read_up_to(HEAD_END, limit)
    if head is None:
        if len(buffer.text) - buffer.pos > limit:
            return _Head({})
        text, buffer.pos = buffer.text[buffer.pos :], len(buffer.text)
        return _parse_head(text, names, is_cut=True)
    if head[1] != "<|sep|>":
        buffer.unread(head[1])
    return _parse_head(head[0], names)


def _parse_head(text: str, names: Sequence[str], *, is_cut: bool = False) -> _Head:
    attributes: dict[str, str] = {}
    pieces: list[str] = []
    pos = 0
    for match in ATTRIBUTE.finditer(text):
        name, value = match[1] or match[3], match[2] or match[4] or ""
        if name in names and name not in attributes:
            attributes[name] = _unescape(value)
            pieces.append(text[pos : match.start()])
            pos = match.end()
    rest = "".join([*pieces, text[pos:]]).strip()
    if is_cut and CUT_MARKUP.fullmatch(rest):
        rest = ""
    return _Head(attributes, rest, is_cut, text)


def _unescape(value: str) -> str:
    return value.replace("&quot;", '"').replace("&amp;", "&")


def _read_arguments(buffer: TextBuffer, calls: Calls, tool: ToolSpec) -> Resumable[bool | None]:
    """Write the arguments as JSON; return whether they ended before the text did.

    Return None if none of them can be read: that is no call.
    """
    separator = "{"
    schemas = calls.schemas_of(tool)
    while True:
        yield from buffer.skip_space()
        start = buffer.pos
        if (yield from buffer.read_literal(OPEN_ARGUMENT)):
            head = yield from _read_head(buffer, "key", "type")
            if head.is_cut:
                if separator == "{":
                    calls.start(tool)
                calls.write(_cut_member(head, separator))
                return False
            key, head = _find_key(head, schemas.properties)
            if key is None:
                buffer.pos = start
                break
            if key != head.attributes.get("key"):
                calls.note("argument_name")
            if separator == "{":
                calls.start(tool)
            calls.write(f"{separator}{quote_json(key)}: ")
            separator = ", "
            yield from _copy_value(buffer, calls.write, schemas.types_of(key), head)
            if not buffer.at_end and not buffer.text[: buffer.pos].endswith(OWN_ENDS):
                calls.note("open_value")
        elif separator == "{" and (yield from buffer.read_literal(OPEN_JSON)):
            arguments, is_closed = yield from _collect_json(buffer)
            calls.start(tool)
            calls.write(arguments)
            return (yield from _read_call_end(buffer, calls)) if is_closed else False
        else:
            break
    has_arguments = separator != "{"
    if not has_arguments and not (yield from _is_over(buffer)):
        return None
    if not has_arguments:
        calls.start(tool)
    closed = yield from _read_call_end(buffer, calls)
    if closed:
        calls.write("}" if has_arguments else "{}")
    return closed


def _find_key(head: _Head, names: Mapping[str, Any]) -> tuple[str | None, _Head]:
    """Return the key, and the head without what a damaged one left beside it."""
    written = head.attributes.get("key", "")
    key = find_key(head.text, names)
    if written in names or (written and not head.rest):
        is_noise = key == written
        return written, replace(head, rest="") if is_noise else head
    return key, _Head({name: each for name, each in head.attributes.items() if name == "type"})


def _is_over(buffer: TextBuffer) -> Resumable[bool]:
    """Whether no arguments follow: the call ends here, or something around it."""
    start = buffer.pos
    found = yield from buffer.read_marker(CALL_ENDS)
    buffer.pos = start
    return bool(found) or buffer.at_end


def _cut_member(head: _Head, separator: str) -> str:
    """Return as much of a member as the text has of its head."""
    if "key" in head.attributes:
        return f"{separator}{quote_json(head.attributes['key'])}: {head.rest}"
    cut_key = CUT_KEY.search(head.rest)
    if cut_key:
        return f"{separator}{quote_json(cut_key[1])[:-1]}"
    return f"{separator}{head.rest}" if head.rest else ""


def _collect_json(buffer: TextBuffer) -> Resumable[tuple[str, bool]]:
    """Return arguments that are one JSON object, and whether they ended before the text did."""
    head = yield from _read_head(buffer, "type")
    pieces = [head.rest]
    is_closed = yield from _read_value(buffer, pieces.append)
    return "".join(pieces), is_closed


def _read_call_end(buffer: TextBuffer, calls: Calls) -> Resumable[bool]:
    """Return whether the call is over: it ended, or something else follows."""
    yield from buffer.skip_space()
    has_end = yield from buffer.read_literal(CALL_END)
    if not has_end and not buffer.at_end:
        calls.note("open_call")
    return has_end or not buffer.at_end


def _read_input(buffer: TextBuffer, calls: Calls, tool: ToolSpec) -> Resumable[bool]:
    """Write the input of a custom tool: the text of its argument, and of any others after it."""
    separator = ""
    while True:
        yield from buffer.skip_space()
        if (yield from buffer.read_literal(OPEN_ARGUMENT)):
            head = yield from _read_head(buffer, "key", "type")
            calls.write(separator + text_in_name(head.attributes.get("key", "")) + head.rest)
            separator = "\n"
            yield from _read_value(buffer, calls.write)
        elif not separator and (yield from buffer.read_literal(OPEN_JSON)):
            arguments, _ = yield from _collect_json(buffer)
            calls.write(unwrap_arguments(tool, arguments))
            separator = "\n"
        else:
            break
    closed = yield from _read_call_end(buffer, calls)
    if closed and not separator:
        calls.write(empty_arguments(tool))
    return closed


def _copy_value(
    buffer: TextBuffer, write: Write, types: frozenset[str], head: _Head
) -> Resumable[None]:
    """Write a value as JSON, as its own type says or, without one, as its schema's types do.

    Text beside the attributes of its head is a part of it.
    """
    declared = head.attributes.get("type", UNTYPED)
    if declared == STRING:
        yield from _copy_text(buffer, write, head.rest, may_be_null=False)
    elif declared == UNTYPED and types <= TEXT_TYPES:
        yield from _copy_text(buffer, write, head.rest, may_be_null=NULL in types)
    else:
        pieces = [head.rest]
        closed = yield from _read_value(buffer, pieces.append)
        text = "".join(pieces)
        if closed:
            text = value_to_json(text, types) if declared == UNTYPED else literal_to_json(text)
        write(text)


def _copy_text(
    buffer: TextBuffer, write: Write, start: str, *, may_be_null: bool
) -> Resumable[None]:
    text = TextWriter(write, may_be_null=may_be_null)
    if start:
        text.write(start)
    text.end(is_whole=(yield from _read_value(buffer, text.write)))


def _read_value(buffer: TextBuffer, write: Write) -> Resumable[bool]:
    """Write a value; return whether it ended before the text did."""
    marker = yield from buffer.read_until(VALUE_END, write)
    if marker not in OWN_ENDS:
        buffer.unread(marker)
    return bool(marker)
