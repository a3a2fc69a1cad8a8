"""A client team tests its package as the guide shows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.docs.blocks import blocks_of
from tests.testing.runs import LIMIT_S, ROOT, STRICT, run_pytest, write

pytestmark = pytest.mark.docs

PAGE = ROOT / "docs" / "guides" / "testing.md"


@pytest.mark.timeout(LIMIT_S)
def test_a_client_team_follows_the_guide(tmp_path: Path) -> None:
    passed = []
    for block in blocks_of(PAGE):
        if block.directive == "file":
            write(tmp_path, {block.argument: block.text})
        elif block.text == "$ pytest":
            passed.append(run_pytest(tmp_path, *STRICT).passed)
    assert passed == [5]
    assert run_pytest(tmp_path, *STRICT).passed == 6  # with the page's other settings
