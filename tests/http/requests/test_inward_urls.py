"""No URL of a request makes this server connect to anything inside (inward_urls.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import httpx
import pytest
from tests.http.conftest import script
from tests.support import inward_urls
from tests.support.inward_urls import LoopbackServer

pytestmark = pytest.mark.slow

Json = dict[str, Any]
AT_ONCE = 16


def picture(url: str) -> Json:
    part = {"type": "input_image", "image_url": url}
    return {"input": [{"role": "user", "content": [part]}]}


def file(url: str) -> Json:
    part = {"type": "input_file", "file_url": url}
    return {"input": [{"role": "user", "content": [part]}]}


def picture_of_a_tool(url: str) -> Json:
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
    part = {"type": "input_image", "image_url": url}
    return {"input": [call, {"type": "function_call_output", "call_id": "c1", "output": [part]}]}


def mcp_server(url: str) -> Json:
    tool = {"type": "mcp", "server_label": "s", "server_url": url, "authorization": "secret"}
    return {"input": script({"say": "without"}), "tools": [tool]}


def brought_mcp_server(url: str) -> Json:
    asked = {"role": "user", "content": script({"say": "without"})}
    brought = {"type": "additional_tools", "role": "developer", "tools": mcp_server(url)["tools"]}
    return {"input": [asked, brought]}


def page(url: str) -> Json:
    """A page that the model opens, as it may have been told to."""
    opened = {"call": "browser.open", "args": {"id": url}}
    return {"input": script(opened, {"say": "without"}), "tools": [{"type": "web_search"}]}


NAMED_IN: Mapping[str, Callable[[str], Json]] = {
    each.__name__: each
    for each in (picture, file, picture_of_a_tool, mcp_server, brought_mcp_server, page)
}
"""Where a request may name a URL; what is new gets a row."""


@pytest.fixture(scope="module")
def sink() -> Iterator[LoopbackServer]:
    with inward_urls.sink() as listening:
        yield listening


@pytest.fixture(scope="module")
def api(
    sink: LoopbackServer, serve_from: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A server that may ask every host there is, so that only addresses are left to check."""
    hosts = inward_urls.allowed_hosts(inward_urls.urls(sink.port))
    folder = tmp_path_factory.mktemp("inward")
    web = {"web_search": "searxng", "web.url": f"http://127.0.0.1:{sink.port}/"}
    with serve_from(folder, **{"fetch.urls": True, "fetch.hosts": hosts, **web}) as server:
        yield server.api


@pytest.mark.parametrize("asked", NAMED_IN.values(), ids=NAMED_IN)
async def test_no_url_of_a_request_reaches_anything_inside(
    api: str, sink: LoopbackServer, asked: Callable[[str], Json]
) -> None:
    places = asyncio.Semaphore(AT_ONCE)

    async def refused(client: httpx.AsyncClient, url: str) -> None:
        async with places:
            body = {"model": "scripted-chat", "store": False, **asked(url)}
            answer = await client.post(f"{api}/responses", json=body)
        if answer.status_code == 200:  # what a tool cannot reach does not end a response
            tried, message = answer.json()["output"]
            assert message["type"] == "message", url
            if asked is page:
                assert tried["status"] == "failed", url
            else:
                assert tried["tools"] == [], url
                assert tried["error"]
        else:
            assert answer.status_code == 400, (url, answer.text)
            assert answer.json()["error"]["param"]
        for secret in ("secret", "Errno", "refused", "resolve"):
            assert secret not in answer.text.replace(url, ""), url

    async with httpx.AsyncClient(timeout=15) as client:
        await asyncio.gather(*(refused(client, url) for url in inward_urls.urls(sink.port)))
    assert sink.connections == 0
