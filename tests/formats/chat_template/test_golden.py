"""Recorded turns of models of each family, and the deltas that they are read as.

A case is a JSON file: `family`, the `text` written, `reasons_first` if the prompt opened the
reasoning, and `deltas` as [kind, field, …]. --update-golden writes the deltas anew: read the diff.
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


def as_lists(deltas: list[d.Delta]) -> list[list[Any]]:
    lists = []
    for delta in deltas:
        fields = list(msgspec.structs.astuple(delta))
        while fields and fields[-1] in (None, ()):
            fields.pop()
        lists.append([type(delta).__name__, *fields])
    return lists


@pytest.mark.parametrize("file", CASES, ids=lambda file: file.stem)
def test_a_turn_is_read_as_recorded(
    read: Callable[..., list[d.Delta]], file: Path, update_golden: bool
) -> None:
    case = json.loads(file.read_text())
    in_reasoning = case.get("reasons_first", False)
    deltas = as_lists(read(case["family"], case["text"], starts_in_reasoning=in_reasoning))
    if update_golden:
        case["deltas"] = deltas
        file.write_text(json.dumps(case, ensure_ascii=False, indent=2) + "\n")
    assert deltas == case["deltas"]


def test_every_family_has_a_golden() -> None:
    assert {json.loads(file.read_text())["family"] for file in CASES} == set(FAMILIES)
