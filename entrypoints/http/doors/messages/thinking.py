"""The reasoning that a request asks for by what it says of thinking."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from antiphon.domain.requests.request import Effort, ReasoningParams
from antiphon.entrypoints.http.doors.messages.request import ClearThinking, CountedMessages

EFFORTS: Sequence[str] = get_args(Effort)
"""From the least to the most."""

BUDGETS = ((4_096, "low"), (16_384, "medium"))
"""Tokens, and the effort that a smaller budget asks for. No engine bounds thoughts by tokens."""
LARGE_BUDGET = "high"


def is_off(sent: CountedMessages) -> bool:
    return sent.thinking is not None and sent.thinking.type == "disabled"


def reasoning_of(sent: CountedMessages, known: Sequence[str]) -> ReasoningParams | None:
    """Return the reasoning that a request asks for, of a model that knows these efforts."""
    effort = _effort_of(sent)
    fitting = None if effort is None else nearest(effort, known)
    context = "all_turns" if keeps_thoughts(sent) else None
    if fitting is None and context is None:
        return None
    return ReasoningParams(effort=fitting, context=context)  # type: ignore[arg-type]


def ignored_by(sent: CountedMessages, known: Sequence[str]) -> str | None:
    """Return the field that asks for an effort and has no effect, because the model knows none."""
    effort = _effort_of(sent)
    if effort is None or nearest(effort, known) is not None:
        return None
    is_effort = sent.output_config is not None and sent.output_config.effort == effort
    return "output_config.effort" if is_effort else "thinking"


def nearest(effort: str, known: Sequence[str]) -> str | None:
    """Return the effort that is nearest to this one, the greater of two; None if there is none.

    Clients of this API cannot ask which there are. Without thoughts is no effort near any other.

    >>> nearest("max", ["low", "medium"]), nearest("none", ["low"]), nearest("low", ["none"])
    ('medium', None, None)
    """
    if effort in known:
        return effort
    place = EFFORTS.index(effort)
    others = [each for each in known if each in EFFORTS and "none" not in (each, effort)]
    return min(
        others,
        key=lambda each: (abs(EFFORTS.index(each) - place), -EFFORTS.index(each)),
        default=None,
    )


def kept_turns(sent: CountedMessages) -> int | None:
    """Return how many messages keep their thoughts, None if all do."""
    for edit in _edits(sent):
        if edit.keep is not None and edit.keep != "all" and edit.keep.type != "all":
            return edit.keep.value or 1
    return None


def keeps_thoughts(sent: CountedMessages) -> bool:
    """Return whether the model is shown more thoughts than those of the last turn."""
    return any(edit.keep is not None for edit in _edits(sent)) and kept_turns(sent) != 1


def _edits(sent: CountedMessages) -> Sequence[ClearThinking]:
    edits = (sent.context_management.edits or ()) if sent.context_management else ()
    return [edit for edit in edits if isinstance(edit, ClearThinking)]


def _effort_of(sent: CountedMessages) -> str | None:
    thinking = sent.thinking
    if is_off(sent):
        return "none"
    if sent.output_config is not None and sent.output_config.effort is not None:
        return sent.output_config.effort
    if thinking is None or thinking.budget_tokens is None:
        return None
    budget = thinking.budget_tokens
    return next((effort for most, effort in BUDGETS if budget < most), LARGE_BUDGET)
