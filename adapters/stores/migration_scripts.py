"""The numbered scripts that bring a database to the schema of this version."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import count


def migrations_of(database: str) -> Mapping[int, str]:
    """Return the scripts in the folder of a kind of database, by number from 1 on."""
    return read_scripts(files(__package__) / "migrations" / database)


def read_scripts(folder: Traversable) -> Mapping[int, str]:
    """Return a folder's scripts: `0001_store.sql` is number 1.

    Raises: ValueError if the numbers are not 1, 2, 3…: of two scripts with one number, a database
    would get only one.
    """
    scripts = sorted(
        (int(script.name.partition("_")[0]), script.name, script)
        for script in folder.iterdir()
        if script.name.endswith(".sql")
    )
    for expected, (number, name, _) in zip(count(1), scripts, strict=False):
        if number != expected:
            raise ValueError(f"The migration {name} must have the number {expected:04}.")
    return {number: script.read_text("utf-8") for number, _, script in scripts}
