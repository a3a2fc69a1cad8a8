"""Parse scripts, and choose the turn to play (docs/reference/scripts.md).

A script is `@@script` followed by a JSON array in a message. Each element is one turn of the model:
a part, or a list of parts. Each part is of exactly one of KINDS; FIELDS defines its fields. An
invalid part is refused with its position, and so is a call of a tool that the request does not
offer. To test a client with such a call, the call has to say so:
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
"""(role, text), as returned by `Markup.read`."""

MODEL = frozenset({"assistant", "preamble", "call"})
CARRIERS = frozenset({"user", "developer", "system"})
CALLS = frozenset({"call", "custom", "mcp", "python"})
WRITES = frozenset({"say", "refuse"})
FAULTS = frozenset({"fail", "die"})
KINDS = CALLS | WRITES | FAULTS | {"think", "raw", "hang"}


class InvalidScript(ValueError):
    """A script that cannot be played. The message names the turn and the part, counted from 1."""


UNOFFERED: Turn = [{"say": "The script calls a tool here, and this request offers none."}]
"""What is played in place of a turn with calls if no tools are offered, unless a format of the text
is asked for."""


class FieldRule(NamedTuple):
    """The values that a field of a part accepts. `words` describe them after "must be"."""

    words: str
    accepts: Callable[[Any], bool]


TEXT = FieldRule("a string", lambda value: isinstance(value, str))
ARGUMENTS = FieldRule("an object or a string", lambda value: isinstance(value, dict | str))
TRUE = FieldRule("true", lambda value: value is True)
COUNT = FieldRule("a whole number, 0 or more", lambda value: type(value) is int and value >= 0)
SECONDS = FieldRule(
    "a number of seconds, 0 or more",
    lambda value: type(value) in (int, float) and isfinite(value) and value >= 0,
)
CHUNK = FieldRule(
    'a whole number above 0, or "all"',
    lambda value: value == "all" or (type(value) is int and value > 0),
)


def _one_of(*values: str) -> FieldRule:
    return FieldRule(" or ".join(map(json.dumps, values)), lambda value: value in values)


FIELDS: Mapping[str, FieldRule] = {
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
    "logprobs": FieldRule("true or false", lambda value: isinstance(value, bool)),  # never needed
}

_MARK = "@@script"
_START = re.compile(_MARK + r"\s*(?=[\[{])")
_DECODER = json.JSONDecoder()
_MAX_CACHED_LENGTH = 8192  # characters
_MAX_SHOWN_LENGTH = 60  # characters of an invalid value
_KINDS_IN_WORDS = f"parts are {', '.join(name for name in FIELDS if name in KINDS)}"


def next_turn(
    messages: Sequence[Message],
    *,
    tools_offered: bool,
    offers: Callable[[Part], bool] = lambda _: True,
) -> Turn | None:
    """Return the turn to play, or None if there is no script or no turn is left.

    If no tools are offered, a turn with calls is not for this request, which gets UNOFFERED: some
    clients repeat the user's text in side requests. `offers` returns whether the request offers the
    tool that a part calls. Raises: InvalidScript.

    >>> ask = ("user", 'Do it. @@script [{"call": "add", "args": {}}, {"say": "done"}] Thanks.')
    >>> next_turn([ask], tools_offered=True)
    [{'call': 'add', 'args': {}}]
    >>> next_turn([ask, ("call", "add"), ("tool", "3")], tools_offered=True)
    [{'say': 'done'}]
    >>> next_turn([ask], tools_offered=False) is UNOFFERED
    True
    """
    for place in reversed(range(len(messages))):
        role, text = messages[place]
        if role in CARRIERS and _MARK in text:
            turns = parse(text) or ()
            turn = _first_unplayed(turns, messages[place + 1 :])
            if turn is None:
                return None
            if _calls(turn) and not tools_offered:
                return UNOFFERED
            _check_calls(turn, offers, place=turns.index(turn) + 1)
            return turn
    return None


def parse(text: str) -> list[Turn] | None:
    """Return the turns of the script in this text, or None without one. Raises: InvalidScript.

    >>> parse('@@script [{"say": "a"}, [{"think": "b"}, {"say": "c"}]] and more')
    [[{'say': 'a'}], [{'think': 'b'}, {'say': 'c'}]]
    >>> parse('@@script begins a script, what is a text without an array')
    """
    start = _START.search(text)
    if start is None:
        return None
    written = text[start.end() :]
    return (
        _parse_turns_cached(written)
        if len(written) <= _MAX_CACHED_LENGTH
        else _parse_turns(written)
    )


def _parse_turns(written: str) -> list[Turn]:
    try:
        script = _parse_array(written)
    except InvalidScript:
        if '\\"' not in written:
            raise
        # Some command-line clients pass their prompt in quotes.
        script = _parse_array(written.replace('\\"', '"'))
    turns: list[Turn] = [element if isinstance(element, list) else [element] for element in script]
    for place, turn in enumerate(turns, 1):
        for position, part in enumerate(turn, 1):
            if (problem := _find_problem(part)) is not None:
                raise InvalidScript(f"turn {place}, part {position}: {problem}")
    return turns


_parse_turns_cached = lru_cache(128)(_parse_turns)  # tests repeat scripts; turns never change


def _parse_array(text: str) -> list[Any]:
    """Return the JSON array at the start of the text. Raises: InvalidScript."""
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


def _find_problem(part: Any) -> str | None:
    """Return what is wrong with a part, or None if it can be played."""
    if not isinstance(part, dict):
        return f"a part must be an object, not {_shorten(part)}"
    for name in part:
        if name not in FIELDS:
            return f"unknown key {_shorten(name)}; {_guess(name)}{_KINDS_IN_WORDS}"
    kinds = [name for name in part if name in KINDS]
    if len(kinds) > 1:
        return f"{' and '.join(map(repr, kinds))} are parts of their own: write one after the other"
    if not kinds:
        return f"a part needs one of the keys that say what the model does; {_KINDS_IN_WORDS}"
    for name, value in part.items():
        if not FIELDS[name].accepts(value):
            return f"{name!r} must be {FIELDS[name].words}, not {_shorten(value)}"
    return None


def _guess(name: str) -> str:
    close = get_close_matches(name, FIELDS, n=1)
    return f"did you mean {close[0]!r}? " if close else ""


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN_LENGTH else f"{text[: _MAX_SHOWN_LENGTH - 1]}…"


def _check_calls(turn: Turn, offers: Callable[[Part], bool], *, place: int) -> None:
    """Raises: InvalidScript for a call of a tool that is not offered, without `unknown_tool`."""
    for position, part in enumerate(turn, 1):
        if not CALLS.isdisjoint(part) and "unknown_tool" not in part and not offers(part):
            kind = next(iter(CALLS & part.keys()))
            tool = "" if kind == "python" else f" {_shorten(part[kind])}"
            raise InvalidScript(
                f"turn {place}, part {position}: the request offers no tool{tool} for {kind!r}; "
                'to call it anyway, add "unknown_tool": true'
            )


def _first_unplayed(turns: Sequence[Turn], after: Sequence[Message]) -> Turn | None:
    """Return the first turn that the messages after the script do not complete.

    A turn with calls is complete if there are outputs for its calls and all earlier ones. Any other
    turn is complete once a reply of the model has its messages; formats differ in whether they join
    a turn's messages into one, so a reply with fewer completes it, too.
    """
    outputs = sum(role == "tool" for role, _ in after)
    replies = _count_messages(after)
    called = 0
    for turn in turns:
        has_raw = any("raw" in part for part in turn)
        if calls := _calls(turn):
            if called + calls > outputs:
                return turn
            called += calls
        elif replies:
            replies[0] = 0 if has_raw else max(0, replies[0] - _writes(turn))
            replies = replies if replies[0] else replies[1:]
        elif called < outputs and has_raw:
            called += 1  # the raw markup was a call, since there is an output
        else:
            return turn
    return None


def _count_messages(after: Sequence[Message]) -> list[int]:
    """Return how many messages each reply has: what the model wrote on end, without a call.

    >>> _count_messages([("assistant", "a"), ("assistant", "b"), ("user", "c"), ("call", "f")])
    [2]
    """
    roles = (role for role, _ in after if role != "reasoning")
    runs = [[*run] for is_model, run in groupby(roles, key=MODEL.__contains__) if is_model]
    counts = [run.count("assistant") for run in runs if "call" not in run]
    return [count for count in counts if count]


def _calls(turn: Turn) -> int:
    return sum(not CALLS.isdisjoint(part) for part in turn)


def _writes(turn: Turn) -> int:
    return max(1, sum(not WRITES.isdisjoint(part) for part in turn))
