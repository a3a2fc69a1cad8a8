"""Ways to write a conversation for templates that do not take every conversation.

Each is a rewrite of chat messages that keeps all their texts, in order. `role_rules` finds out
which of them a template needs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from antiphon.domain.json import Json

Rewrite = Callable[[Sequence[Json]], list[Json]]
"""Returns the messages in another form."""

WriteCall = Callable[[str, Any], str]
"""Writes a call: a name and its arguments, an object or a text."""

NO_TEXT, ELLIPSIS = "", "…"
"""The texts of a message that is only there for a rule; some templates drop the empty one."""

ALL_CALLS = "all_calls"
"""The key of a message that stands for a turn: the names of all its calls, by their ids."""

INSTRUCTIONS_MARK = "Instructions:\n\n"
RESULT_MARK = "Result of {name}:\n\n"
USER_MARK = "The user says:\n\n"


class Fitting(Struct, frozen=True):
    """A way to keep a rule of a template: `name` is for records, `description` for people."""

    name: str
    description: str
    rewrite: Rewrite


class Fittings(Struct, frozen=True):
    """The fittings that a template needs, and the names of the rules that nothing helps to keep.

    `refusals` has the template's own words, by the name of the fitting or of the rule; there are
    none where it leaves texts out.
    """

    needed: Sequence[Fitting] = ()
    unmet: Sequence[str] = ()
    refusals: Mapping[str, str] = {}

    @property
    def of_roles(self) -> Fittings:
        """Those that do not compare the ids of calls and results."""
        return Fittings([each for each in self.needed if each not in EMPTY_RESULTS])

    def apply(self, messages: Sequence[Json]) -> tuple[Sequence[Json], Sequence[str]]:
        """Return the messages as the template needs them, and the names of what changed them."""
        changes: list[str] = []
        for fitting in self.needed:
            fitted = fitting.rewrite(messages)
            if fitted != messages:
                changes.append(fitting.name)
                messages = fitted
        return messages, changes


# --- contents -------------------------------------------------------------------------------------


def _join(one: Any, other: Any) -> Any:
    """Return two contents as one: texts, or lists of parts."""
    if isinstance(one, list) or isinstance(other, list):
        return [*_parts(one), *_parts(other)]
    return f"{one}\n\n{other}" if one and other else one or other or ""


def _mark(mark: str, content: Any) -> Any:
    return [*_parts(mark), *content] if isinstance(content, list) else f"{mark}{content or ''}"


def _parts(content: Any) -> list[Json]:
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if content else []


def _as_user(message: Json, mark: str) -> Json:
    return {"role": "user", "content": _mark(mark, message.get("content"))}


def write_as_json(name: str, arguments: Any) -> str:
    """Return a call as JSON.

    >>> write_as_json("look", {"at": "Bonn"})
    '{"name": "look", "arguments": {"at": "Bonn"}}'
    """
    return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)


# --- rewrites: of roles ---------------------------------------------------------------------------


def _instructions_as_user(first: int) -> Rewrite:
    """Return the rewrite that lets a user say the instructions from message `first` on.

    At the beginning, they need no mark: templates that join them with the first message have none.
    """

    def rewrite(messages: Sequence[Json]) -> list[Json]:
        return [
            _as_user(message, INSTRUCTIONS_MARK if number else "")
            if message["role"] == "system" and number >= first
            else message
            for number, message in enumerate(messages)
        ]

    return rewrite


def _result_as_user(message: Json) -> Json:
    return _as_user(message, RESULT_MARK.format(name=message.get("name") or "a tool"))


def _calls_as_text(write_call: WriteCall, *, results: bool) -> Rewrite:
    def rewrite(messages: Sequence[Json]) -> list[Json]:
        return [fit(message) for message in messages]

    def fit(message: Json) -> Json:
        if message["role"] == "tool" and results:
            return _result_as_user(message)
        if not message.get("tool_calls"):
            return message
        functions = [call["function"] for call in message["tool_calls"]]
        texts = [write_call(each["name"], each["arguments"]) for each in functions]
        content = _join(message.get("content") or "", "\n".join(texts))
        rest = {key: value for key, value in message.items() if key != "tool_calls"}
        return rest | {"content": content}

    return rewrite


# --- rewrites: of neighbors -----------------------------------------------------------------------


def _empty_results(text: str) -> Rewrite:
    """Return the rewrite that gives each call without a result one with this text."""

    def rewrite(messages: Sequence[Json]) -> list[Json]:
        fitted: list[Json] = []
        waiting: dict[Any, str] = {}
        for message in messages:
            if message["role"] == "tool":
                waiting.pop(message.get("tool_call_id"), None)
            else:
                fitted += _results_of(waiting, text)
                waiting = _calls_of(message)
            fitted.append(message)
        return [*fitted, *_results_of(waiting, text)]

    return rewrite


def _calls_of(message: Json) -> dict[Any, str]:
    """Return the names of a message's calls, by their ids."""
    calls = message.get("tool_calls") or ()
    return dict(
        message.get(ALL_CALLS) or {call.get("id"): call["function"]["name"] for call in calls}
    )


def _results_of(calls: dict[Any, str], text: str) -> list[Json]:
    return [
        {"role": "tool", "tool_call_id": call_id, "name": name, "content": text}
        for call_id, name in calls.items()
    ]


def _user_first(text: str) -> Rewrite:
    """Return the rewrite that begins with a user, after the instructions."""

    def rewrite(messages: Sequence[Json]) -> list[Json]:
        roles = [message["role"] for message in messages]
        start = next((n for n, role in enumerate(roles) if role != "system"), len(roles))
        if roles[start : start + 1] == ["user"]:
            return list(messages)
        return [*messages[:start], {"role": "user", "content": text}, *messages[start:]]

    return rewrite


def _separate(before: str, after: str, role: str, text: str) -> Rewrite:
    """Return the rewrite that puts a message between two roles that may not follow each other."""

    def rewrite(messages: Sequence[Json]) -> list[Json]:
        fitted = list(messages[:1])
        for message in messages[1:]:
            if fitted[-1]["role"] == before and message["role"] == after:
                fitted.append({"role": role, "content": text})
            fitted.append(message)
        return fitted

    return rewrite


def _join_neighbors(role: str) -> Rewrite:
    """Return the rewrite that joins messages of the same role that have no calls."""

    def rewrite(messages: Sequence[Json]) -> list[Json]:
        fitted: list[Json] = []
        for message in messages:
            last = fitted[-1] if fitted else {}
            has_calls = last.get("tool_calls") or message.get("tool_calls")
            if last.get("role") == message["role"] == role and not has_calls:
                content = _join(last.get("content"), message.get("content"))
                fitted[-1] = last | message | {"content": content}
            else:
                fitted.append(message)
        return fitted

    return rewrite


def _users_in_results(messages: Sequence[Json]) -> list[Json]:
    fitted: list[Json] = []
    for message in messages:
        if message["role"] == "user" and fitted and fitted[-1]["role"] == "tool":
            content = _join(fitted[-1]["content"], _mark(USER_MARK, message["content"]))
            fitted[-1] = fitted[-1] | {"content": content}
        else:
            fitted.append(message)
    return fitted


# --- fittings -------------------------------------------------------------------------------------


def _with_filler(
    name: str, description: str, rewrite: Callable[[str], Rewrite]
) -> tuple[Fitting, Fitting]:
    """Return the fitting with an empty message, and the one for templates that drop those."""
    return (
        Fitting(name, description, rewrite(NO_TEXT)),
        Fitting(name, description, rewrite(ELLIPSIS)),
    )


INSTRUCTIONS_AS_USER = Fitting(
    "instructions_as_user",
    "It has no place for instructions, or drops them: a user says them.",
    _instructions_as_user(0),
)
LATER_INSTRUCTIONS_AS_USER = Fitting(
    "later_instructions_as_user",
    "It takes instructions only at the beginning: a user says later ones.",
    _instructions_as_user(1),
)
EMPTY_RESULTS = _with_filler(
    "empty_results", "It takes no call without a result: it gets an empty one.", _empty_results
)
USER_FIRST = _with_filler(
    "user_first",
    "It takes no conversation that begins without a user: an empty message is added.",
    _user_first,
)
JOINED_USERS = Fitting(
    "joined_users",
    "It takes one message of the user at a time: several are joined.",
    _join_neighbors("user"),
)
JOINED_ANSWERS = Fitting(
    "joined_answers",
    "It takes one message of the assistant at a time: several are joined.",
    _join_neighbors("assistant"),
)
SEPARATE_ANSWERS = _with_filler(
    "separate_answers",
    "It takes one message of the assistant at a time: an empty one of the user is between.",
    lambda text: _separate("assistant", "assistant", "user", text),
)
ANSWERED_RESULTS = _with_filler(
    "answered_results",
    "It takes no user after a result: an empty answer is between.",
    lambda text: _separate("tool", "user", "assistant", text),
)
USERS_IN_RESULTS = Fitting(
    "users_in_results",
    "It takes no user after a result: the result says it.",
    _users_in_results,
)


def calls_as_text(write_call: WriteCall) -> tuple[Fitting, Fitting]:
    """Return the fitting that writes calls as texts, and the one that does so with results, too."""
    return (
        Fitting(
            "calls_as_text",
            "It shows no calls: the assistant's text has them.",
            _calls_as_text(write_call, results=False),
        ),
        Fitting(
            "calls_as_text",
            "It shows no calls and results: the assistant's and the user's texts have them.",
            _calls_as_text(write_call, results=True),
        ),
    )


ORDER = (
    "instructions_as_user",
    "later_instructions_as_user",
    "calls_as_text",
    "empty_results",
    "user_first",
    "joined_users",
    "joined_answers",
    "separate_answers",
    "answered_results",
    "users_in_results",
)
"""In which they are applied, by name: first what changes roles, then what joins and separates."""


def in_order(fittings: Sequence[Fitting]) -> list[Fitting]:
    return sorted(fittings, key=lambda fitting: ORDER.index(fitting.name))


ALTERNATING = Fittings(
    in_order(
        [
            LATER_INSTRUCTIONS_AS_USER,
            EMPTY_RESULTS[1],
            USER_FIRST[1],
            JOINED_USERS,
            JOINED_ANSWERS,
            SEPARATE_ANSWERS[1],
            ANSWERED_RESULTS[1],
        ]
    )
)
"""For a template that cannot be asked, if it wants users and assistants in turns."""
