"""Servers that offer the playground more than the shared one does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.browser.browser import Page
from tests.browser.playground.forms import EVIL

ROOT = Path(__file__).parents[3]
MODELS = f"""\
[[models]]
name = "seeing"
engine = "scripted"

[[models]]
name = "blind"
engine = "tests.browser.playground.blind_model:Blind"

[[models]]
name = {json.dumps(EVIL)}
engine = "scripted"
"""


@pytest.fixture
def elsewhere(visitor: Page, serve: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Start a server with settings of the test's own, without keys: `with elsewhere(…) as (page,
    api): …`. In the end, nothing may have gone wrong in its page."""
    from contextlib import contextmanager

    monkeypatch.syspath_prepend(str(ROOT))

    @contextmanager
    def start(**settings: Any) -> Iterator[tuple[Page, httpx.Client]]:
        with (
            serve(**settings) as server,
            httpx.Client(base_url=server.api, timeout=30) as api,
        ):
            page = Page(visitor.driver, server.url)
            yield page, api
            assert page.problems() == []

    return start


@pytest.fixture
def several(elsewhere: Any, tmp_path: Path) -> Iterator[tuple[Page, httpx.Client]]:
    """A page of a server with three models: one is blind, and the name of another is markup."""
    file = tmp_path / "several.toml"
    file.write_text(MODELS, encoding="utf-8")
    with elsewhere(config=file) as started:
        yield started
