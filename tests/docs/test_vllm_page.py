"""The guide to serving a model names every family of chat templates."""

from __future__ import annotations

import re

from tests.docs.reader import ROOT

from antiphon.adapters.formats.chat_template.families import FAMILIES

PAGE = ROOT / "docs" / "guides" / "vllm.md"


def test_every_family_is_in_the_table() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if "| `" in line]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row.split(" | ")[0])}
    assert named == FAMILIES.keys() - {"scripted"}
