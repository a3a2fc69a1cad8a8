"""The reference of scripts has every kind of part and every field."""

from __future__ import annotations

from tests.docs.reader import ROOT

from antiphon.adapters.engines.scripted.script import FIELDS, KINDS

PAGE = (ROOT / "docs" / "reference" / "scripts.md").read_text(encoding="utf-8")


def test_every_kind_of_part_has_a_section() -> None:
    sections = {line for line in PAGE.splitlines() if line.startswith("### ")}
    assert sections == {f"### `{kind}`" for kind in KINDS}


def test_every_field_of_a_part_is_explained() -> None:
    assert [field for field in FIELDS if f"`{field}`" not in PAGE] == []
