"""Sessions: conversations that clients know by a name of their own, and what clients repeat of them
(docs/guides/sessions.md).

Clients of stateless APIs send the whole history with each request. Each of them shows the same
answers in another form: a client of Chat Completions gets the texts of a response as one, none gets
the calls that the server ran, and none gets ids. So items are compared as marks, which are the same
in all forms.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from antiphon.domain import items as i
from antiphon.domain.content import InputText, OutputText, PlainText, Refusal
from antiphon.domain.errors import RequestError
from antiphon.domain.history.conversation import INSTRUCTORS
from antiphon.domain.vocabulary.tool import parse_arguments

NAME_KEY = "antiphon_session"
"""The key of `metadata` that names a session."""

LAST_KEY = "antiphon_last"
"""The key of a conversation's metadata for who has gone on with it: a door, and its response."""

JOIN = "join"

_VALUE = re.compile(rf"\s*([!-:<-~](?:[ -:<-~]{{0,254}}[!-:<-~])?)\s*(?:;\s*({JOIN})\s*)?")
_ID_DIGITS = 48
_encode = msgspec.json.Encoder().encode


class NamedSession(Struct, frozen=True, kw_only=True):
    """A session as a request names it.

    `joins`: the client sends what is new. Otherwise, it sends the whole history. `is_stateless`:
    its API knows no conversations, so the system messages with which the request begins are its
    instructions.
    """

    name: str
    joins: bool
    is_stateless: bool = False

    @property
    def value(self) -> str:
        """The session as the header names it."""
        return f"{self.name}; {JOIN}" if self.joins else self.name

    def conversation_of(self, tenant: str) -> str:
        """Return the id of the session's conversation. So no server need remember names.

        >>> session = NamedSession(name="work", joins=True)
        >>> ours, theirs = session.conversation_of("us"), session.conversation_of("them")
        >>> ours == session.conversation_of("us"), ours == theirs, len(ours)
        (True, False, 53)
        """
        digest = hashlib.sha256(_encode(("session", tenant, self.name))).hexdigest()
        return f"conv_{digest[:_ID_DIGITS]}"


def read_session(value: str, place: str, *, is_stateless: bool) -> NamedSession:
    """Return the session that a client names. Raises: RequestError, with the `place` of the value.

    >>> each = read_session("my work", "metadata", is_stateless=True)
    >>> each.name, each.joins, read_session("a; join", "metadata", is_stateless=True).joins
    ('my work', False, True)
    """
    found = _VALUE.fullmatch(value)
    if found is None:
        raise RequestError(
            f"Invalid {place!r}: a session has a name of 1 to 256 printable ASCII characters "
            f"without a semicolon. '; {JOIN}' may follow.",
            param=place,
            code="invalid_value",
        )
    joins = found[2] is not None or not is_stateless
    return NamedSession(name=found[1], joins=joins, is_stateless=is_stateless)


class Mark(Struct, frozen=True):
    """The part of some items that a client knows, whatever its API; `what` is comparable.

    All that a model and the server did between two items of the client is one mark. `end` is the
    place behind the items.
    """

    what: Any
    end: int
    is_answer: bool = False


def marks_of(items: Sequence[i.AnyItem]) -> list[Mark]:
    """Return the marks of a conversation, in order."""
    marks: list[Mark] = []
    answer: list[i.AnyItem] = []
    run_here = {i.call_id_of(item) for item in items if i.is_server_run_call(item)}
    for position, item in enumerate(items):
        if not is_of_client(item, run_here):
            answer.append(item)
            continue
        marks += _answer(answer, position)
        answer = []
        if not isinstance(item, _SETTINGS):
            marks.append(Mark(_sent(item), position + 1))
    return [*marks, *_answer(answer, len(items))]


class Known(Struct, frozen=True):
    """How many of the items that a client sends, from the first one on, a conversation holds
    already; and how many of those that it holds, from the first one on, the client has."""

    sent: int
    held: int


def compare(held: Sequence[i.AnyItem], sent: Sequence[i.AnyItem], *, joins: bool) -> Known | None:
    """Compare a conversation with what a client sends.

    If it `joins`, it has all that is held, and may send any of that again, up to an answer: it
    knows what it was there for. If it sends all, it may lack the last answer, or that with the
    question; None if it lacks more, since it has another history then.
    """
    ours, theirs = marks_of(held), marks_of(sent)
    if joins:
        return Known(_count_joined(ours, theirs), len(held))
    for count in _beginnings(ours):
        if len(theirs) >= count and all(
            ours[place].what == theirs[place].what for place in range(count)
        ):
            end = theirs[count - 1].end if count else 0
            return Known(end, len(held) if count == len(ours) else ours[count - 1].end)
    return None


def leading_texts(items: Sequence[i.AnyItem]) -> list[str]:
    """Return the instructions at the start of what a client sends, as far as they are texts: none
    if nothing follows them.

    >>> system = i.Message(role="system", content="Be kind.")
    >>> leading_texts([system, i.Message(role="user", content="Hi")]), leading_texts([system])
    (['Be kind.'], [])
    """
    texts: list[str] = []
    for item in items:
        said = _said(item.content) if isinstance(item, i.Message) else []
        is_text = all(isinstance(each, str) for each in said)
        if not isinstance(item, i.Message) or item.role not in INSTRUCTORS or not is_text:
            return texts
        texts.append("".join(said))
    return []


def _beginnings(marks: Sequence[Mark]) -> Iterator[int]:
    """Yield the lengths of all, of all but the last answer, and of all but the last question."""
    count = len(marks)
    yield count
    if count and marks[count - 1].is_answer:
        count -= 1
        if count:
            yield count
    while count and not marks[count - 1].is_answer:
        count -= 1
    if count:
        yield count


def _count_joined(ours: Sequence[Mark], theirs: Sequence[Mark]) -> int:
    known = 0
    rest = iter(ours)
    for mark in theirs:
        if all(each.what != mark.what for each in rest):
            break  # `rest` is behind the one that is equal, or at its end
        if mark.is_answer:
            known = mark.end  # a question may be asked again
    return known


def _answer(items: Sequence[i.AnyItem], end: int) -> list[Mark]:
    """Return the mark of what a model and the server did; none if no client is shown any of it."""
    said, calls = "", []
    for item in items:
        if isinstance(item, i.Message):
            said += "".join(map(str, _said(item.content)))
        elif i.waits_for_client(item) and i.call_id_of(item):
            calls.append(_call(item))
    # Doors join texts in different ways, and clients cut spaces off.
    text = "".join(said.split())
    if not text and not calls:
        return []
    return [Mark(("answer", text, calls), end, is_answer=True)]


def _call(item: Any) -> Any:
    if isinstance(item, i.FunctionCall):
        return item.call_id, item.name, parse_arguments(item.arguments) or {}
    return item.call_id, getattr(item, "name", ""), _plain(getattr(item, "input", None))


_SETTINGS = (i.AdditionalTools, i.ConfigurationUpdate, i.CompactionTrigger, i.ItemReference)
"""Items of the client's that are not compared: those that it repeats follow from the others."""

_OUTPUTS = tuple(i.ANSWERED_BY.values())
_OF_TEXT = (i.FunctionCallOutput, i.CustomToolCallOutput)


def is_of_client(item: i.AnyItem, run_here: Collection[str | None] = ()) -> bool:
    """Whether a client says this, and not a model or the server.

    `run_here` are the ids of calls that the server answers.
    """
    if isinstance(item, _SETTINGS):
        return True
    if isinstance(item, i.Message):
        return item.role != "assistant"
    if isinstance(item, i.ToolSearchOutput) and not item.call_id:
        return False
    is_output = isinstance(item, _OUTPUTS) and i.answered_call_id(item) not in run_here
    return is_output or isinstance(item, i.McpApprovalResponse)


def _sent(item: i.AnyItem) -> Any:
    """Return what a client says with an item of its own."""
    if isinstance(item, i.Message):
        return item.role, _said(item.content)
    if isinstance(item, i.McpApprovalResponse):
        return "approval", item.approval_request_id
    output = getattr(item, "output", None)
    said = _said(output) if isinstance(item, _OF_TEXT) else _plain(output)
    return "output", i.answered_call_id(item) or getattr(item, "name", None) or None, said


def _said(content: Any) -> list[Any]:
    """Return a content as texts and other parts; a text may be in any number of parts."""
    parts: list[Any] = []
    for part in (content,) if isinstance(content, str) else content or ():
        text = _text_of(part)
        if text is None:
            parts.append(_plain(part))
        elif parts and isinstance(parts[-1], str):
            parts[-1] += text
        elif text:
            parts.append(text)
    return parts


def _text_of(part: Any) -> str | None:
    match part:
        case str():
            return part
        case InputText(text=text) | OutputText(text=text) | PlainText(text=text):
            return text
        case Refusal(refusal=text):
            return text
    return None


def _plain(value: Any) -> Any:
    """Return a value without the fields that say nothing."""
    built = msgspec.to_builtins(value) if value is not UNSET else None
    if isinstance(built, dict):
        return {name: each for name, each in built.items() if each is not None}
    return built
