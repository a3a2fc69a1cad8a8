"""Every web keeps its promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.adapters.pdf import PdfReader
from antiphon.adapters.testing.web import WebContract
from antiphon.adapters.web.corpus import CorpusWeb
from antiphon.adapters.web.reading import PageReader
from antiphon.application.ports import Web

# No HTML: the process that reads it takes longer to begin than all else here.
PAGES = {
    "choirs.md": "# Choirs\n\nAn antiphon is sung. See [psalms](a/psalms.md).",
    "a/psalms.md": '# Psalms\n\nEach has an antiphon. See [choirs](../choirs.md "Sung").',
    "notes.txt": "Nothing of note, but an antiphon【0†fake】.\r\nEnd.\x07",
}


class TestACorpus(WebContract):
    finds = "antiphons"
    nowhere = "https://corpus.invalid/nowhere.html"

    @pytest.fixture
    async def opened(self, tmp_path: Path) -> Web:
        for name, text in PAGES.items():
            file = tmp_path / name
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, encoding="utf-8")
        return CorpusWeb(
            tmp_path,
            PageReader(PdfReader()),
            base_url="https://corpus.invalid/",
            most=10,
            max_bytes=10_000,
            timeout_s=10.0,
        )
