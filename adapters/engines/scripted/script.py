"""Scripts: where a prompt carries one, what it may say, and which of its turns comes next.

A script is `@@script` and a JSON array in a message. Each element is one turn of the model: a part,
or a list of parts. A part is of exactly one of KINDS; FIELDS says what each field may hold, and a
field that is not in it is passed over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from math import isfinite
from typing import Any

Part = Mapping[str, Any]
Turn = Sequence[Part]
Message = tuple[str, str]
"""(role, text), as a Markup reads them."""

CARRIERS = frozenset({"user", "developer", "system"})
CALLS = frozenset({"call", "custom", "mcp", "python"})
WRITES = frozenset({"say", "refuse"})
FAULTS = frozenset({"fail", "die"})
KINDS = CALLS | WRITES | FAULTS | {"think", "raw", "hang"}


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_arguments(value: Any) -> bool:
    return isinstance(value, dict | str)


def _is_seconds(value: Any) -> bool:
    return type(value) in (int, float) and isfinite(value) and value >= 0


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


FIELDS: Mapping[str, Callable[[Any], bool]] = {
    "say": _is_text,
    "repeat": _is_count,
    "phase": lambda value: value in ("commentary", "final_answer"),
    "think": _is_text,
    "call": _is_text,
    "args": _is_arguments,
    "custom": _is_text,
    "input": _is_text,
    "mcp": _is_text,
    "server": _is_text,
    "python": _is_text,
    "refuse": _is_text,
    "raw": _is_text,
    "fail": _is_text,
    "die": lambda value: value is True,
    "hang": _is_seconds,
    "delay": _is_seconds,
    "tick": _is_seconds,
    "chunk": lambda value: value == "all" or (_is_count(value) and value > 0),
    "finish": lambda value: value in ("length", "stop", "abort"),
}

_MARK = "@@script"
_START = re.compile(_MARK + r"\s*(?=\[)")
_DECODER = json.JSONDecoder()
_LONGEST_REMEMBERED = 8192  # characters


def next_turn(messages: Sequence[Message], *, tools_offered: bool) -> Turn | None:
    """Return the turn to play, or None where there is no script or none of its turns is left.

    A turn that calls where no tool is offered is not for this request: some clients send side
    requests that repeat the user's text.

    >>> ask = ("user", 'Do it. @@script [{"call": "add", "args": {}}, {"say": "done"}] Thanks.')
    >>> next_turn([ask], tools_offered=True)
    [{'call': 'add', 'args': {}}]
    >>> next_turn([ask, ("call", "add"), ("tool", "3")], tools_offered=True)
    [{'say': 'done'}]
    >>> next_turn([ask], tools_offered=False)
    """
    for place in reversed(range(len(messages))):
        role, text = messages[place]
        if role in CARRIERS and _MARK in text:
            turn = _first_open(parse(text) or (), messages[place + 1 :])
            return None if turn and _calls(turn) and not tools_offered else turn
    return None


def parse(text: str) -> list[Turn] | None:
    """Return the turns of the script in this text; None if it has none that is valid.

    >>> parse('@@script [{"say": "a"}, [{"think": "b"}, {"say": "c"}]] and more')
    [[{'say': 'a'}], [{'think': 'b'}, {'say': 'c'}]]
    >>> parse('@@script [{"sing": "a"}]')
    """
    start = _START.search(text)
    if start is None:
        return None
    written = text[start.end() :]
    return _remembered(written) if len(written) <= _LONGEST_REMEMBERED else _turns(written)


def _turns(written: str) -> list[Turn] | None:
    script = _array(written)
    if script is None:
        # Some command-line clients hand their prompt on in quotes.
        script = _array(written.replace('\\"', '"'))
    if script is None:
        return None
    turns: list[Turn] = [element if isinstance(element, list) else [element] for element in script]
    return turns if all(_is_part(part) for turn in turns for part in turn) else None


_remembered = lru_cache(128)(_turns)  # tests ask the same again and again; nobody changes a turn


def _array(text: str) -> list[Any] | None:
    """Return the JSON array that the text begins with."""
    try:
        array, end = _DECODER.raw_decode(text)
        # Half a surrogate pair is JSON but no text that a tokenizer can take.
        json.dumps(array, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return array if isinstance(array, list) and end else None


def _is_part(part: Any) -> bool:
    return (
        isinstance(part, dict)
        and len(part.keys() & KINDS) == 1
        and all(FIELDS[field](part[field]) for field in part.keys() & FIELDS.keys())
    )


def _first_open(turns: Sequence[Turn], after: Sequence[Message]) -> Turn | None:
    """Return the first turn that the messages after the script do not complete.

    A turn that calls is complete when there are outputs for its calls and all before them; one
    that does not, when it and those before it have been said. Whether each message of a turn is a
    message of the prompt is the format's choice, so both ways of counting them will do.
    """
    roles = [role for role, _ in after if role != "reasoning"]
    outputs, messages = roles.count("tool"), roles.count("assistant")
    replies = sum(role == "assistant" for role, _ in groupby(roles))
    called = replied = written = 0
    for turn in turns:
        if calls := _calls(turn):
            if called + calls > outputs:
                return turn
            called += calls
        elif replied < replies or written + _writes(turn) <= messages:
            replied += 1
            written += _writes(turn)
        elif called < outputs and any("raw" in part for part in turn):
            called += 1  # raw markup may have been a call: an output says so
        else:
            return turn
    return None


def _calls(turn: Turn) -> int:
    return sum(not CALLS.isdisjoint(part) for part in turn)


def _writes(turn: Turn) -> int:
    return max(1, sum(not WRITES.isdisjoint(part) for part in turn))
