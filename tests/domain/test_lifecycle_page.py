"""The lifecycle page agrees with the tables that it is drawn from."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

DOCS = Path(__file__).parents[2] / "docs"


def drawing() -> ModuleType:
    spec = importlib.util.spec_from_file_location("draw_lifecycle", DOCS / "draw_lifecycle.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_fresh() -> None:
    page = DOCS / "explanation" / "lifecycle.md"
    assert page.read_text() == drawing().page(), "run `make docs`"
