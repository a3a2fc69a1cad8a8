"""Find where a template's prompt can be cut so that the model's own tokens replace a turn.

A template renders whole conversations. To repeat a turn as the model wrote it, a message with only
a placeholder stands for that turn. The text around the placeholder is then cut away: back to where
the prompt of that turn ended, and forward through the marker that ends a turn. Templates do not say
where these points are, so this module renders samples to find them. If a template writes no such
marker, or something unexpected, it is not cut, and the turn is rendered anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from os.path import commonprefix
from typing import Any

from msgspec import Struct

from antiphon.adapters.formats.chat_template.marker_cutter import pattern_of
from antiphon.domain.errors import RequestError
from antiphon.domain.json import Json

Render = Callable[[Sequence[Json]], str]
"""Renders messages as text. Raises: RequestError where the template refuses them."""

MakeMessage = Callable[[str, str | None], Json]
"""Makes a placeholder's message; the second argument is the id of a call, None for no call."""

CALL_ID, OTHER_CALL_ID = "c0ffee000", "c0ffee001"


class TurnShape(Struct, frozen=True):
    """The facts that decide how a template writes a turn: its calls, and what precedes it."""

    has_calls: bool
    after_tool: bool


class SplicePoint(Struct, frozen=True):
    """How the text before a placeholder differs from the prompt of its turn.

    `surplus` is what the template writes before the placeholder but the prompt did not have: the
    model wrote it. `missing` is what the prompt ended with but the template leaves out of a
    history.
    """

    surplus: str
    missing: str


SplicePoints = Mapping[TurnShape, SplicePoint]
"""Where to cut the template's text. Turns with calls, or without, are missing if they cannot be cut
both at the beginning and after a tool."""


class SplicedTurn(Struct, frozen=True):
    """A turn whose tokens replace `placeholder`."""

    placeholder: str
    shape: TurnShape
    token_ids: Sequence[int]


def placeholder_message(
    placeholder: str, *, no_content: str | None, arguments: Any, call_id: str | None
) -> Json:
    """Return the message that stands for a turn, as a call if there is a `call_id`."""
    if call_id is None:
        return {"role": "assistant", "content": placeholder}
    function = {"name": placeholder, "arguments": arguments}
    call = {"id": call_id, "type": "function", "function": function}
    return {"role": "assistant", "content": no_content, "tool_calls": [call]}


def find_splice_points(
    render: Render, make_message: MakeMessage, ends: Iterable[str]
) -> SplicePoints:
    """Render samples and return where turns can be cut; `ends` are the markers that end a turn."""
    splice_points: dict[TurnShape, SplicePoint] = {}
    for has_calls in (False, True):
        shapes = [TurnShape(has_calls, after_tool) for after_tool in (False, True)]
        points = {shape: _find_splice_point(render, make_message, ends, shape) for shape in shapes}
        if all(points.values()):
            splice_points |= {shape: point for shape, point in points.items() if point is not None}
    return splice_points


def _find_splice_point(
    render: Render, make_message: MakeMessage, ends: Iterable[str], shape: TurnShape
) -> SplicePoint | None:
    placeholder, next_text = "c0ffee-mark", "c0ffee-came"
    result = {"role": "tool", "name": "f", "tool_call_id": CALL_ID, "content": next_text}
    before: list[Json] = [{"role": "user", "content": "c0ffee-asked"}]
    if shape.after_tool:
        before += [make_message("f", CALL_ID), result | {"content": "c0ffee-before"}]
    after = result if shape.has_calls else {"role": "user", "content": next_text}
    try:
        prompt = render(before)
        turn = make_message(placeholder, CALL_ID if shape.has_calls else None)
        text = render([*before, turn, after])
        if shape.has_calls:
            # A placeholder has one call. A template that looks up the call of a result in the
            # conversation would not find the turn's other calls.
            other = render([*before, turn, after | {"tool_call_id": OTHER_CALL_ID}])
            if other.replace(OTHER_CALL_ID, CALL_ID) != text:
                return None
    except RequestError:
        return None
    head, *tails = text.split(placeholder)
    if len(tails) != 1 or next_text not in tails[0]:
        return None
    if _find_end(tails[0].split(next_text)[0], pattern_of(ends), 0) is None:
        return None
    shared = commonprefix([head, prompt])  # noqa: RUF071 - of characters, as is meant
    return SplicePoint(head.removeprefix(shared), prompt.removeprefix(shared))


def splice_turns(
    text: str, turns: Iterable[SplicedTurn], splice_points: SplicePoints, ends: Iterable[str]
) -> list[str | Sequence[int]] | None:
    """Return the prompt as texts and tokens, or None if the template wrote something unexpected."""
    pieces: list[str | Sequence[int]] = []
    start = 0
    end_marker = pattern_of(ends)
    for turn in turns:
        point, position = splice_points[turn.shape], text.find(turn.placeholder, start)
        head = text[start : max(position, start)]
        end = _find_end(text, end_marker, position)
        if position < 0 or end is None or not head.endswith(point.surplus):
            return None
        pieces += [head.removesuffix(point.surplus) + point.missing, turn.token_ids]
        start = end
    return [*pieces, text[start:]]


def _find_end(text: str, end_marker: re.Pattern[str], start: int) -> int | None:
    """Return the position after the first marker that ends a turn."""
    match = end_marker.search(text, start)
    return match and match.end()
