"""The reader's own store."""

from __future__ import annotations

from examples.custom_store import JournalStore


class MyStore(JournalStore):
    pass
