"""Answers without a script: a tool call, an instance of the requested schema, or an echo."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.adapters.engines.scripted.grammar_inputs import smallest_input
from antiphon.adapters.engines.scripted.schema_instances import smallest_instance
from antiphon.adapters.engines.scripted.script import Message, Part
from antiphon.application.model.reasoning_summaries import thoughts_in
from antiphon.application.ports import Constraint
from antiphon.domain.tools import NAMED_KINDS, ToolChoice, ToolSpec

_MAX_ECHO_CHARS = 60
_AUTO = ToolChoice()


def answer(
    messages: Sequence[Message],
    *,
    tools: Sequence[ToolSpec] = (),
    choice: ToolChoice = _AUTO,
    text_format: Mapping[str, Any] = {"type": "text"},
    constraint: Constraint | None = None,
    or_else: Part | None = None,
) -> Part:
    """Return the only part of a turn without a script; by default, any text is an echo.

    >>> answer([("user", "Hello there")])
    {'say': 'Echo: Hello there'}
    >>> answer([("user", "Hi")], tools=[ToolSpec(name="now")])
    {'call': 'now', 'args': {}}
    >>> answer([("user", "Hi"), ("tool", "noon")], tools=[ToolSpec(name="now")])
    {'say': 'Echo: Hi'}
    """
    allowed = [tool for tool in tools if choice.allows(tool.name)]
    # Tools of a fixed shape are called only if the choice requires it: an agent would run the call.
    forced = allowed[0] if allowed and choice.mode == "required" else None
    tool = next((tool for tool in allowed if tool.kind in NAMED_KINDS), forced)
    if tool is not None and not _has_output(messages):
        return _call(tool)
    text = _smallest_text(text_format.get("type"), text_format.get("schema"))
    if text is None and constraint is not None:
        text = _smallest_text(constraint.kind, constraint.value)
    if text is not None:
        return {"say": text}
    return or_else or {"say": _echo(messages)}


def _echo(messages: Sequence[Message]) -> str:
    """Return the end of what the user said last; of thoughts to be summarized, the beginning."""
    text = _last_user_text(messages)
    thoughts = thoughts_in(text)
    if thoughts is not None:
        return f"Summary: {thoughts[:_MAX_ECHO_CHARS]}"
    return f"Echo: {text[-_MAX_ECHO_CHARS:]}"


def _has_output(messages: Sequence[Message]) -> bool:
    """Return whether there is a tool output after the user's last message."""
    last = next((role for role, _ in reversed(messages) if role in ("user", "tool")), None)
    return last == "tool"


def _call(tool: ToolSpec) -> Part:
    if tool.kind == "custom":
        return {"custom": tool.name, "input": smallest_input(tool.grammar)}
    if tool.kind == "python":
        return {"python": "print(1)"}
    arguments = smallest_instance(tool.parameters or {"type": "object"})
    return {"call": tool.name, "args": arguments if isinstance(arguments, dict) else {}}


def _smallest_text(kind: str | None, value: Any) -> str | None:
    """Return a small text that satisfies the constraint, or None if any text does."""
    match kind:
        case "json_schema":
            return _json(smallest_instance(value))
        case "json_object":
            return '{"ok":true}'
        case "regex":
            return smallest_input(("regex", value))
        case "grammar":
            return smallest_input(("lark", value))
        case "choice":
            return str(value[0]) if value else None
    return None


def _last_user_text(messages: Sequence[Message]) -> str:
    for role, text in reversed(messages):
        if role == "user":
            return text
    return ""


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
