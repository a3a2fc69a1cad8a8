"""A turn's tools, for every format: which ones the prompt names, which may be called, and how.

Models only know functions, so a custom tool is offered as a function with one string, `input`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from antiphon.application.ports import Turn
from antiphon.domain import deltas as d
from antiphon.domain.json import Json
from antiphon.domain.kinds import CALL_KINDS
from antiphon.domain.kinds.custom import INPUT
from antiphon.domain.kinds.function import model_tool_name
from antiphon.domain.kinds.mcp import mcp_model_name
from antiphon.domain.tools import CONTAINER, FUNCTIONS, NAMESPACE_MARK, PYTHON, ToolChoice, ToolSpec
from antiphon.domain.vocabulary.kind import TextArguments

RECIPIENTS: Mapping[str, str] = {
    "web_search": "browser.search",
    "open_page": "browser.open",
    "find_in_page": "browser.find",
    PYTHON: PYTHON,
    CONTAINER: "container.exec",
}
"""The kinds of tools that gpt-oss was trained on, with the names that it knows. Scripts use these
names with every model."""

_ANY_TOOL = ToolChoice()
_FUNCTIONS_PREFIXES = (f"{FUNCTIONS}.", f"{FUNCTIONS}{NAMESPACE_MARK}")
MAX_NAME_LENGTH = 150
"""A longer name is only one of a tool if it is exactly that."""

MARKS = ".:/_-"
_MARKS = re.compile(f"[{MARKS}]+")
_QUALIFIED = re.compile(r"(?:[\w$-]+[.:/])+([\w$-]+)")

CODE = "code"
TEXT_PROPERTIES: Mapping[str, str] = {
    name: kind.arguments.property
    for name, kind in CALL_KINDS.items()
    if isinstance(kind.arguments, TextArguments)
}
"""The kinds of tools whose input is a text. A model that only knows functions wraps the text in an
object, as this property."""


def text_property(tool: ToolSpec) -> str | None:
    """Return the property that wraps the tool's text, or None if the tool takes JSON arguments."""
    return TEXT_PROPERTIES.get(tool.kind)


def scripted_name(tools: Iterable[ToolSpec], name: str) -> str:
    """Return the name that the model writes for the tool that gpt-oss knows as `name`."""
    names = (tool.name for tool in tools if tool.kind != PYTHON)
    names_of_kind = (tool.name for tool in tools if RECIPIENTS.get(tool.kind) == name)
    return name if name in names else next(names_of_kind, name)


def offers_tool_of(part: Mapping[str, Any], tools: Sequence[ToolSpec]) -> bool:
    """Say whether the tool that a script's part calls is offered; True for a part without a call.

    >>> offers_tool_of({"call": "add"}, [ToolSpec(name="add")])
    True
    """
    names = ToolNames(tools)
    match part:
        case {"call": name}:
            return names.find(scripted_name(tools, name)) is not None
        case {"custom": name}:
            return names.find(str(name)) is not None
        case {"mcp": name}:
            label = part.get("server")
            return mcp_model_name(tools, name, label) is not None or (
                names.find(model_tool_name(tools, name, label)) is not None
            )
        case {"python": _}:
            return any(tool.kind == PYTHON for tool in tools)
    return True


def prompt_tools(turn: Turn) -> Sequence[ToolSpec]:
    """Return the tools that the prompt names.

    It also names those that `choice` excludes, so that a different choice does not change the
    beginning of the prompt and invalidate its cache.
    """
    return () if turn.choice.mode == "none" else turn.tools


def callable_tools(turn: Turn) -> Mapping[str, ToolSpec]:
    """Return the tools that the model may call, by the names that it writes."""
    return {tool.name: tool for tool in turn.tools if turn.choice.allows(tool.name)}


class ToolNames:
    """Finds the tool that a model means by what it writes as a name.

    Models add the namespace `functions` or leave a namespace out, and write a dot after it.
    """

    def __init__(self, tools: Iterable[ToolSpec], choice: ToolChoice = _ANY_TOOL) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._choice = choice

    def find(self, name: str) -> ToolSpec | None:
        """Return the tool that may be called and has this name, or that alone can be meant by it.

        >>> names = ToolNames([ToolSpec(name="crm__find", namespace="crm", original_name="find")])
        >>> [getattr(names.find(each), "name", None) for each in ("find", "functions.crm.find")]
        ['crm__find', 'crm__find']
        """
        spellings = (name, *(name.removeprefix(prefix) for prefix in _FUNCTIONS_PREFIXES))
        for tools in (self._tools, self._tools_by_spelling):
            if found := next((tools[each] for each in spellings if each in tools), None):
                return found if self._choice.allows(found.name) else None
        return None

    def starts_name(self, text: str, *, is_whole: bool = True) -> bool:
        """Whether a tool's name starts with a text; without `is_whole`, a longer name does.

        >>> names = ToolNames([ToolSpec(name="add"), ToolSpec(name="add_all")])
        >>> names.starts_name("ad"), names.starts_name("add_all", is_whole=False)
        (True, False)
        """
        spellings = (text, *(text.removeprefix(prefix) for prefix in _FUNCTIONS_PREFIXES))
        return any(
            name.startswith(each) and (is_whole or name != each)
            for each in spellings
            for name in self._all_spellings
        ) or (any(prefix.startswith(text) for prefix in _FUNCTIONS_PREFIXES))

    @cached_property
    def _all_spellings(self) -> Collection[str]:
        return self._tools.keys() | set().union(*map(_spellings_of, self._tools.values()))

    def find_respelled(self, name: str) -> ToolSpec | None:
        """Return the tool that has this name, or the only one that it may be a spelling of.

        Models write the namespace with other marks, make up one for a tool that has none, and write
        the id of a call in place of its name.

        >>> names = ToolNames([ToolSpec(name="bash"), ToolSpec(name="get_time")])
        >>> spellings = ("ns:bash", "functionsbash5", "functions_get_time_1", "ns:nope")
        >>> [getattr(names.find_respelled(each), "name", None) for each in spellings]
        ['bash', 'bash', 'get_time', None]
        """
        if (found := self.find(name)) or name in self._tools:
            return found
        spellings = {_folded(each) for each in _respellings(name)}
        meant = [tool for each in spellings for tool in self._tools_by_folded_name.get(each, ())]
        return meant[0] if len(meant) == 1 and self._choice.allows(meant[0].name) else None

    @cached_property
    def _tools_by_folded_name(self) -> Mapping[str, Sequence[ToolSpec]]:
        tools: dict[str, list[ToolSpec]] = {}
        for tool in self._tools.values():
            tools.setdefault(_folded(tool.name), []).append(tool)
        return tools

    @cached_property
    def _tools_by_spelling(self) -> Mapping[str, ToolSpec]:
        # Few outputs need it: most models write the name that they were given.
        tools: dict[str, list[ToolSpec]] = {}
        for tool in self._tools.values():
            for spelling in _spellings_of(tool):
                tools.setdefault(spelling, []).append(tool)
        return {spelling: found[0] for spelling, found in tools.items() if len(found) == 1}


def _respellings(name: str) -> Iterator[str]:
    """Return what may be the name of a tool in another spelling of it."""
    if len(name) > MAX_NAME_LENGTH:
        return
    yield name
    if match := _QUALIFIED.fullmatch(name):
        yield match[1]
    if name.startswith(FUNCTIONS):
        call_id = name.removeprefix(FUNCTIONS).lstrip(MARKS)
        yield call_id
        # An id ends with a number; some of its digits may belong to the name.
        for end in range(len(call_id.rstrip("0123456789")), len(call_id)):
            yield call_id[:end].rstrip(MARKS)


def _folded(name: str) -> str:
    return _MARKS.sub("_", name)


def _spellings_of(tool: ToolSpec) -> set[str]:
    name = tool.client_name
    if not tool.namespace:
        return {name}
    return {name, f"{tool.namespace}.{name}", f"{tool.namespace}{NAMESPACE_MARK}{name}"}


def call_start(tool: ToolSpec, call_id: str | None = None) -> d.CallStart:
    """Return the delta that starts a call of the tool."""
    return d.CallStart(
        tool.client_name, call_id, tool.namespace, tool.kind, approval_key=tool.approval_key
    )


def description_of(tool: ToolSpec) -> str:
    """Return the tool's description for the model, with the grammar of its input, if any."""
    if tool.grammar is None:
        return tool.description
    syntax, definition = tool.grammar
    rule = f"`{INPUT}` must match this {syntax} grammar:\n{definition}"
    return f"{tool.description}\n\n{rule}" if tool.description else rule


def input_parameters() -> Json:
    """Return the schema of a custom tool's arguments."""
    return {
        "type": "object",
        "properties": {INPUT: {"type": "string"}},
        "required": [INPUT],
        "additionalProperties": False,
    }


def wrap_text(text: str, key: str = INPUT) -> str:
    """Return the arguments of a call whose text is `text`, as the property `key`.

    >>> wrap_text('say "hi"')
    '{"input": "say \\\\"hi\\\\""}'
    """
    return json.dumps({key: text}, ensure_ascii=False)
