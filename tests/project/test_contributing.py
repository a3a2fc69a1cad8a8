"""The recipes of CONTRIBUTING.md are short, and name what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
MAX_STEPS = 5

RECIPES = {
    name: " ".join(text.split())
    for name, text in re.findall(
        r"^\*\*(An? [^*]+)\.\*\*(.+?)(?=\n\n)", PAGE, flags=re.DOTALL | re.MULTILINE
    )
}
FOLDERS = "domain|application|adapters|entrypoints|testing|tests|benchmarks|docs|examples"
PATHS = sorted(set(re.findall(rf"[`(]((?:{FOLDERS})/[\w./-]+)[`)]", PAGE)))


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_has_at_most_five_steps(name: str) -> None:
    steps = [int(step) for step in re.findall(r"(?<!\S)(\d+)\. ", RECIPES[name])]
    assert steps == list(range(1, len(steps) + 1))
    assert 1 <= len(steps) <= MAX_STEPS


@pytest.mark.parametrize("path", PATHS)
def test_a_path_that_contributing_names_is_there(path: str) -> None:
    assert (ROOT / path).exists()
