"""Where a template's text and the model's own tokens meet: found out by trying, as in takes.py.

A template writes whole conversations. To repeat a turn as the model wrote it, a message that is
only a mark stands for it; what the template has written around the mark is cut away up to where the
prompt of that turn ended, and down to the marker that ends a turn. A template that writes no such
marker, or has more to write than is known here, is not cut: the turn is then written anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from os.path import commonprefix
from typing import Any

from msgspec import Struct

from antiphon.domain.errors import RequestError
from antiphon.domain.json import Json

Render = Callable[[Sequence[Json]], str]
"""Messages to text; may be refused with a RequestError."""

CALL_ID = "c0ffee000"


class Place(Struct, frozen=True):
    """What a template looks at when it writes a turn: whether it calls, what stands before it."""

    calls: bool
    after_tool: bool


class SplicePoint(Struct, frozen=True):
    """`lead` is what the template writes before the mark although the model wrote it; `opening` is
    what a prompt ends with although the template does not write it into a history.
    """

    lead: str
    opening: str


SplicePoints = Mapping[Place, SplicePoint]
"""How the template is cut: turns that call, and those that do not, if they can be, everywhere."""


class SplicedTurn(Struct, frozen=True):
    """A turn that `mark` stands for."""

    mark: str
    place: Place
    token_ids: Sequence[int]


def placeholder_message(
    mark: str, *, no_content: str | None, arguments: Any, call_id: str | None
) -> Json:
    """Return the message that stands for a turn; one that calls has a `call_id`."""
    if call_id is None:
        return {"role": "assistant", "content": mark}
    call = {"id": call_id, "type": "function", "function": {"name": mark, "arguments": arguments}}
    return {"role": "assistant", "content": no_content, "tool_calls": [call]}


def splice_points(
    render: Render, turn: Callable[[str, str | None], Json], ends: Iterable[str]
) -> SplicePoints:
    """`turn` makes a message of a mark and the id of a call, None for no call."""
    known: dict[Place, SplicePoint] = {}
    for calls in (False, True):
        places = [Place(calls, after_tool) for after_tool in (False, True)]
        found = {place: _seam(render, turn, ends, place) for place in places}
        if all(found.values()):
            known |= {place: seam for place, seam in found.items() if seam is not None}
    return known


def _seam(
    render: Render, turn: Callable[[str, str | None], Json], ends: Iterable[str], place: Place
) -> SplicePoint | None:
    mark, came = "c0ffee-mark", "c0ffee-came"
    result = {"role": "tool", "name": "f", "tool_call_id": CALL_ID, "content": came}
    before: list[Json] = [{"role": "user", "content": "c0ffee-asked"}]
    if place.after_tool:
        before += [turn("f", CALL_ID), result | {"content": "c0ffee-before"}]
    after = result if place.calls else {"role": "user", "content": came}
    try:
        prompt = render(before)
        text = render([*before, turn(mark, CALL_ID if place.calls else None), after])
    except RequestError:
        return None
    head, *tail = text.split(mark)
    if len(tail) != 1 or came not in tail[0] or _end(tail[0].split(came)[0], ends, 0) is None:
        return None
    shared = commonprefix([head, prompt])  # noqa: RUF071 - of characters, as is meant
    return SplicePoint(head.removeprefix(shared), prompt.removeprefix(shared))


def cut(
    text: str, repeated: Iterable[SplicedTurn], splice_points: SplicePoints, ends: Iterable[str]
) -> list[str | Sequence[int]] | None:
    """Return the prompt as texts and tokens, None where the template has written something else."""
    pieces: list[str | Sequence[int]] = []
    start = 0
    for each in repeated:
        seam, at = splice_points[each.place], text.find(each.mark, start)
        head = text[start : max(at, start)]
        end = _end(text, ends, at)
        if at < 0 or end is None or not head.endswith(seam.lead):
            return None
        pieces += [head.removesuffix(seam.lead) + seam.opening, each.token_ids]
        start = end
    return [*pieces, text[start:]]


def _end(text: str, ends: Iterable[str], start: int) -> int | None:
    """Return where the first marker that ends a turn has ended."""
    found = re.compile("|".join(map(re.escape, ends)) or "(?!)").search(text, start)
    return found and found.end()
