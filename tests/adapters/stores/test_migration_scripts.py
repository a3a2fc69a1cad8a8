"""Each database gets every migration, in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.adapters.stores.migration_scripts import migrations_of, read_scripts


def make(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).write_text(f"-- {name}", encoding="utf-8")
    return folder


@pytest.mark.parametrize("database", ["sqlite", "postgres", "files", "vector_stores"])
def test_our_migrations_are_numbered_without_gaps(database: str) -> None:
    numbers = list(migrations_of(database))
    assert numbers == list(range(1, len(numbers) + 1))


def test_scripts_are_read_by_their_numbers(tmp_path: Path) -> None:
    folder = make(tmp_path, "0002_b.sql", "0001_a.sql", "README.md")
    assert read_scripts(folder) == {1: "-- 0001_a.sql", 2: "-- 0002_b.sql"}


@pytest.mark.parametrize(
    ("names", "wrong"),
    [
        (("0001_a.sql", "0001_b.sql"), "0001_b.sql must have the number 0002"),
        (("0001_a.sql", "0003_c.sql"), "0003_c.sql must have the number 0002"),
        (("0002_b.sql",), "0002_b.sql must have the number 0001"),
    ],
)
def test_two_scripts_with_one_number_and_gaps_are_errors(
    tmp_path: Path, names: tuple[str, ...], wrong: str
) -> None:
    with pytest.raises(ValueError, match=wrong):
        read_scripts(make(tmp_path, *names))
