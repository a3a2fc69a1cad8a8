"""A key has the rights of a route, however its path is spelled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.http.access.test_limits import Keys

pytestmark = pytest.mark.slow

ROUTES = (
    ("GET", "/v1/containers", {"tools": ("function",)}),
    ("POST", "/v1/containers", {"tools": ("function",)}),
    ("GET", "/v1/containers/cntr_1/files", {"tools": ("function",)}),
    ("GET", "/v1/skills", {"tools": ("file_search",)}),
    ("POST", "/v1/skills", {"scopes": ("read",)}),
    ("DELETE", "/v1/skills/skill_1/versions/1", {"scopes": ("read",)}),
    ("GET", "/v1/vector_stores", {"tools": ("function",)}),
    ("POST", "/v1/vector_stores", {"tools": ("function",)}),
    ("POST", "/v1/vector_stores/vs_1/search", {"tools": ("function",)}),
    ("GET", "/metrics", {"scopes": ("read",)}),
    ("POST", "/v1/responses", {"scopes": ("read",)}),
    ("POST", "/v1/chat/completions", {"scopes": ("read",)}),
    ("POST", "/v1/messages", {"scopes": ("read",)}),
    ("DELETE", "/v1/responses/resp_1", {"scopes": ("read",)}),
    ("GET", "/v1/responses/resp_1", {"scopes": ("metrics",)}),
)
"""A method, a path, and the policy of a key that may not use it."""

SPELLINGS = ("{}", "/{}", "{}/", "{}//", "//{}//")


def spellings(path: str) -> Iterator[str]:
    for spelling in SPELLINGS:
        yield spelling.format(path)
    yield path.replace("/", "//")
    yield path.replace("/v1/", "/v1%2F")
    yield path.replace("/v1/", "/v1/%2F")
    yield "/%2F" + path.removeprefix("/")
    yield path + "%2F"
    yield path.replace("o", "%6F")


@pytest.fixture(scope="module")
def keys(serve_from: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keys]:
    folder = tmp_path_factory.mktemp("spelled")
    file: Path = folder / "keys.toml"
    file.touch()
    with serve_from(folder, auth="on", keys_file=file, store="sqlite", metrics=True) as server:
        yield Keys(file, server)


@pytest.mark.parametrize(("method", "path", "policy"), ROUTES)
def test_no_spelling_of_a_path_gives_a_right(
    keys: Keys, method: str, path: str, policy: dict[str, Any]
) -> None:
    headers = {"authorization": f"Bearer {keys.create(**policy)}"}
    for spelled in spellings(path):
        answer = httpx.request(method, f"{keys.server.url}{spelled}", headers=headers, json={})
        assert answer.status_code == 403, (spelled, answer.text)
