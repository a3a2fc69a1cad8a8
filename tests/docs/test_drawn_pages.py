"""Pages that `make docs` draws say what their sources say."""

from __future__ import annotations

import pytest
from tests.docs.reader import ROOT
from tests.docs.scripts_of_docs import load

from antiphon.adapters.formats.chat_template.families import FAMILIES
from antiphon.entrypoints.settings import SETTINGS

DRAWINGS = ("draw_settings", "draw_decisions", "draw_models", "draw_metrics", "draw_dashboard")


@pytest.mark.parametrize("name", DRAWINGS)
def test_the_page_is_fresh(name: str) -> None:
    drawn = load(name)
    assert drawn.PAGE.read_text(encoding="utf-8") == drawn.page(), "run `make docs`"


def test_the_settings_page_has_every_setting() -> None:
    page = load("draw_settings").page()
    assert [name for name in SETTINGS if f"<br>`{name}` |" not in page] == []


def test_the_models_page_has_every_family_and_its_models() -> None:
    drawn = load("draw_models")
    families = {name: row for name, row in FAMILIES.items() if name not in drawn.NOT_MODELS}
    assert [name for name in families if f"| `chat:{name}` |" not in drawn.page()] == []
    assert [name for name, family in families.items() if not family.models] == []


def test_the_index_of_decisions_has_every_record() -> None:
    drawn = load("draw_decisions")
    records = {file.name for file in (ROOT / "docs" / "decisions").glob("0*.md")}
    assert {record.file for record in drawn.records().values()} == records
    assert [name for name in records if f"]({name})" not in drawn.page()] == []


def test_a_decision_that_is_no_longer_in_force_names_its_successor() -> None:
    (line,) = (
        line for line in load("draw_decisions").page().splitlines() if line.startswith("| 8 |")
    )
    assert "superseded by [34](0034-" in line


def test_a_record_without_a_theme_stops_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = load("draw_decisions")
    architecture = tuple(number for number in drawn.THEMES["Architecture"] if number != 27)
    monkeypatch.setattr(drawn, "THEMES", {**drawn.THEMES, "Architecture": architecture})
    with pytest.raises(ValueError, match=r"see \[27\]"):
        drawn.page()
