"""Deltas that add text to one place become one, and lose nothing."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from antiphon.domain import events as e
from antiphon.domain.builders.copied import join_deltas
from antiphon.domain.events import Event

PARTS: list[Any] = [
    e.TextDelta(item_id="msg_1", output_index=0, content_index=0, delta=""),
    e.TextDelta(item_id="msg_1", output_index=0, content_index=1, delta=""),
    e.TextDelta(item_id="msg_2", output_index=0, content_index=0, delta=""),
    e.RefusalDelta(item_id="msg_1", output_index=0, content_index=0, delta=""),
    e.ArgumentsDelta(item_id="fc_1", output_index=0, delta=""),
]
OTHER = e.ArgumentsDone(item_id="fc_1", output_index=0, name="f", arguments="{}")

deltas = st.builds(lambda part, text: replace(part, delta=text), st.sampled_from(PARTS), st.text())


def place_of(event: Any) -> Event:
    place: Event = replace(event, delta="") if hasattr(event, "delta") else event
    return place


@given(st.lists(st.one_of(deltas, st.just(OTHER))))
def test_joined_deltas_say_the_same_in_the_same_order(events: list[Any]) -> None:
    joined: list[Any] = join_deltas(events)
    for part in PARTS:
        of_part = [[each for each in of if place_of(each) == part] for of in (events, joined)]
        before, after = ("".join(each.delta for each in of) for of in of_part)
        assert before == after
    assert joined.count(OTHER) == events.count(OTHER)
    for one, next_one in pairwise(joined):
        assert place_of(one) != place_of(next_one) or one == OTHER
    assert join_deltas(joined) == joined
