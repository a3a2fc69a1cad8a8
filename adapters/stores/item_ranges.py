"""The items of a context as ranges: each is a part of an index of the table of items.

A context is a list of ranges, oldest first: of each response, its conversation's items and its own.
So a page of a long history costs what it has, and a step for each response.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from antiphon.application.ports import StorePageQuery
from antiphon.domain.errors import NotInList

INPUT, OUTPUT = 0, 1
"""Kinds of items. In SQLite, kind 2 is an item that belongs to a conversation alone."""

Place = tuple[int, int]
"""An item's kind and position in its response, or 0 and its place in its conversation."""

START: Place = (-1, -1)
AFTER_INPUT: Place = (OUTPUT, -1)
AFTER_OUTPUT: Place = (OUTPUT + 1, -1)
AFTER_ALL: Place = (INPUT, 2**62)
"""After all items of a conversation, which has no output of its own."""

Owner = Any
"""What the table of items calls a response or a conversation: its id or its number."""


class ItemRange(Struct, frozen=True):
    """The items of `owner` between two places, without these."""

    owner: Owner
    is_conversation: bool
    after: Place
    before: Place

    @property
    def bounds(self) -> tuple[int, ...]:
        """`after` and `before` as a statement has them: a conversation's items have no kind."""
        first = 1 if self.is_conversation else 0
        return (*self.after[first:], *self.before[first:])


def ranges_of_chain(chain: Iterable[Sequence[Any]], *, with_output: bool) -> list[ItemRange]:
    """Return the ranges of a response's context, oldest first.

    `chain` has a row for the response and each that it continues, newest first: the owner, its
    conversation, and the place before which that was its context. Without `with_output`, the
    response's own output is left out.
    """
    ranges: list[ItemRange] = []
    before = AFTER_OUTPUT if with_output else AFTER_INPUT
    for response, conversation, given in chain:
        ranges.append(ItemRange(response, False, START, before))
        if conversation is not None and given is not None:
            ranges.append(ItemRange(conversation, True, START, (INPUT, given)))
        before = AFTER_OUTPUT
    return ranges[::-1]


def range_of_conversation(conversation: Owner) -> ItemRange:
    return ItemRange(conversation, True, START, AFTER_ALL)


def owners_of(ranges: Sequence[ItemRange]) -> tuple[list[Owner], list[Owner]]:
    """Return the responses, and the conversations."""
    responses = [each.owner for each in ranges if not each.is_conversation]
    return responses, [each.owner for each in ranges if each.is_conversation]


class ItemRow(Struct, frozen=True):
    """Where an item is: in a response, in a conversation, or in both."""

    response: Owner | None
    kind: int | None
    position: int | None
    conversation: Owner | None
    place: int | None


def is_full(found: Sequence[Sequence[Any]], query: StorePageQuery) -> bool:
    """Return whether a page of these rows, (item id, body), has what it may have."""
    if len(found) == query.limit or query.max_bytes is None:
        return len(found) == query.limit
    return sum(len(body) for _, body in found[:-1]) > query.max_bytes


def remaining_ranges(
    ranges: Sequence[ItemRange], *, is_descending: bool, after: str | None, rows: Iterable[ItemRow]
) -> list[ItemRange]:
    """Return what is to be read after the item with the id `after`, in the order of reading.

    `rows` are the places of items with this id, of the owners at least. Of those that the ranges
    have, the one that comes first in the order of reading counts. Raises: NotInList.
    """
    if after is None:
        rest = list(ranges)
    else:
        found = list(_find(ranges, rows))
        if not found:
            raise NotInList(after)
        index, place = max(found) if is_descending else min(found)
        if is_descending:
            rest = [*ranges[:index], replace(ranges[index], before=place)]
        else:
            rest = [replace(ranges[index], after=place), *ranges[index + 1 :]]
    return rest[::-1] if is_descending else rest


def _find(ranges: Sequence[ItemRange], rows: Iterable[ItemRow]) -> Iterable[tuple[int, Place]]:
    """Yield the index of the range and the place of each row that is in one."""
    indexes = {(each.is_conversation, each.owner): index for index, each in enumerate(ranges)}
    for row in rows:
        for is_conversation, owner, kind, position in (
            (False, row.response, row.kind, row.position),
            (True, row.conversation, INPUT, row.place),
        ):
            index = indexes.get((is_conversation, owner))
            if index is None or kind is None or position is None:
                continue
            if ranges[index].after < (kind, position) < ranges[index].before:
                yield index, (kind, position)
