"""Show in each event how many tokens its response has used so far, if the request asks for it
(`stream_options.continuous_usage_stats`)."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET
from msgspec.structs import force_setattr, replace

from antiphon.application.ports import ModelTurn
from antiphon.domain.deltas import Delta, TurnEnd
from antiphon.domain.events import Event
from antiphon.domain.responses.usage import total
from antiphon.domain.sequencer import Sequencer


def show_usage(
    events: Sequence[Event], sequencer: Sequencer, turn: ModelTurn, deltas: Sequence[Delta]
) -> None:
    """Show the tokens of all turns in the events of a turn's deltas.

    Events show nothing while the turn's tokens are only estimated: the count would be wrong, and
    could be more than that of the end. Nothing else may have seen the events yet.
    """
    has_ended = bool(deltas) and isinstance(deltas[-1], TurnEnd)
    current = () if has_ended else turn.tokens_used()
    if current and not turn.counts_tokens:
        return
    usage = total([*sequencer.turns, *sequencer.agent_turns, *current])
    for event in events:
        force_setattr(event, "usage", usage)


def without_usage(events: Sequence[Event]) -> Sequence[Event]:
    """Return the events as a request gets them that does not ask for their usage."""
    return [each if each.usage is UNSET else replace(each, usage=UNSET) for each in events]
