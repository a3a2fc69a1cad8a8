"""Guards: what one is asked about, and its verdicts.

A guard is asked about texts at four places: what a request sends (`input`), a call that the model
writes (`tool_call`), the result of a call (`tool_result`), and what the model writes (`output`).
"""

from __future__ import annotations

from typing import Literal, get_args

from msgspec import Struct

GuardPlace = Literal["input", "tool_call", "tool_result", "output"]
PLACES: tuple[GuardPlace, ...] = get_args(GuardPlace)

OVERLAP_CHARS = 256
"""What two pieces of a text have in common: no word or sentence is lost between them."""

MAX_MESSAGE_CHARS = 4096
"""The longest message of a refusal: a longer one is cut."""


class Pass(Struct, frozen=True):
    """The text may pass as it is."""


class Replace(Struct, frozen=True):
    """The text may pass as this `text`, which takes the place of the whole text of the question.

    Of that, what has passed before stays: only the rest is replaced.
    """

    text: str


class Refuse(Struct, frozen=True):
    """The text may not pass. `message` says why, to the client or, of a tool's call, the model."""

    message: str = "This was refused by a guard of the server."


class Stop(Struct, frozen=True):
    """The text may not pass, and the response ends here, as `incomplete` with `content_filter`.

    `reason` is for the operator's log.
    """

    reason: str = ""


Verdict = Pass | Replace | Refuse | Stop

VerdictName = Literal["pass", "replace", "refuse", "stop", "failed"]
"""The verdicts by the names that metrics and records have. `failed`: the guard gave none."""

NAMES: dict[type, VerdictName] = {
    Pass: "pass",
    Replace: "replace",
    Refuse: "refuse",
    Stop: "stop",
}


class GuardQuestion(Struct, frozen=True, kw_only=True):
    """A text that a guard is asked about.

    `text` is all that belongs together, up to a limit: for the output, what the model has written
    in this response, its reasoning and its messages. What comes before `start` has passed already;
    `new` is the rest. `tool` names the tool of a call or of its result. `key_id` is "" if no key
    was used, or if another server has started the response.
    """

    place: GuardPlace
    text: str
    start: int = 0
    tool: str = ""
    model: str = ""
    tenant: str = ""
    key_id: str = ""
    response_id: str = ""

    @property
    def new(self) -> str:
        """The part of the text that has not passed yet.

        >>> GuardQuestion(place="output", text="I like bananas", start=7).new
        'bananas'
        """
        return self.text[self.start :]

    def pieces(self, max_chars: int) -> list[str]:
        """Return the new part of the text, and some of what is before it, in pieces that overlap.

        >>> [len(piece) for piece in GuardQuestion(place="input", text="x" * 1000).pieces(600)]
        [600, 600, 312]
        """
        first = max(0, self.start - OVERLAP_CHARS)
        step = max(1, max_chars - OVERLAP_CHARS)
        starts = range(first, max(first + 1, len(self.text) - OVERLAP_CHARS), step)
        return [self.text[start : start + max_chars] for start in starts]


class ModerationScores(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="moderation_result"
):
    """The result of a moderation model for a text: by category, whether it is flagged, and how
    strongly."""

    model: str
    flagged: bool
    categories: dict[str, bool]
    category_scores: dict[str, float]
    category_applied_input_types: dict[str, tuple[str, ...]]


class ModerationError(Struct, frozen=True, kw_only=True, tag_field="type", tag="error"):
    """There is no result."""

    code: str
    message: str


class ResponseModeration(Struct, frozen=True, kw_only=True):
    """The moderation of what a request sent, and of the response's output, if it was asked for."""

    input: ModerationScores | ModerationError
    output: ModerationScores | ModerationError


def rest_of(replacement: str, text: str, start: int) -> str:
    """Return what follows the first `start` characters of a text if the text becomes this one.

    Those have been shown. If they would be others, all from the first difference on follows.

    >>> rest_of("I like ***", "I like banana", 7)
    '***'
    >>> rest_of("I like ***", "I like banana", 10)
    '***'
    """
    if replacement.startswith(text[:start]):
        return replacement[start:]
    same = next(
        index
        for index in range(start)
        if index >= len(replacement) or replacement[index] != text[index]
    )
    return replacement[same:]
