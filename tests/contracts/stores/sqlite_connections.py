"""The database of a SQLite store, as another program sees it."""

from __future__ import annotations

from pathlib import Path

import apsw

SECRET = "the-owl-flies-at-midnight"
"""A text that a deleted response must not leave in any file."""


def connect(path: Path) -> apsw.Connection:
    """Return the connection of another program."""
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(5_000)
    return connection
