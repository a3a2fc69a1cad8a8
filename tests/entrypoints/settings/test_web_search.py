"""The web search that the settings choose, and errors in those settings."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import running, settings_for
from tests.support.loopback_server import answer, listening

from antiphon.application.ports import DomainFilter, Web
from antiphon.domain.errors import SettingsError, WebError
from antiphon.entrypoints.container import Container

KEY = "k3y-of-a-service"


def web_of(folder: Path, **settings: Any) -> Web | None:
    web: Web | None = Container(settings=settings_for(folder, **settings)).web()
    return web


def test_web_search_is_off_by_default(tmp_path: Path) -> None:
    assert web_of(tmp_path) is None


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"web_search": "corpus"}, "needs web.folder"),
        ({"web_search": "corpus", "web.folder": Path("/no/such")}, "no folder '/no/such'"),
        ({"web_search": "searxng"}, "needs web.url"),
        ({"web_search": "brave"}, "needs web.key.*ANTIPHON_WEB__KEY"),
        ({"web_search": "tavily"}, "needs web.key.*ANTIPHON_WEB__KEY"),
        (
            {"web_search": "tavily", "web.key": KEY, "web.url": "http://[::1"},
            r"web.url cannot be used: The URL is not valid\.$",
        ),
    ],
)
def test_invalid_settings_are_refused_in_one_sentence_before_the_start(
    tmp_path: Path, settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(SettingsError, match=sentence), running(settings_for(tmp_path, **settings)):
        pass


def test_a_server_with_a_corpus_starts_and_stops(tmp_path: Path) -> None:
    (tmp_path / "page.txt").write_text("An antiphon is sung.", encoding="utf-8")
    settings = {"web_search": "corpus", "web.folder": tmp_path}
    with running(settings_for(tmp_path, **settings)) as server:
        assert server.container.web() is not None


@pytest.mark.parametrize("kind", ["searxng", "brave", "tavily"])
async def test_a_search_service_may_be_in_a_private_network_but_pages_may_not(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with listening() as sink:
        base = f"http://127.0.0.1:{sink.port}"
        results = {"results": [{"url": f"{base}/page", "title": "A"}]}
        sink.answers["/search"] = answer(json.dumps({**results, "web": results}).encode())
        url = base if kind == "searxng" else f"{base}/search"
        web = web_of(tmp_path, **{"web_search": kind, "web.key": KEY, "web.url": url})
        assert web is not None
        await web.start()
        [found] = await web.search("bells", limit=5, domains=DomainFilter())
        with pytest.raises(WebError):
            await web.read(found.url)
        await web.aclose()
        assert sink.connections == 1
        assert (KEY in sink.heads[0]) is (kind != "searxng")
    assert KEY not in caplog.text


def test_the_key_is_not_shown_with_the_settings(tmp_path: Path) -> None:
    assert KEY not in repr(settings_for(tmp_path, **{"web.key": KEY}))
    with pytest.raises(SettingsError) as refused:
        settings_for(tmp_path, **{"web.key": f"{KEY} "})
    assert KEY not in str(refused.value)
