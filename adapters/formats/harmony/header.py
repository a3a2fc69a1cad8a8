"""Read a message's header: who speaks, in which channel, to whom, in what type of content.

A header is what stands between `<|start|>` and `<|message|>`. It comes here as pieces of text, each
with the special token that introduces it. Well-formed headers are

    assistant<|channel|>analysis
    assistant<|channel|>commentary to=functions.NAME <|constrain|>json
    assistant to=functions.NAME<|channel|>commentary json
    functions.NAME to=assistant<|channel|>commentary

Models write many others. Every part is found wherever it stands, and whatever is no part of a
header is handed back as `rest`: it is text, and text is never lost.
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
"""Introduces the piece that no special token introduces: the turn's first, after the prompt's
`<|start|>assistant`, and one after a message's end."""

Piece = tuple[int, str]

_AUTHOR = re.compile(r"\s*(?!to=)([^\s=<{]+)")
_ASSISTANT = re.compile(r"\s*(assistant)(?=\s|to=|$)")
_CHANNEL = re.compile(r"\s*(analysis|commentary|final)(?=to=|json|code|\W|$)")
# The letters of a tool's name, so that text glued to it stays text.
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
    """`rest` is text that is no part of a header."""

    role: str = ASSISTANT
    channel: str | None = None
    recipient: str | None = None
    content_type: str | None = None
    is_constrained: bool = False
    rest: str = ""


def read_header(pieces: Sequence[Piece]) -> Header:
    """Return the parts of a header; the last of a part that comes twice holds.

    >>> header = read_header([(START, "assistant"), (CHANNEL, "analysis to=functions.f code")])
    >>> header.channel, header.recipient, header.content_type, header.rest
    ('analysis', 'functions.f', 'code', '')
    """
    found: dict[str, str] = {}
    is_constrained = False
    rest = ""
    for introducer, text in pieces:
        position = 0
        part, pattern = _HEADS.get(introducer, ("role", _ASSISTANT))
        if head := pattern.match(text):
            found[part] = head[1]
            position = head.end()
            is_constrained = is_constrained or introducer == CONSTRAIN
        position = _read_tail(text, position, found)
        rest += text[position:]
    if "recipient" not in found and (late := _LATE_RECIPIENT.search(rest)):
        found["recipient"] = late[1]
        rest = rest[: late.start()] + rest[late.end() :]
    return Header(**found, is_constrained=is_constrained, rest=rest if rest.strip() else "")


_HEADS = {
    CONTINUED: ("role", _ASSISTANT),
    START: ("role", _AUTHOR),
    CHANNEL: ("channel", _CHANNEL),
    CONSTRAIN: ("content_type", _CONSTRAINED_TYPE),
}


def _read_tail(text: str, position: int, found: dict[str, str]) -> int:
    while True:
        if match := _RECIPIENT.match(text, position):
            found["recipient"] = match[1]
        elif match := _CONTENT_TYPE.match(text, position):
            found["content_type"] = match[1]
        else:
            return position
        position = match.end()


def may_be_header(text: str) -> bool:
    """Whether text that no special token introduces may yet turn out to be a header.

    >>> may_be_header("assi"), may_be_header(" to=functions.f"), may_be_header("Hello")
    (True, True, False)
    """
    text = text.lstrip()
    return any(text.startswith(word) or word.startswith(text) for word in (ASSISTANT, "to="))


def is_unfinished(rest: str) -> bool:
    """Whether `rest` is a word of a header that was cut short.

    >>> is_unfinished("comment"), is_unfinished("comma"), is_unfinished("Hello")
    (True, False, False)
    """
    return _UNFINISHED.match(rest) is not None
