"""Which web the settings choose, and what is said of settings that go together with none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.conftest import running, settings_for

from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.container import Container


def test_there_is_no_web_unless_it_is_asked_for(tmp_path: Path) -> None:
    assert Container(settings=settings_for(tmp_path)).web() is None


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"web_search": "corpus"}, "needs web.folder"),
        ({"web_search": "corpus", "web.folder": Path("/no/such")}, "no folder '/no/such'"),
    ],
)
def test_a_web_that_cannot_be_is_one_sentence_before_anything_is_served(
    tmp_path: Path, given: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(SettingsError, match=sentence), running(settings_for(tmp_path, **given)):
        pass


def test_a_server_with_a_corpus_starts_and_stops(tmp_path: Path) -> None:
    (tmp_path / "page.txt").write_text("An antiphon is sung.", encoding="utf-8")
    given = {"web_search": "corpus", "web.folder": tmp_path}
    with running(settings_for(tmp_path, **given)) as server:
        assert server.container.web() is not None
