"""Every command and every snippet of the documentation does what its page says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.docs.blocks import Block, blocks_of
from tests.docs.reader import ROOT, Reader

pytestmark = pytest.mark.docs

PAGES = {
    str(page.relative_to(ROOT)): blocks_of(page)
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
}
RUN = {"console", "json", "python", "toml"}
NOT_RUN = {"", "ini", "js", "mermaid", "text", "yaml"}
"""Other programs' languages and pictures. What a page shows without a language is a picture."""


def is_run(block: Block) -> bool:
    return block.directive != "not run" and (block.language in RUN or block.directive != "")


@pytest.fixture
def reader(server: Any, tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path, int(server.url.rpartition(":")[2]))
    yield reader
    reader.close()


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "page", [page for page, blocks in PAGES.items() if any(map(is_run, blocks))]
)
def test_a_reader_can_do_what_the_page_says(reader: Reader, page: str) -> None:
    reader.read(PAGES[page])


@pytest.mark.parametrize("page", PAGES)
def test_every_block_names_its_language(page: str) -> None:
    assert {block.language for block in PAGES[page]} <= RUN | NOT_RUN


@pytest.mark.parametrize("page", PAGES)
def test_a_block_that_is_not_run_says_why(page: str) -> None:
    marked = [block for block in PAGES[page] if block.directive == "not run"]
    assert all(block.language in RUN and block.argument for block in marked)
