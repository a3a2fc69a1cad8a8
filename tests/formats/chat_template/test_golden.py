"""What models of each family really write, and the deltas of it.

A case is a JSON file: `family`, the `text` written, `reasons_first` if the prompt opened the
reasoning, and `deltas` as [kind, field, …]. With --update-golden the deltas are written anew: read
the diff.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from antiphon.adapters.formats.chat_template.families import FAMILIES
from antiphon.domain import deltas as d

GOLDEN = Path(__file__).parents[2] / "golden" / "chat_template"
CASES = sorted(GOLDEN.glob("*.json"))


def told(deltas: list[d.Delta]) -> list[list[Any]]:
    found = []
    for delta in deltas:
        fields = list(msgspec.structs.astuple(delta))
        while fields and fields[-1] in (None, ()):
            fields.pop()
        found.append([type(delta).__name__, *fields])
    return found


@pytest.mark.parametrize("file", CASES, ids=lambda file: file.stem)
def test_a_turn_is_read_as_recorded(
    read: Callable[..., list[d.Delta]], file: Path, update_golden: bool
) -> None:
    case = json.loads(file.read_text())
    reasons_first = case.get("reasons_first", False)
    deltas = told(read(case["family"], case["text"], reasons_first=reasons_first))
    if update_golden:
        case["deltas"] = deltas
        file.write_text(json.dumps(case, ensure_ascii=False, indent=2) + "\n")
    assert deltas == case["deltas"]


def test_every_family_has_a_golden() -> None:
    assert {json.loads(file.read_text())["family"] for file in CASES} == set(FAMILIES)
