"""The items that a door makes of a conversation, each with the place where the client sent it."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from antiphon.domain.bounds import MAX_MEMBERS
from antiphon.domain.errors import RequestError
from antiphon.domain.items import Item
from antiphon.entrypoints.http.doors.places import SentPlace

_encode = msgspec.json.Encoder().encode


class SentItems:
    """The JSON of items, and the place of each."""

    def __init__(self) -> None:
        self.raw: list[Raw] = []
        self.places: list[SentPlace] = []

    def __len__(self) -> int:
        return len(self.raw)

    def add(self, item: Item, place: SentPlace) -> None:
        self.raw.append(Raw(_encode(item)))
        self.places.append(place)

    def check_length(self) -> None:
        """Raises: RequestError if they are more than a request may have."""
        if len(self.raw) > MAX_MEMBERS:
            raise RequestError(
                f"'messages' stand for {len(self.raw)} items; {MAX_MEMBERS} are allowed.",
                param="messages",
                code="array_above_max_length",
            )
