"""Read calls whose name comes first, and then arguments in JSON."""

# ruff: noqa: RUF001 - DeepSeek's markers contain a full-width bar

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from antiphon.adapters.formats.chat_template.families.family import Region
from antiphon.adapters.formats.chat_template.parsing.text_buffer import (
    MarkerFinder,
    Resumable,
    TextBuffer,
)
from antiphon.adapters.formats.chat_template.payloads.argument_fit import arguments_fit
from antiphon.adapters.formats.chat_template.payloads.calls import (
    MAX_NAME_LENGTH,
    Calls,
    empty_arguments,
    is_name,
)
from antiphon.adapters.formats.chat_template.payloads.json_calls import (
    read_json_calls,
    starts_json_call,
)
from antiphon.adapters.formats.chat_template.payloads.json_values import (
    FENCE,
    End,
    markers_of,
    parse_json,
    read_arguments,
)
from antiphon.adapters.formats.tools import text_property
from antiphon.domain.json import Json
from antiphon.domain.tools import FUNCTIONS, ToolSpec

RANDOM_ID_LENGTH = 9
AFTER_NAME = ("[ARGS]", "[CALL_ID]", "{")
AFTER_ID = ("[ARGS]", "{")
SEPARATOR = "<｜tool▁sep｜>"
FENCE_OPENING = re.compile(r"\s*(?:```[a-z]*\s*){0,2}\Z")
TAG_END = MarkerFinder([">"])
AFTER_COUNTED_NAME = ("<|tool_call_argument_begin|>", "<|tool_call_end|>", "{")
is_id = re.compile(r"[\w.:$-]*").fullmatch
NAMELESS_ID = re.compile(
    r"(?:(?:call|tool|tool_call|toolu|chatcmpl-tool)[_:-]?)?[0-9]+"
    r"|(?:call|toolu|chatcmpl-tool)[_-](?=[A-Za-z]*[0-9])[0-9A-Za-z]+"
)
"""Ids as other servers make them. A conversation that has them teaches the model to write such."""

MAX_FITTED_LENGTH = 4000
MAX_FITTED_CHECKS = 1000
"""Of one call, with all tools that have its arguments: a millisecond."""
COUNTED_NAME = re.compile(r"(?:functions\.)?(.*?)(?::[0-9]+)?", re.DOTALL)


def read_named_call(buffer: TextBuffer, calls: Calls, region: Region) -> Resumable[bool]:
    """Read `name[ARGS]{…}`, `name[CALL_ID]id[ARGS]{…}` or `name{…}`; else a JSON list of calls."""
    yield from buffer.skip_space()
    if (yield from buffer.peek()) in ("[", "{"):
        return (yield from read_json_calls(buffer, calls, region))
    finder = _finder(calls, AFTER_NAME)
    head = yield from buffer.read_up_to(finder, MAX_NAME_LENGTH, or_end=True)
    if head is None:
        return False
    name, marker = head
    tool = calls.find_tool(name.strip())
    call_id: str | None = None
    if marker == "[CALL_ID]":
        id_head = yield from buffer.read_up_to(_finder(calls, AFTER_ID), 64, or_end=True)
        if id_head is None:
            return False
        call_id, marker = _usable_call_id(id_head[0]), id_head[1]
    if tool is None:
        return False
    if marker != "[ARGS]":
        buffer.unread(marker)
    if not marker:
        _write_empty_call(calls, tool)
        return True
    return (yield from _read_call(buffer, calls, tool, region.end, call_id))


@lru_cache
def _markers_and(finder: MarkerFinder, more: tuple[str, ...]) -> MarkerFinder:
    return MarkerFinder([*finder.markers, *more])


def _finder(calls: Calls, markers: tuple[str, ...]) -> MarkerFinder:
    """Return a finder of these markers and of those of the family."""
    return _markers_and(calls.markers, markers)


def _write_empty_call(calls: Calls, tool: ToolSpec, call_id: str | None = None) -> None:
    calls.start(tool, call_id)
    calls.write(empty_arguments(tool))
    calls.end()


def read_name_first(
    buffer: TextBuffer, calls: Calls, regions: Mapping[str, Region]
) -> Resumable[bool]:
    """Read `name`, a region's marker and `{…}`: models misplace the marker."""
    name = ""
    while char := (yield from buffer.peek()):
        if not any(each.startswith(name + char) for each in calls.names):
            break
        name += yield from buffer.read_char()
    tool = calls.find_tool(name) if name else None
    if tool is None:
        return False
    yield from buffer.skip_space()
    marker = yield from buffer.read_marker(calls.markers)
    if marker not in regions:
        return False
    yield from buffer.skip_space()
    if (yield from buffer.peek()) != "{" or (yield from starts_json_call(buffer, calls)):
        return False
    return (yield from _read_call(buffer, calls, tool, regions[marker].end))


def _usable_call_id(call_id: str) -> str | None:
    # A random id is as good as ours. A counted one ("call_1") would repeat in every turn.
    return call_id if len(call_id) == RANDOM_ID_LENGTH and call_id.isalnum() else None


def read_counted_call(buffer: TextBuffer, calls: Calls, region: Region) -> Resumable[bool]:
    """Read `functions.name:0<|tool_call_argument_begin|>{…}`: the id is the name with a number."""
    finder = _finder(calls, AFTER_COUNTED_NAME)
    head = yield from buffer.read_up_to(finder, MAX_NAME_LENGTH + 20)
    if head is None or head[1] not in AFTER_COUNTED_NAME or len(head[0].split()) > 1:
        return False
    call_id, marker = head
    tool = _find_counted_tool(calls, call_id.strip())
    if tool is None and marker != region.end and NAMELESS_ID.fullmatch(call_id.strip()):
        buffer.unread(marker if marker == "{" else "")
        marker = ""
        tool = yield from _find_tool_that_fits(buffer, calls, region.end)
    if tool is None:
        return False
    if marker == region.end:
        _write_empty_call(calls, tool)
        return True
    buffer.unread(marker if marker == "{" else "")
    return (yield from _read_call(buffer, calls, tool, region.end))


def _find_counted_tool(calls: Calls, call_id: str) -> ToolSpec | None:
    match = COUNTED_NAME.fullmatch(call_id)
    assert match
    name = match[1]
    return (
        calls.find_tool(name)
        or calls.find_tool(call_id)
        or (calls.find_tool(f"{FUNCTIONS}.{call_id}") if is_id(call_id) else None)
    )


def _find_tool_that_fits(buffer: TextBuffer, calls: Calls, end: str) -> Resumable[ToolSpec | None]:
    """Return the only tool whose schema the arguments before the end fit; read nothing."""
    start = buffer.pos
    found = yield from buffer.read_up_to(_end_finder(end), MAX_FITTED_LENGTH)
    buffer.pos = start
    arguments = parse_json(found[0].strip()) if found else None
    if not isinstance(arguments, dict) or not arguments:
        return None
    # A tool may have several names.
    tools = {id(tool): tool for name in calls.names if (tool := calls.find_tool(name))}
    known = [tool for tool in tools.values() if _are_known(arguments, calls, tool)]
    # A client says how many tools there are, and a model how many of its calls have no name.
    checks = MAX_FITTED_CHECKS // max(len(known), 1)
    fitting = [
        tool for tool in known if arguments_fit(arguments, tool.parameters, max_checks=checks)
    ]
    if len(fitting) != 1:
        return None
    calls.note("tool_name")
    return fitting[0]


def _are_known(arguments: Json, calls: Calls, tool: ToolSpec) -> bool:
    is_known = arguments.keys() <= calls.schemas_of(tool).properties.keys()
    return is_known and text_property(tool) is None


@lru_cache
def _end_finder(end: str) -> MarkerFinder:
    return MarkerFinder([end])


def read_tagged_call(buffer: TextBuffer, calls: Calls, region: Region) -> Resumable[bool]:
    """Read the text after `<function=`: `name>{…}`."""
    head = yield from buffer.read_up_to(TAG_END, MAX_NAME_LENGTH)
    tool = calls.find_tool(head[0].strip()) if head else None
    if tool is None:
        return False
    return (yield from _read_call(buffer, calls, tool, region.end))


def read_fenced_call(buffer: TextBuffer, calls: Calls, region: Region) -> Resumable[bool]:
    """Read `function<sep>name`, then arguments in a JSON fence; or `name<sep>{…}`."""
    kind = yield from buffer.read_up_to(_finder(calls, (SEPARATOR,)), MAX_NAME_LENGTH)
    if kind is None or kind[1] != SEPARATOR or not is_name(kind[0].strip()):
        return False
    start = buffer.offset + buffer.pos
    finder = _finder(calls, ("{", region.end))
    head = yield from buffer.read_up_to(finder, 2 * MAX_NAME_LENGTH, or_end=True)
    if head is None:
        return False
    text, marker = head
    buffer.unread(marker)
    tool, prose = _split_head(calls, kind[0].strip(), text)
    if tool is None or (prose and marker != "{"):
        return False
    if prose:
        calls.write_prose(prose, start + text.rindex(prose))
    yield from _read_call(buffer, calls, tool, (region.end, f"\n{FENCE}", FENCE))
    yield from _skip_fence(buffer)
    return True


def _split_head(calls: Calls, kind: str, text: str) -> tuple[ToolSpec | None, str]:
    """Return the tool that is called, and what a model says between its name and a fence."""
    text = FENCE_OPENING.sub("", text)
    line, _, prose = text.partition("\n")
    if tool := calls.find_tool(line.strip()):
        return tool, prose.strip()
    return calls.find_tool(kind), text.strip()


def _skip_fence(buffer: TextBuffer) -> Resumable[None]:
    """Skip the end of a fence, or the part of it that the text has."""
    buffer.pin()
    yield from buffer.skip_space()
    if (yield from buffer.read_literal(FENCE)):
        buffer.unpin()
    elif buffer.closed and FENCE.startswith(buffer.text[buffer.pos :]):
        buffer.unpin()
        buffer.pos = len(buffer.text)
    else:
        buffer.rewind()


def _read_call(
    buffer: TextBuffer, calls: Calls, tool: ToolSpec, end: End, call_id: str | None = None
) -> Resumable[bool]:
    calls.start(tool, call_id)
    yield from buffer.skip_space()
    if marker := (yield from buffer.read_marker(_finder(calls, markers_of(end)))):
        buffer.unread(marker)
        calls.write(empty_arguments(tool))
        calls.end()
        return True
    is_whole = yield from read_arguments(buffer, calls, tool, end)
    if is_whole or not buffer.at_end:
        calls.end()
    return True
