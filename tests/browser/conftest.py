"""The console in Chromium: one server with two tenants, and a page for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.browser.browser import WIDE, Page, chromium
from tests.support import fake_mcp_server
from tests.support.fake_mcp_server import FakeMcpServer

from antiphon.adapters.keys.file import append
from antiphon.application.resources.keys import create_key

TENANTS = ("blue", "red")
FETCH = {"fetch.urls": True, "fetch.hosts": ["127.0.0.1:*"], "fetch.private": ["127.0.0.1"]}


@pytest.fixture(scope="session")
def keys_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys") / "keys.toml"


@pytest.fixture(scope="session")
def keys(keys_file: Path) -> dict[str, str]:
    """The API key of each tenant."""
    made = {}
    for tenant in TENANTS:
        made[tenant], kept = create_key(
            f"of-{tenant}", tenant, new_id=lambda _, name=tenant: f"key_{name}", now=lambda: 0
        )
        append(keys_file, kept)
    return made


@pytest.fixture(scope="session")
def site(
    serve_from: Any,
    tmp_path_factory: pytest.TempPathFactory,
    keys_file: Path,
    keys: dict[str, str],
) -> Iterator[Any]:
    """A server with keys, which keeps traces."""
    settings = {"auth": "on", "keys_file": keys_file, "store": "sqlite", "keep_traces": "all"}
    with serve_from(tmp_path_factory.mktemp("site"), **settings, **FETCH) as server:
        yield server


@pytest.fixture
def clients(site: Any, keys: dict[str, str]) -> Iterator[dict[str, httpx.Client]]:
    """A client of the API for each tenant."""
    made = {
        tenant: httpx.Client(
            base_url=site.api, headers={"authorization": f"Bearer {key}"}, timeout=30
        )
        for tenant, key in keys.items()
    }
    yield made
    for each in made.values():
        each.close()


@pytest.fixture
def api(clients: dict[str, httpx.Client]) -> httpx.Client:
    """The API as the reader of `page` may use it."""
    return clients["blue"]


@pytest.fixture(scope="session")
def tools() -> Iterator[FakeMcpServer]:
    with fake_mcp_server.site() as listening:
        yield listening


@pytest.fixture(scope="session")
def _browser() -> Iterator[Any]:
    with chromium() as driver:
        yield driver


@pytest.fixture
def visitor(_browser: Any, site: Any) -> Iterator[Page]:
    """A page of somebody who is not signed in."""
    page = Page(_browser, site.url)
    _browser.get("about:blank")
    _browser.delete_all_cookies()
    _browser.execute_cdp_cmd(
        "Storage.clearDataForOrigin", {"origin": site.url, "storageTypes": "all"}
    )
    page.resize(WIDE)
    page.prefer("light")
    _browser.get_log("browser")
    yield page
    _browser.get("about:blank")


@pytest.fixture
def page(visitor: Page, keys: dict[str, str]) -> Iterator[Page]:
    """A page of the tenant blue, signed in. In the end, nothing may have gone wrong in it."""
    visitor.sign_in(keys["blue"])
    yield visitor
    assert visitor.problems() == []
