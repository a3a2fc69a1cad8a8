"""Fill the disk of a SQLite file, as a process that is killed then: `python full_disk.py FILE`."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import apsw

from antiphon.adapters.stores.sqlite.file import SqliteFile
from antiphon.domain.errors import StoreError


async def open_and_fill(path: Path) -> None:
    file = SqliteFile(path)
    await file.start()
    print("it is open")

    def fill(db: apsw.Connection) -> None:
        db.execute("CREATE TABLE IF NOT EXISTS texts (text)")
        db.execute("INSERT INTO texts VALUES (?)", ("a" * 400_000,))

    try:
        while True:
            await file.write(fill)
    except StoreError:
        pass
    try:
        with path.with_name("filler").open("ab", buffering=0) as rest:
            while True:
                rest.write(b"a")
    except OSError:
        print("it is full", flush=True)
    os._exit(0)  # nothing is written back


if __name__ == "__main__":
    asyncio.run(open_and_fill(Path(sys.argv[1])))
