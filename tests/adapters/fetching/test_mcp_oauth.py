"""Client credentials for a configured MCP server: a token is fetched, kept, and fetched anew."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from tests.support import fake_mcp_server
from tests.support.fake_mcp_server import FakeMcpServer

from antiphon.adapters.fetching import GuardedPools, HttpFetcher
from antiphon.adapters.tool_servers.configured import ConfiguredServer, ConfiguredServers
from antiphon.adapters.tool_servers.mcp import UrlServer
from antiphon.adapters.tool_servers.oauth import AccessTokens, OauthClient
from antiphon.adapters.url_policy import UrlPolicy
from antiphon.application.ports import ToolSession
from antiphon.domain.errors import SettingsError, ToolServerError
from antiphon.domain.offers.mcp import McpServerPolicy
from antiphon.domain.tools import McpTool
from antiphon.entrypoints.settings import McpServer, Settings
from antiphon.entrypoints.settings.sections import McpOauth
from antiphon.entrypoints.wiring.tools import tool_servers

LOOPBACK = UrlPolicy(hosts=["127.0.0.1:*"], private=[ipaddress.ip_network("127.0.0.1")])
SECRET = "hunter2-hunter2"
ADD = ("add", {"a": 2, "b": 40})


@pytest.fixture
def site() -> Iterator[FakeMcpServer]:
    with fake_mcp_server.site() as site:
        site.token = "none yet"
        yield site


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def make_servers(site: FakeMcpServer, clock: Clock, **fields: Any) -> ConfiguredServers:
    client = OauthClient(
        token_url=f"{site.origin}/token", client_id="me", client_secret=SECRET, **fields
    )
    fetcher = HttpFetcher(
        LOOPBACK, max_bytes=10_000, timeout_s=10, max_redirects=0, reads=("POST",)
    )
    tokens = AccessTokens("crm", client, fetcher, clock)
    server = UrlServer(
        "crm",
        url=site.url,
        headers={},
        pools=GuardedPools(LOOPBACK),
        timeout_s=10,
        max_bytes=100_000,
        tokens=tokens,
    )
    configured = ConfiguredServer(
        terms=McpServerPolicy(label="crm"), server=server, current_secrets=tokens.secrets
    )
    return ConfiguredServers([configured], None, keep_lists_s=0)


@pytest.fixture
async def servers(site: FakeMcpServer, clock: Clock) -> ConfiguredServers:
    return make_servers(site, clock, scopes=("read", "write"))


def open_session(servers: ConfiguredServers) -> ToolSession:
    return servers.session(McpTool(server_label="crm"))


@pytest.fixture
async def session(servers: ConfiguredServers) -> AsyncIterator[ToolSession]:
    session = open_session(servers)
    yield session
    await session.aclose()


async def test_all_sessions_use_one_token_until_it_expires(
    site: FakeMcpServer, servers: ConfiguredServers, clock: Clock
) -> None:
    for expected in (1, 1, 2):
        session = open_session(servers)
        assert len(await session.tools()) == 3
        assert (await session.call(*ADD)).output == "42"
        await session.aclose()
        assert len(site.grants) == expected
        clock.now_s += 3600 - 31 if expected == 1 and clock.now_s == 0 else 2
    basic = "Basic bWU6aHVudGVyMi1odW50ZXIy"
    assert site.grants[0] == (basic, "grant_type=client_credentials&scope=read+write")


async def test_a_token_that_is_refused_is_fetched_anew_and_the_call_made_once(
    site: FakeMcpServer, session: ToolSession
) -> None:
    await session.tools()
    site.token = "revoked"
    assert (await session.call(*ADD)).output == "42"
    assert len(site.grants) == 2
    accepted = [
        headers["authorization"] for method, _, headers in site.asked if method == "tools/call"
    ]
    assert accepted == ["Bearer token-1", "Bearer token-2"]


async def test_a_server_that_refuses_every_token_is_asked_twice(
    site: FakeMcpServer, session: ToolSession, caplog: pytest.LogCaptureFixture
) -> None:
    site.grant = {"access_token": "wrong-wrong"}
    with pytest.raises(ToolServerError, match="HTTP status 401"):
        await session.tools()
    assert len(site.grants) == 2
    assert "wrong-wrong" not in caplog.text


async def test_a_refused_client_is_in_the_log_with_its_cause_and_without_the_secret(
    site: FakeMcpServer, session: ToolSession, caplog: pytest.LogCaptureFixture
) -> None:
    site.grant_status = 401
    with caplog.at_level(logging.INFO), pytest.raises(ToolServerError) as caught:
        await session.tools()
    assert "No access token could be fetched for the MCP server." in str(caught.value)
    assert "no access token for the MCP server 'crm': status 401, invalid_client" in caplog.text
    assert SECRET not in f"{caplog.text}{caught.value}"


@pytest.mark.parametrize(
    "grant",
    [{"token_type": "mac"}, {"access_token": "a b"}, {"access_token": 3}, {"expires_in": "x"}],
)
async def test_an_answer_that_is_no_bearer_token_is_refused(
    site: FakeMcpServer, session: ToolSession, grant: Any
) -> None:
    site.grant = grant
    with pytest.raises(ToolServerError, match="No access token"):
        await session.tools()


async def test_a_client_can_send_its_secret_in_the_body(site: FakeMcpServer, clock: Clock) -> None:
    session = open_session(make_servers(site, clock, auth="post", audience="crm"))
    await session.tools()
    await session.aclose()
    [(authorization, body)] = site.grants
    assert authorization is None
    assert body == (
        f"grant_type=client_credentials&audience=crm&client_id=me&client_secret={SECRET}"
    )


def test_the_settings_name_the_client_and_show_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    oauth = McpOauth(token_url="https://id.example/token", client_id="me", client_secret=SECRET)
    table = McpServer(label="crm", url="https://crm.example/mcp", oauth=oauth)
    assert SECRET not in f"{table!r}{oauth!r}{Settings(mcp_servers=(table,))!r}"
    assert tool_servers(Settings(mcp_servers=(table,))) is not None
    from_variable = McpOauth(
        token_url="https://id.example/token", client_id="me", client_secret_env="CRM_SECRET"
    )
    table = McpServer(label="crm", url="https://crm.example/mcp", oauth=from_variable)
    with pytest.raises(SettingsError, match="'CRM_SECRET'"):
        tool_servers(Settings(mcp_servers=(table,)))
    monkeypatch.setenv("CRM_SECRET", SECRET)
    assert tool_servers(Settings(mcp_servers=(table,))) is not None
    with pytest.raises(ValueError, match="needs a `url`"):
        McpServer(label="crm", command=("true",), oauth=oauth)
