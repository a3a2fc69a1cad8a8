"""Scripts: where a prompt carries one, what it may say, and which of its turns comes next.

A script is `@@script` and a JSON array in a message. Each element is one turn of the model: a part,
or a list of parts. A part is of exactly one of KINDS; FIELDS says what each field may hold. A part
that is anything else is refused by its place, as is a call of a tool that the request does not
offer. To see what a client does about a call that nobody expects, such a call says so itself:
`{"call": "no_such_tool", "args": {}, "unknown_tool": true}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from itertools import groupby
from math import isfinite
from typing import Any, NamedTuple

Part = Mapping[str, Any]
Turn = Sequence[Part]
Message = tuple[str, str]
"""(role, text), as a Markup reads them."""

CARRIERS = frozenset({"user", "developer", "system"})
CALLS = frozenset({"call", "custom", "mcp", "python"})
WRITES = frozenset({"say", "refuse"})
FAULTS = frozenset({"fail", "die"})
KINDS = CALLS | WRITES | FAULTS | {"think", "raw", "hang"}


class InvalidScript(ValueError):
    """A script that cannot be played. The message names the turn and the part, counted from 1."""


class Field(NamedTuple):
    """What a field of a part may hold; `words` stand after "must be"."""

    words: str
    accepts: Callable[[Any], bool]


TEXT = Field("a string", lambda value: isinstance(value, str))
ARGUMENTS = Field("an object or a string", lambda value: isinstance(value, dict | str))
TRUE = Field("true", lambda value: value is True)
COUNT = Field("a whole number, 0 or more", lambda value: type(value) is int and value >= 0)
SECONDS = Field(
    "a number of seconds, 0 or more",
    lambda value: type(value) in (int, float) and isfinite(value) and value >= 0,
)
CHUNK = Field(
    'a whole number above 0, or "all"',
    lambda value: value == "all" or (type(value) is int and value > 0),
)


def _one_of(*values: str) -> Field:
    return Field(" or ".join(map(json.dumps, values)), lambda value: value in values)


FIELDS: Mapping[str, Field] = {
    "say": TEXT,
    "repeat": COUNT,
    "phase": _one_of("commentary", "final_answer"),
    "think": TEXT,
    "call": TEXT,
    "args": ARGUMENTS,
    "custom": TEXT,
    "input": TEXT,
    "mcp": TEXT,
    "server": TEXT,
    "python": TEXT,
    "unknown_tool": TRUE,
    "refuse": TEXT,
    "raw": TEXT,
    "fail": TEXT,
    "die": TRUE,
    "hang": SECONDS,
    "delay": SECONDS,
    "tick": SECONDS,
    "chunk": CHUNK,
    "finish": _one_of("length", "stop", "abort"),
    "logprobs": Field("true or false", lambda value: isinstance(value, bool)),  # never needed
}

_MARK = "@@script"
_START = re.compile(_MARK + r"\s*(?=[\[{])")
_DECODER = json.JSONDecoder()
_LONGEST_REMEMBERED = 8192  # characters
_LONGEST_SHOWN = 60  # characters of what is wrong
_KINDS_IN_WORDS = f"parts are {', '.join(name for name in FIELDS if name in KINDS)}"


def next_turn(
    messages: Sequence[Message],
    *,
    tools_offered: bool,
    offers: Callable[[Part], bool] = lambda _: True,
) -> Turn | None:
    """Return the turn to play, or None where there is no script or none of its turns is left.

    A turn that calls where no tool is offered is not for this request: some clients send side
    requests that repeat the user's text. `offers` says of a part whether the tool that it calls is
    offered. Raises: InvalidScript.

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
            turns = parse(text) or ()
            turn = _first_open(turns, messages[place + 1 :])
            if turn is None or (_calls(turn) and not tools_offered):
                return None
            _check_calls(turn, offers, place=turns.index(turn) + 1)
            return turn
    return None


def parse(text: str) -> list[Turn] | None:
    """Return the turns of the script in this text; None if it has none. Raises: InvalidScript.

    >>> parse('@@script [{"say": "a"}, [{"think": "b"}, {"say": "c"}]] and more')
    [[{'say': 'a'}], [{'think': 'b'}, {'say': 'c'}]]
    >>> parse('@@script begins a script, what is a text without an array')
    """
    start = _START.search(text)
    if start is None:
        return None
    written = text[start.end() :]
    return _remembered(written) if len(written) <= _LONGEST_REMEMBERED else _turns(written)


def _turns(written: str) -> list[Turn]:
    try:
        script = _array(written)
    except InvalidScript:
        if '\\"' not in written:
            raise
        # Some command-line clients hand their prompt on in quotes.
        script = _array(written.replace('\\"', '"'))
    turns: list[Turn] = [element if isinstance(element, list) else [element] for element in script]
    for place, turn in enumerate(turns, 1):
        for position, part in enumerate(turn, 1):
            if (why := _why_no_part(part)) is not None:
                raise InvalidScript(f"turn {place}, part {position}: {why}")
    return turns


_remembered = lru_cache(128)(_turns)  # tests ask the same again and again; nobody changes a turn


def _array(text: str) -> list[Any]:
    """Return the JSON array that the text begins with. Raises: InvalidScript."""
    if text.startswith("{"):
        raise InvalidScript("it must be an array of turns, [{…}], not an object")
    try:
        array: list[Any] = _DECODER.raw_decode(text)[0]
    except json.JSONDecodeError as error:
        raise InvalidScript(
            f"it is not JSON: {error.msg} at character {error.pos + 1} of the array"
        ) from None
    except (ValueError, RecursionError) as error:
        raise InvalidScript(f"it is not JSON: {error}") from None
    try:
        json.dumps(array, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidScript("it has half a surrogate pair, which no tokenizer can take") from None
    return array


def _why_no_part(part: Any) -> str | None:
    """Return what is wrong with a part, None for a part that can be played."""
    if not isinstance(part, dict):
        return f"a part must be an object, not {_shown(part)}"
    for name in part:
        if name not in FIELDS:
            return f"unknown key {_shown(name)}; {_guess(name)}{_KINDS_IN_WORDS}"
    kinds = [name for name in part if name in KINDS]
    if len(kinds) > 1:
        return f"{' and '.join(map(repr, kinds))} are parts of their own: write one after the other"
    if not kinds:
        return f"a part needs one of the keys that say what the model does; {_KINDS_IN_WORDS}"
    for name, value in part.items():
        if not FIELDS[name].accepts(value):
            return f"{name!r} must be {FIELDS[name].words}, not {_shown(value)}"
    return None


def _guess(name: str) -> str:
    close = get_close_matches(name, FIELDS, n=1)
    return f"did you mean {close[0]!r}? " if close else ""


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 1]}…"


def _check_calls(turn: Turn, offers: Callable[[Part], bool], *, place: int) -> None:
    """Raises: InvalidScript for a call of a tool that is not offered, and does not say so."""
    for position, part in enumerate(turn, 1):
        if not CALLS.isdisjoint(part) and "unknown_tool" not in part and not offers(part):
            kind = next(iter(CALLS & part.keys()))
            tool = "" if kind == "python" else f" {_shown(part[kind])}"
            raise InvalidScript(
                f"turn {place}, part {position}: the request offers no tool{tool} for {kind!r}; "
                'to call it all the same, add "unknown_tool": true'
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
