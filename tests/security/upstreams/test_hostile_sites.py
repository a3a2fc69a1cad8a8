"""Pages, tool servers and embedding servers that never come to the point."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

import httpx
import pytest
from tests.security.support.hostile_upstream import HostileUpstream, hostile_upstream

from antiphon.adapters.embeddings import HttpEmbeddings
from antiphon.adapters.fetching import GuardedPools, HttpFetcher
from antiphon.adapters.tool_servers.mcp import CallFailed
from antiphon.adapters.tool_servers.mcp_client import connect
from antiphon.adapters.url_policy import UrlPolicy
from antiphon.domain.errors import EmbeddingsError, FetchFailed, FetchTooLarge

LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"),)
LONG_S = 300.0
"""Longer than a test may take: what ends the answer is no clock."""

FLOODS = ("interim", "headers", "gzip", "text")


@pytest.fixture(scope="module")
def upstream() -> Iterator[HostileUpstream]:
    with hostile_upstream() as server:
        yield server


def policy_for(upstream: HostileUpstream) -> UrlPolicy:
    return UrlPolicy(hosts=(upstream.origin.removeprefix("http://"),), private=LOOPBACK)


def fetcher_for(upstream: HostileUpstream) -> HttpFetcher:
    policy = policy_for(upstream)
    return HttpFetcher(policy, max_bytes=1_000_000, timeout_s=LONG_S, max_redirects=1)


@pytest.mark.parametrize("flood", FLOODS)
async def test_a_page_without_an_end_is_given_up(upstream: HostileUpstream, flood: str) -> None:
    with pytest.raises((FetchFailed, FetchTooLarge)):
        await fetcher_for(upstream).fetch(f"{upstream.origin}/{flood}/page")


@pytest.mark.parametrize("flood", FLOODS)
async def test_vectors_without_an_end_are_given_up(upstream: HostileUpstream, flood: str) -> None:
    engine = HttpEmbeddings(
        f"{upstream.origin}/{flood}/v1", model="m", timeout_s=LONG_S, max_bytes=1_000_000
    )
    with pytest.raises(EmbeddingsError):
        await engine.embed(["a"])
    await engine.aclose()


@pytest.mark.parametrize("flood", FLOODS)
async def test_a_tool_server_without_an_end_is_given_up(
    upstream: HostileUpstream, flood: str
) -> None:
    url = httpx.URL(f"{upstream.origin}/{flood}/page")
    pools = GuardedPools(policy_for(upstream))
    with pytest.raises(CallFailed):
        async with connect(url, {}, pools, max_bytes=1_000_000) as client:
            await client.tools()


async def test_interim_answers_before_a_page_are_read_over(upstream: HostileUpstream) -> None:
    page = await fetcher_for(upstream).fetch(f"{upstream.origin}/hello-after-interim/page")
    assert b"Hello." in page.content
