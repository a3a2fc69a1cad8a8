"""Read and check the items that a client sends, and resolve references in them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from msgspec import Raw

from antiphon.application.input.submission import Remembered
from antiphon.application.ports import NewId, ResponseStore, StoredItem
from antiphon.application.support.threads import ITEM_BYTES, run_in_thread
from antiphon.domain import items as i
from antiphon.domain.errors import NotFound, RequestError
from antiphon.domain.history import conversation as c
from antiphon.domain.history.include_filter import may_have_hidden_fields, restore_hidden_fields
from antiphon.domain.requests.decoding import decode_item

RESOLVED_WITHOUT_PAUSE = 100


class ReadItems:
    """Reads input items; an error names the item's place, such as `input[2].role`."""

    def __init__(self, store: ResponseStore) -> None:
        self._store = store

    async def __call__(
        self,
        items: str | Sequence[Raw] | None,
        *,
        tenant: str,
        path: str = "input",
        remembered: Remembered | None = None,
    ) -> list[c.Entry]:
        """Return the items; `remembered` or stored items replace references to them.

        Raises: RequestError.
        """
        work = len(items) if isinstance(items, tuple | list) else 0
        entries, places = await run_in_thread(
            max(_size(items), work * ITEM_BYTES), _read_entries, items, path
        )
        known_items = _by_id(remembered or {}) if places else {}
        for count, place in enumerate(places, 1):
            entries[place] = await self._resolve(entries[place], tenant, path, known_items)
            if count % RESOLVED_WITHOUT_PAUSE == 0:
                await asyncio.sleep(0)  # a store in memory answers at once
        return entries

    async def _resolve(
        self, entry: c.Entry, tenant: str, path: str, known_items: Mapping[str, StoredItem]
    ) -> c.Entry:
        if may_have_hidden_fields(entry.item) and entry.item.id:
            return await self._restore(entry, entry.item.id, tenant, path)
        item_id = str(entry.item.id)
        try:
            stored = known_items.get(item_id) or await self._store.get_item(tenant, item_id)
        except NotFound:
            if getattr(entry.item, "status", None) is not None:
                return entry  # another server's, or never stored: its image is lost
            raise RequestError(f"Item with id {item_id[:100]!r} not found.", param=path) from None
        item = decode_item(stored.raw, path)
        return c.Entry(item=item, raw=stored.raw, is_reference=True)

    async def _restore(self, entry: c.Entry, item_id: str, tenant: str, path: str) -> c.Entry:
        try:
            stored = await self._store.get_item(tenant, item_id)
        except NotFound:
            return entry  # another server's, or never stored: use it as it is
        raw = restore_hidden_fields(entry.raw, stored.raw)
        return c.Entry(item=decode_item(raw, path), raw=raw)


def _read_entries(items: str | Sequence[Raw] | None, path: str) -> tuple[list[c.Entry], list[int]]:
    """Return the items, and the places of those that only the store knows in full."""
    entries = c.entries(items, path)
    c.check_input(entries, path)
    places = [place for place, entry in enumerate(entries) if _needs_store(entry.item)]
    return entries, places


def _needs_store(item: i.AnyItem) -> bool:
    if isinstance(item, i.ItemReference):
        return True
    return bool(item.id and (may_have_hidden_fields(item) or _names_an_image(item)))


def _names_an_image(item: i.AnyItem) -> bool:
    """Whether an item is the name of an image: images are large, so clients send the id alone."""
    if not isinstance(item, i.ImageGenerationCall):
        return False
    return not item.result and item.status in (None, "completed")


def _by_id(remembered: Remembered) -> Mapping[str, StoredItem]:
    items = [item for each in remembered.values() for item in each]
    return {item.id: item for item in reversed(items)}  # the first of an id counts


def _size(items: str | Sequence[Raw] | None) -> int:
    # A string is one item, however long.
    if items is None or isinstance(items, str):
        return 0
    return sum(len(memoryview(raw)) for raw in items)


def to_stored_item(entry: c.Entry) -> StoredItem:
    """Return the stored form of an item that this server created or stored before."""
    return StoredItem(id=entry.item.id or "", raw=entry.raw)


def to_new_stored_items(entries: Sequence[c.Entry], new_id: NewId) -> list[StoredItem]:
    """Return the stored form of new items, each with an id."""
    resources = [c.to_resource(entry, new_id) for entry in entries]
    return [StoredItem(id=item_id, raw=raw) for item_id, raw in resources]
