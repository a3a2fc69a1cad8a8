"""Reads a message's header: its author, channel, recipient and content type.

A header is the text between `<|start|>` and `<|message|>`. It arrives as pieces of text, each with
the special token that introduces it. Well-formed headers are

    assistant<|channel|>analysis
    assistant<|channel|>commentary to=functions.NAME <|constrain|>json
    assistant to=functions.NAME<|channel|>commentary json
    functions.NAME to=assistant<|channel|>commentary

Models write many others. Each part is found anywhere in the header. Anything that is no part of a
header is returned as `rest`: it is text, and text is never lost.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from antiphon.adapters.formats.harmony.encoding import CHANNEL, CONSTRAIN, START

ASSISTANT = "assistant"
REFUSAL = "refusal"
CONTENT_TYPES = ("json", "code", "text", REFUSAL)

CONTINUED = 0
"""Stands in for the special token where there is none: in a turn's first piece, which follows the
prompt's `<|start|>assistant`, and after the end of a message."""

Piece = tuple[int, str]

_AUTHOR = re.compile(r"\s*(?!to=)([^\s=<{]+)")
_ASSISTANT = re.compile(r"\s*(assistant)(?=\s|to=|$)")
_CHANNEL = re.compile(r"\s*(analysis|commentary|final)(?=to=|json|code|\W|$)")
# Only the characters of tool names, so that text without a space after it stays text.
_RECIPIENT = re.compile(r"\s*to=\s*([A-Za-z0-9_.-]+)")
_LATE_RECIPIENT = re.compile(r"(?:^|\s)to=(functions\.[A-Za-z0-9_.-]+)")
_CONTENT_TYPE = re.compile(rf"\s*({'|'.join(CONTENT_TYPES)})(?=\s*$|\s+to=|\s*[{{\[])")
_CONSTRAINED_TYPE = re.compile(r"\s*([A-Za-z][\w.+/-]*)(?=\s|[{\[]|$)")
_UNFINISHED = re.compile(
    r"\s*(?:"
    + "|".join(
        f"(?:{'|'.join(word[:length] for length in range(1, len(word)))})"
        for word in (ASSISTANT, "analysis", "commentary", "final", "to=", *CONTENT_TYPES)
    )
    + r")\Z"
)


class Header(Struct, frozen=True, kw_only=True):
    """The parts of a header; `rest` is text that is none of them."""

    role: str = ASSISTANT
    channel: str | None = None
    recipient: str | None = None
    content_type: str | None = None
    is_constrained: bool = False
    rest: str = ""


def read_header(pieces: Sequence[Piece]) -> Header:
    """Return the parts of a header; if a part occurs twice, the last one wins.

    >>> header = read_header([(START, "assistant"), (CHANNEL, "analysis to=functions.f code")])
    >>> header.channel, header.recipient, header.content_type, header.rest
    ('analysis', 'functions.f', 'code', '')
    """
    parts: dict[str, str] = {}
    is_constrained = False
    rest = ""
    for introducer, text in pieces:
        position = 0
        part, pattern = _FIRST_PARTS.get(introducer, ("role", _ASSISTANT))
        if match := pattern.match(text):
            parts[part] = match[1]
            position = match.end()
            is_constrained = is_constrained or introducer == CONSTRAIN
        position = _read_tail(text, position, parts)
        rest += text[position:]
    if "recipient" not in parts and (late := _LATE_RECIPIENT.search(rest)):
        parts["recipient"] = late[1]
        rest = rest[: late.start()] + rest[late.end() :]
    return Header(**parts, is_constrained=is_constrained, rest=rest if rest.strip() else "")


_FIRST_PARTS = {
    CONTINUED: ("role", _ASSISTANT),
    START: ("role", _AUTHOR),
    CHANNEL: ("channel", _CHANNEL),
    CONSTRAIN: ("content_type", _CONSTRAINED_TYPE),
}


def _read_tail(text: str, position: int, parts: dict[str, str]) -> int:
    while True:
        if match := _RECIPIENT.match(text, position):
            parts["recipient"] = match[1]
        elif match := _CONTENT_TYPE.match(text, position):
            parts["content_type"] = match[1]
        else:
            return position
        position = match.end()


def may_be_header(text: str) -> bool:
    """Whether text without a special token before it may still become a header.

    >>> may_be_header("assi"), may_be_header(" to=functions.f"), may_be_header("Hello")
    (True, True, False)
    """
    text = text.lstrip()
    return any(text.startswith(word) or word.startswith(text) for word in (ASSISTANT, "to="))


def is_unfinished(rest: str) -> bool:
    """Whether `rest` is the start of a word of a header.

    >>> is_unfinished("comment"), is_unfinished("comma"), is_unfinished("Hello")
    (True, False, False)
    """
    return _UNFINISHED.match(rest) is not None
