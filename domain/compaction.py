"""Compaction: a conversation becomes a summary, sealed for the client to keep
(docs/reference/api.md#compaction).

What is sealed is more than the summary: the items that must survive as they are go with it. So a
compaction item alone is enough to go on from, and whatever stands before it may be dropped.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from antiphon.domain import items as i
from antiphon.domain.content import InputText
from antiphon.domain.conversation import INSTRUCTORS
from antiphon.domain.decoding import decode_item
from antiphon.domain.errors import RequestError

INTRODUCTION = "This is a summary of the conversation so far, whose messages are no longer shown:"

REQUEST = """\
The conversation will go on without its messages up to here: only your summary of it remains.
Write that summary now, and nothing else. Do not continue the work and do not call tools.
Keep all that is needed to go on: what the user wants and has decided, what was done and with
which results, names, numbers, paths and quotes that matter, what is open, and the next step."""


class Sealed(Struct, frozen=True, kw_only=True):
    """What a compaction item's `encrypted_content` holds."""

    summary: str
    kept: tuple[Raw, ...] = ()
    version: int = 1


def items_to_keep(conversation: Sequence[i.Item]) -> list[i.Item]:
    """Return the items that survive: what instructs, and what the model has still to answer.

    That is the newest user message, unless an assistant's message has ended its turn, and the tool
    outputs at the end with their calls.

    >>> ask = i.Message(role="user", content="Add 1 and 2.")
    >>> items_to_keep([ask, i.Message(role="assistant", content="3")])
    []
    >>> items_to_keep([i.Message(role="user", content="Hi"), ask]) == [ask]
    True
    """
    stays = {n for n, item in enumerate(conversation) if _is_by(item, *INSTRUCTORS)}
    last = len(conversation) - 1
    if last >= 0 and not _is_by(conversation[last], "assistant"):
        stays |= _newest_of_user(conversation) | _answered_last(conversation)
    return [conversation[n] for n in sorted(stays)]


def text_to_seal(summary: str, conversation: Sequence[i.Item]) -> str:
    """Return the text to seal, of a summary of this conversation."""
    items = tuple(Raw(msgspec.json.encode(item)) for item in items_to_keep(conversation))
    return msgspec.json.encode(Sealed(summary=summary, kept=items)).decode()


def expand_compaction(text: str) -> list[i.AnyItem]:
    """Return what a model is shown in place of a compaction whose opened text this is.

    The summary is the user's to tell: it holds what users and tools said, which must not get the
    weight of instructions. It joins a user message that follows, since many templates want the
    roles to alternate. Raises: RequestError.
    """
    try:
        sealed = msgspec.json.decode(text, type=Sealed)
    except msgspec.DecodeError:
        raise unreadable_compaction() from None
    items = [decode_item(raw, "input") for raw in sealed.kept]
    summary = InputText(text=f"{INTRODUCTION}\n\n{sealed.summary}")
    instructing = [item for item in items if _is_by(item, *INSTRUCTORS)]
    rest = [item for item in items if not _is_by(item, *INSTRUCTORS)]
    if rest and isinstance(rest[0], i.Message):
        content = rest[0].content or ()
        parts = (InputText(text=content),) if isinstance(content, str) else content
        told = replace(rest[0], content=(summary, InputText(text="\n\n"), *parts))
        return [*instructing, told, *rest[1:]]
    return [*instructing, i.Message(role="user", content=(summary,)), *rest]


def unreadable_compaction() -> RequestError:
    """Return the error of a compaction that was not sealed by this server for this tenant."""
    return RequestError(
        "The compaction item cannot be read: its 'encrypted_content' was not made by this server "
        "for you, or it was changed.",
        param="input",
        code="invalid_encrypted_content",
    )


def _answered_last(conversation: Sequence[i.Item]) -> set[int]:
    """Return the positions of the tool outputs at the end, and of their calls."""
    first = len(conversation)
    while first and i.answered_call_id(conversation[first - 1]) is not None:
        first -= 1
    ids = {i.answered_call_id(item) for item in conversation[first:]}
    calls = {n for n, item in enumerate(conversation[:first]) if i.call_id_of(item) in ids and ids}
    return calls | set(range(first, len(conversation)))


def _newest_of_user(conversation: Sequence[i.Item]) -> set[int]:
    said = [n for n, item in enumerate(conversation) if _is_by(item, "user")]
    return set(said[-1:])


def _is_by(item: i.Item, *roles: str) -> bool:
    return isinstance(item, i.Message) and item.role in roles
