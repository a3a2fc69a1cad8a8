"""Ask guards about the result of a tool's call, before a reader or a model sees any of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from antiphon.application.model.guards.ask_guards import ResponseGuards
from antiphon.application.model.guards.texts import texts_in, with_texts
from antiphon.domain import deltas as d
from antiphon.domain.errors import GuardFailed
from antiphon.domain.responses.guards import Refuse, Stop
from antiphon.domain.responses.traces import from_traced, to_traced

NOT_TEXT_OF = {"image_generation": frozenset({"result"})}
"""Fields of results that are no text, by the kind of the call: here, the image."""

Batches = Sequence[Sequence[d.Delta]]


async def check_result(
    guards: ResponseGuards,
    call: d.CallStart,
    refuse: Callable[[str], Sequence[d.Delta]],
    batches: Batches,
) -> Batches:
    """Return the output of a call as it may pass, or what `refuse` returns for the reason.

    A guard that fails refuses it. If one stops it, the response ends after this turn.
    """
    not_text = NOT_TEXT_OF.get(call.kind, frozenset())
    values = [[to_traced(delta) for delta in batch] for batch in batches]
    texts = [text for batch in values for _, each in batch for text in texts_in(each, not_text)]
    if not texts:
        return batches
    try:
        answer = await guards.ask_about_all(texts, "tool_result", tool=call.name)
    except GuardFailed as failure:
        return [refuse(failure.message)]
    if isinstance(answer, Refuse | Stop):
        return [refuse(guards.refusal_of(answer).message)]
    if list(answer) == texts:
        return batches
    others = iter(answer)
    return [
        [from_traced((name, with_texts(each, others, not_text))) for name, each in batch]
        for batch in values
    ]
