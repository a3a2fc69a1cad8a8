"""Reads a message's header: its author, channel, recipient and content type.

A header is the text between `<|start|>` and `<|message|>`. It arrives as pieces of text, each with
the special token that introduces it. Well-formed headers are

    assistant<|channel|>analysis
    assistant<|channel|>commentary to=functions.NAME <|constrain|>json
    assistant to=functions.NAME<|channel|>commentary json
    functions.NAME to=assistant<|channel|>commentary

Models write many others. Each part is found anywhere in the header. What is no part of a header is
returned as `rest`, and never lost. If the header's `<|message|>` is there, the rest can only be
words of a damaged header: parts that are repeated, misspelled or glued together are read as what
they can only mean. If it is missing, the rest is text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches

from msgspec import Struct

from antiphon.adapters.formats.harmony.encoding import CHANNEL, CHANNELS, CONSTRAIN, START

ASSISTANT = "assistant"
REFUSAL = "refusal"
CONTENT_TYPES = ("json", "code", "text", REFUSAL)

CONTINUED = 0
"""Stands in for the special token where there is none: in a turn's first piece, which follows the
prompt's `<|start|>assistant`, and after the end of a message."""

Piece = tuple[int, str]

LIKENESS = 0.75
"""How alike (difflib) a word of a header is to the one that it should be."""
LIKENESS_IN_TEXT = 0.85
"""The same for the channel of a header without an end, where it might be a word of the text."""
MAX_WORD_LENGTH = 24

_ASSISTANT = re.compile(r"\s*(?:assistant)*(assistant)(?=to=|[^a-z]|$)")
_WITHOUT_CHANNELS = ("user", "system", "developer")
_TOOL = r"tool|python|(?:functions|browser|container|python)\.[^\s=<{]+?"
_OTHER_ROLES = rf"(?:{'|'.join(_WITHOUT_CHANNELS)}|{_TOOL})(?=\s|to=|$)"
_AUTHOR = re.compile(rf"{_ASSISTANT.pattern}|\s*({_OTHER_ROLES})")
# No text that follows without a space begins with a small letter: "finally" is a word.
_CHANNEL = re.compile(
    rf"\s*(?:{'|'.join(CHANNELS)})*(analysis|commentary|final(?=to=|json|code|[^a-z]|$))"
)
_FIRST_WORD = re.compile(r"\s*([A-Za-z]+)")
# Only the characters of tool names, so that text without a space after it stays text.
_RECIPIENT = re.compile(r"\s*to=\s*([A-Za-z0-9_.-]+)")
_LATE_RECIPIENT = re.compile(r"(?:^|\s)to=(functions\.[A-Za-z0-9_.-]+)")
_STRAY_RECIPIENT = re.compile(
    r"to=\s*([A-Za-z0-9_.-]+)|(?:\bto\b\W?\s*)?(functions\.[A-Za-z0-9_.-]+)"
)
_CONTENT_TYPE = re.compile(rf"\s*({'|'.join(CONTENT_TYPES)})(?=\s*$|\s+to=|\s*[{{\[])")
_CONSTRAINED_TYPE = re.compile(r"\s*([A-Za-z][\w.+/-]*)(?=\s|[{\[]|$)")
_UNFINISHED = re.compile(
    r"\s*(?:"
    + "|".join(
        f"(?:{'|'.join(word[:length] for length in range(1, len(word)))})"
        for word in (ASSISTANT, *CHANNELS, "to=", *CONTENT_TYPES)
    )
    + r")\Z"
)

_PART_OF = {
    ASSISTANT: "role",
    **dict.fromkeys(CHANNELS, "channel"),
    **dict.fromkeys(CONTENT_TYPES, "content_type"),
}
WORDS = tuple(_PART_OF)
"""Each of them can only be one part of a header."""
_WORD = re.compile("|".join(WORDS), re.IGNORECASE)
_WORDS = re.compile(f"(?:{_WORD.pattern})+", re.IGNORECASE)


class Header(Struct, frozen=True, kw_only=True):
    """The parts of a header; `rest` is text that is none of them.

    `is_damaged`: a part was not where, or not spelled as, it should be.
    """

    role: str = ASSISTANT
    channel: str | None = None
    recipient: str | None = None
    content_type: str | None = None
    is_constrained: bool = False
    is_damaged: bool = False
    rest: str = ""


def read_header(pieces: Sequence[Piece], *, is_whole: bool = False) -> Header:
    """Return the parts of a header; if a part occurs twice, the last one wins.

    `is_whole`: what ends a header follows, so all its words are the header's.

    >>> header = read_header([(START, "assistant"), (CHANNEL, "analysis to=functions.f code")])
    >>> header.channel, header.recipient, header.content_type, header.rest
    ('analysis', 'functions.f', 'code', '')
    >>> read_header([(START, "asistant well"), (CHANNEL, "fnal")], is_whole=True).rest
    'well'
    """
    parts: dict[str, str] = {}
    is_constrained = is_damaged = False
    rest = ""
    for introducer, text in pieces:
        position = 0
        kind = START if is_whole and introducer == CONTINUED else introducer
        part, pattern = _FIRST_PARTS.get(kind, ("role", _ASSISTANT))
        if match := pattern.match(text):
            parts[part] = match[match.lastindex or 0]
            position = match.end()
            is_constrained = is_constrained or introducer == CONSTRAIN
            is_damaged = is_damaged or match[0].strip() != parts[part]
        elif introducer == CHANNEL and not is_whole:
            position = _read_misspelled_channel(text, parts)
            is_damaged = is_damaged or position > 0
        position = _read_tail(text, position, parts)
        remainder = text[position:]
        if is_whole and remainder.strip():
            remainder = _read_words(remainder, parts)
            is_damaged = True
        rest += f" {remainder}" if is_whole else remainder
    if "recipient" not in parts and (late := _LATE_RECIPIENT.search(rest)):
        parts["recipient"] = late[1]
        rest = rest[: late.start()] + rest[late.end() :]
    if parts.get("role") in _WITHOUT_CHANNELS and "channel" in parts:
        parts["role"] = ASSISTANT
    rest = (rest.strip() if is_whole else rest) if rest.strip() else ""
    return Header(**parts, is_constrained=is_constrained, is_damaged=is_damaged, rest=rest)


def split_headers(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Split the pieces at each `<|start|>` that begins a header; others are in the middle of one.

    A header that says nothing more than its role goes on with the next, or with the one before.
    """
    headers: list[list[Piece]] = [[]]
    for piece in pieces:
        if piece[0] == START:
            headers.append([])
        headers[-1].append(piece)
    joined = headers[:1]
    for header in headers[1:]:
        if _goes_on(joined[-1], header):
            joined[-1] = [*joined[-1], *header]
        else:
            joined.append(header)
    return joined


def _goes_on(pieces: Sequence[Piece], later_pieces: Sequence[Piece]) -> bool:
    header, later = (read_header(each, is_whole=True) for each in (pieces, later_pieces))
    for each in (header, later):
        if each.channel is None and each.recipient is None and not each.rest:
            return True
    return not _AUTHOR.match(later_pieces[0][1]) and all(
        None in pair or pair[0] == pair[1]
        for pair in ((header.channel, later.channel), (header.recipient, later.recipient))
    )


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


def _read_words(text: str, parts: dict[str, str]) -> str:
    """Read the other words of a whole header; return those that are no part of any."""
    for recipient in _STRAY_RECIPIENT.finditer(text):
        parts["recipient"] = recipient[1] or recipient[2]
    stray: list[str] = []
    for word in _STRAY_RECIPIENT.sub(" ", text).split():
        known = _WORDS.match(word)
        unknown = word[known.end() :] if known else word
        meant = _meant_by(word) or _meant_by(unknown)
        if meant or not unknown:
            if known:
                parts |= {_PART_OF[each]: each for each in map(str.lower, _WORD.findall(known[0]))}
            if meant:
                parts.setdefault(_PART_OF[meant], meant)
        elif word != parts.get("recipient", "").rpartition(".")[2]:
            stray.append(word)
    return " ".join(stray)


def _read_misspelled_channel(text: str, parts: dict[str, str]) -> int:
    word = _FIRST_WORD.match(text)
    if word is None:
        return 0
    meant = _meant_by(word[1], LIKENESS_IN_TEXT)
    if meant not in CHANNELS or word[1].lower().startswith(meant):
        return 0
    parts["channel"] = meant
    return word.end()


def _meant_by(word: str, likeness: float = LIKENESS) -> str | None:
    """Return the role or the channel that a misspelled word can only be.

    >>> [_meant_by(word) for word in ("fnal", "Comment", "asistant", "well")]
    ['final', 'commentary', 'assistant', None]
    """
    if len(word) > MAX_WORD_LENGTH:
        return None
    close = get_close_matches(word.lower(), (ASSISTANT, *CHANNELS), n=1, cutoff=likeness)
    return close[0] if close else None


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
