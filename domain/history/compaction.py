"""Compaction: replace a conversation with a summary, sealed for the client to keep
(docs/reference/api.md#compaction).

The sealed text holds the summary and the items that must survive unchanged. A compaction item alone
is therefore enough to continue from, and everything before it may be dropped.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from antiphon.domain import items as i
from antiphon.domain.content import InputText
from antiphon.domain.errors import RequestError
from antiphon.domain.history.conversation import INSTRUCTORS, pair_outputs_with_calls
from antiphon.domain.requests.decoding import decode_item

INTRODUCTION = "This is a summary of the conversation so far, whose messages are no longer shown:"

REQUEST = """\
The conversation will go on without its messages up to here: only your summary of it remains.
Write that summary now, and nothing else. Do not continue the work and do not call tools.
Keep all that is needed to go on: what the user wants and has decided, what was done and with
which results, names, numbers, paths and quotes that matter, what is open, and the next step."""


class Sealed(Struct, frozen=True, kw_only=True):
    """The plaintext of a compaction item's `encrypted_content`."""

    summary: str
    kept: tuple[Raw, ...] = ()
    version: int = 1


def items_to_keep(conversation: Sequence[i.Item]) -> list[i.Item]:
    """Return the items that survive: instructions, and what the model has yet to answer.

    The model has yet to answer the newest user message, unless an assistant message ends the
    conversation, and the tool outputs at the end, which survive with their calls.

    >>> ask = i.Message(role="user", content="Add 1 and 2.")
    >>> items_to_keep([ask, i.Message(role="assistant", content="3")])
    []
    >>> items_to_keep([i.Message(role="user", content="Hi"), ask]) == [ask]
    True
    """
    positions = {n for n, item in enumerate(conversation) if _is_by(item, *INSTRUCTORS)}
    last = len(conversation) - 1
    if last >= 0 and not _is_by(conversation[last], "assistant"):
        positions |= _newest_user_message(conversation) | _final_outputs_and_calls(conversation)
    return [conversation[n] for n in sorted(positions)]


def text_to_seal(summary: str, conversation: Sequence[i.Item]) -> str:
    """Return the text to seal for a summary of this conversation."""
    items = tuple(Raw(msgspec.json.encode(item)) for item in items_to_keep(conversation))
    return msgspec.json.encode(Sealed(summary=summary, kept=items)).decode()


def expand_compaction(text: str) -> list[i.AnyItem]:
    """Return the items that a model is shown in place of a compaction, given its unsealed text.

    The summary is shown as a user message: it repeats what users and tools said, which must not
    have the weight of instructions. It is merged with a user message that follows, because many
    chat templates require alternating roles. Raises: RequestError.
    """
    try:
        sealed = msgspec.json.decode(text, type=Sealed)
    except msgspec.DecodeError:
        raise unreadable_compaction() from None
    items = [decode_item(raw, "input") for raw in sealed.kept]
    summary = InputText(text=f"{INTRODUCTION}\n\n{sealed.summary}")
    instructions = [item for item in items if _is_by(item, *INSTRUCTORS)]
    rest = [item for item in items if not _is_by(item, *INSTRUCTORS)]
    if rest and isinstance(rest[0], i.Message):
        content = rest[0].content or ()
        parts = (InputText(text=content),) if isinstance(content, str) else content
        message = replace(rest[0], content=(summary, InputText(text="\n\n"), *parts))
        return [*instructions, message, *rest[1:]]
    return [*instructions, i.Message(role="user", content=(summary,)), *rest]


def unreadable_compaction() -> RequestError:
    """Return the error for a compaction that this server did not seal for this tenant."""
    return RequestError(
        "The compaction item cannot be read: its 'encrypted_content' was not made by this server "
        "for you, or it was changed.",
        param="input",
        code="invalid_encrypted_content",
    )


def _final_outputs_and_calls(conversation: Sequence[i.Item]) -> set[int]:
    """Return the positions of the tool outputs at the end and of their calls."""
    first = len(conversation)
    while first and i.answered_call_id(conversation[first - 1]) is not None:
        first -= 1
    pairs = pair_outputs_with_calls(conversation)
    calls = {call for output, call in pairs.items() if output >= first}
    return calls | set(range(first, len(conversation)))


def _newest_user_message(conversation: Sequence[i.Item]) -> set[int]:
    positions = [n for n, item in enumerate(conversation) if _is_by(item, "user")]
    return set(positions[-1:])


def _is_by(item: i.Item, *roles: str) -> bool:
    return isinstance(item, i.Message) and item.role in roles
