"""Traces in the SQLite store: statements, and a function for its writing thread.

The triggers of migrations/sqlite count traces, and delete them with responses.
"""

from __future__ import annotations

import apsw

from antiphon.adapters.stores.sqlite.file import rows_of
from antiphon.adapters.stores.sqlite.runs import GET_LEASED, lease_row
from antiphon.application.ports import Lease

REMOVE = "DELETE FROM traces WHERE response = ?"

ADD = "INSERT INTO traces (response, body) VALUES (?, ?)"

GET = """
SELECT traces.body FROM responses LEFT JOIN traces ON traces.response = responses.number
WHERE tenant = ? AND id = ? AND responses.body IS NOT NULL
"""


def save(lease: Lease, trace: bytes, db: apsw.Connection) -> bool:
    leased = rows_of(db, GET_LEASED, lease_row(lease))
    for (number,) in leased:
        db.execute(REMOVE, (number,))
        db.execute(ADD, (number, trace))
    return bool(leased)
