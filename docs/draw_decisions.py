"""Draw docs/decisions/index.md from the decision records: `make docs`.

A new record needs its number in THEMES. Its title and its state are read from the record itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / "decisions"
PAGE = FOLDER / "index.md"
INTRO = """# Decisions

Drawn from the records by `make docs`; a test checks that it is up to date.

Each record says what we decided, which options we refused and why, and when to revisit the
decision. If you are new to the code, start with 1 to 6.
"""
THEMES: Mapping[str, tuple[int, ...]] = {
    "Architecture": (1, 5, 6, 13, 27, 68, 91, 135, 144, 145),
    "Events, streams and the response": (2, 3, 4, 7, 22, 24, 33, 56, 153),
    "Models, prompts and formats": (
        *(9, 10, 11, 15, 19, 21, 25, 53, 54, 65, 69, 70, 84, 85, 86, 132, 142, 143, 149),
    ),
    "Engines and models": (87, 88, 89, 90, 92, 94, 137, 141),
    "Input and history": (12, 14, 16, 20, 23, 155, 159),
    "Stores, and runs on several servers": (
        8,
        28,
        29,
        30,
        31,
        32,
        34,
        35,
        39,
        60,
        109,
        110,
        111,
        115,
        128,
        129,
        151,
    ),
    "Keys, tenants and webhooks": (36, 37, 38, 73, 74, 75, 76, 77, 80, 81, 122, 124, 127, 130, 131),
    "Tools": (17, 18, 26, 40, 55, 57, 58, 78, 146, 79, 107, 148, 152, 154),
    "Code and commands": (41, 42, 47, 48, 49, 113, 120, 121, 126, 156),
    "Web search, file search and citations": (43, 44, 45, 46, 50, 51, 52, 112),
    "Network and transport": (71, 72, 83, 108, 118, 136, 138),
    "Operation": (95, 97, 98, 99, 100, 102, 103, 104, 105, 106, 114, 117, 119, 158, 160),
    "How the project is developed": (59, 66, 67, 82),
}

_TITLE = re.compile(r"^# (?P<number>\d+)\. (?P<title>.+)$", re.MULTILINE)
_SUPERSEDED = re.compile(r"^Superseded by \[(?P<number>\d+)\]", re.MULTILINE)


class Record(NamedTuple):
    """One decision. `superseded_by` is None while it is in force."""

    number: int
    title: str
    file: str
    superseded_by: int | None


def records() -> Mapping[int, Record]:
    """Return the records by their numbers."""
    read = map(_record, sorted(FOLDER.glob("[0-9]*.md")))
    return {record.number: record for record in read}


def page() -> str:
    """Return the whole page. Raises: ValueError for a record that has no theme or several."""
    by_number = records()
    themed = sorted(number for numbers in THEMES.values() for number in numbers)
    if themed != sorted(by_number):
        wrong = set(themed) ^ by_number.keys() or {n for n in themed if themed.count(n) > 1}
        raise ValueError(f"THEMES must have each record once; see {sorted(wrong)}")
    parts = [INTRO]
    for theme, numbers in THEMES.items():
        rows = "\n".join(_table(by_number, numbers))
        parts.append(f"## {theme}\n\n{rows}\n")
    return "\n".join(parts)


def _record(file: Path) -> Record:
    text = file.read_text(encoding="utf-8")
    heading, successor = _TITLE.search(text), _SUPERSEDED.search(text)
    if heading is None:
        raise ValueError(f"{file.name} must begin with its number and title: # 1. …")
    return Record(
        number=int(heading["number"]),
        title=heading["title"],
        file=file.name,
        superseded_by=int(successor["number"]) if successor else None,
    )


def _table(by_number: Mapping[int, Record], numbers: tuple[int, ...]) -> Iterator[str]:
    yield "| | decision | state |"
    yield "|---|---|---|"
    for record in (by_number[number] for number in sorted(numbers)):
        state = "in force"
        if record.superseded_by is not None:
            successor = by_number[record.superseded_by]
            state = f"superseded by [{successor.number}]({successor.file})"
        yield f"| {record.number} | [{record.title}]({record.file}) | {state} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
