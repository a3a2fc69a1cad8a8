"""Traces: one for each response, joined to the client's and handed on, without a word of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.http.access.test_auth import bearer, new_key
from tests.http.conftest import create, script, stream
from tests.http.resources.test_webhooks import listening
from tests.http.resources.test_webhooks import settings as webhook_settings
from tests.http.wire.test_websocket import joined
from tests.support import fake_mcp_server
from tests.support.fake_mcp_server import FakeMcpServer
from tests.support.otlp_collector import Collector, attributes_of, collecting

from antiphon.adapters.telemetry.gen_ai import ATTRIBUTES

pytestmark = pytest.mark.slow

Json = dict[str, Any]
TRACE, SPAN = "a" * 32, "b" * 16
CLIENT = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
FETCH = {"fetch.urls": True, "fetch.hosts": ["127.0.0.1:*"], "fetch.private": ["127.0.0.1"]}
ADD: Json = {"mcp": "add", "args": {"a": 2, "b": 40}}
BOOM: Json = {"mcp": "boom", "args": {"a": "hush-argument"}}


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


@pytest.fixture
def site() -> Iterator[FakeMcpServer]:
    with fake_mcp_server.site() as listening:
        yield listening


def tools_of(site: FakeMcpServer, **fields: Any) -> list[Json]:
    tool = {"type": "mcp", "server_label": "calc", "server_url": site.url}
    return [{**tool, "require_approval": "never", "authorization": "hush-token", **fields}]


def parent_of(span: Any) -> str:
    found: str = span.parent_span_id.hex()
    return found


def test_a_loop_with_two_turns_and_three_calls_is_one_trace(
    serve: Any, collector: Collector, site: FakeMcpServer
) -> None:
    with (
        serve(otlp_endpoint=collector.url, **FETCH) as server,  # its end exports what is queued
        httpx.Client(base_url=server.api, headers=CLIENT, timeout=20) as client,
    ):
        said = script([ADD, ADD, BOOM], {"say": "42"})
        response = stream(client, model="scripted-chat", input=said, tools=tools_of(site))
    [agent] = collector.named("invoke_agent")
    chats = collector.named("chat ")
    calls = [span for span in collector.named("execute_tool") if "tools/list" not in span.name]
    [listing_turn] = collector.named("tools")
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE}
    assert parent_of(agent) == SPAN
    assert [parent_of(span) for span in (*chats, listing_turn)] == [agent.span_id.hex()] * 3
    assert [span.name for span in chats] == ["chat scripted-chat"] * 2
    first = min(chats, key=lambda span: span.start_time_unix_nano)
    assert [parent_of(span) for span in calls] == [first.span_id.hex()] * 3
    assert sorted(span.name for span in calls) == [
        "execute_tool add",
        "execute_tool add",
        "execute_tool boom",
    ]
    results = sorted(attributes_of(span)["antiphon.tool.result"] for span in calls)
    assert results == ["error", "ok", "ok"]
    assert attributes_of(agent)["gen_ai.response.id"] == response["id"]
    assert attributes_of(first)["gen_ai.usage.input_tokens"] > 0
    assert {event.name for event in first.events} >= {"first_token", "last_token"}
    for span in collector.spans:
        assert agent.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        assert attributes_of(span).keys() <= ATTRIBUTES
    ids = [span.span_id for span in collector.spans]
    assert len(ids) == len(set(ids))


def test_tool_servers_get_the_trace(serve: Any, collector: Collector, site: FakeMcpServer) -> None:
    with (
        serve(otlp_endpoint=collector.url, **FETCH) as server,
        httpx.Client(base_url=server.api, headers=CLIENT, timeout=20) as client,
    ):
        said = script([ADD], {"say": "42"})
        create(client, model="scripted-chat", input=said, tools=tools_of(site))
        sent = {headers.get("traceparent", "") for _, _, headers in site.asked}
    [agent] = collector.named("invoke_agent")
    assert sent == {f"00-{TRACE}-{agent.span_id.hex()}-01"}


def test_a_background_response_has_a_trace_that_links(
    serve: Any, collector: Collector, eventually: Any
) -> None:
    with (
        serve(otlp_endpoint=collector.url) as server,
        httpx.Client(base_url=server.api, headers=CLIENT, timeout=20) as client,
    ):
        made = create(client, model="scripted-chat", input="hi", background=True)
        read = f"/responses/{made['id']}"
        eventually(lambda: client.get(read).json()["status"] == "completed")
    [agent] = collector.named("invoke_agent")
    assert agent.trace_id.hex() != TRACE
    assert parent_of(agent) == ""
    assert [(link.trace_id.hex(), link.span_id.hex()) for link in agent.links] == [(TRACE, SPAN)]


def test_a_webhook_gets_the_trace_of_its_response(
    serve: Any, collector: Collector, eventually: Any
) -> None:
    with listening() as receiver:
        given = {"otlp_endpoint": collector.url, **webhook_settings(receiver)}
        with serve(**given) as server, httpx.Client(base_url=server.api, headers=CLIENT) as client:
            create(client, model="scripted-chat", input="hi", background=True)
            eventually(lambda: receiver.received)
    [agent] = collector.named("invoke_agent")
    [(headers, _)] = receiver.received
    sent = {name.lower(): value for name, value in headers.items()}
    assert sent["traceparent"] == f"00-{agent.trace_id.hex()}-{agent.span_id.hex()}-01"


def test_responses_over_a_websocket_have_traces_of_their_own(
    serve: Any, collector: Collector
) -> None:
    with serve(otlp_endpoint=collector.url) as server:
        client = joined(server)
        with client.connection:
            client.turn("hi")
            client.turn("ho")
    agents = collector.named("invoke_agent")
    assert len({agent.trace_id for agent in agents}) == 2
    assert {parent_of(agent) for agent in agents} == {""}


@pytest.mark.parametrize(
    ("headers", "ratio", "exported"),
    [
        ({"traceparent": f"00-{TRACE}-{SPAN}-00"}, 1.0, False),
        ({"traceparent": f"00-{TRACE}-{SPAN}-01"}, 0.0, True),
        ({"traceparent": "nonsense"}, 1.0, True),
        ({}, 1.0, True),
        ({}, 0.0, False),
    ],
)
def test_the_client_decides_what_is_sampled_and_else_the_ratio(
    serve: Any, collector: Collector, headers: dict[str, str], ratio: float, exported: bool
) -> None:
    with (
        serve(otlp_endpoint=collector.url, trace_sample_ratio=ratio) as server,
        httpx.Client(base_url=server.api, headers=headers, timeout=20) as client,
    ):
        create(client, model="scripted-chat", input="hi")
    assert bool(collector.spans) is exported


def test_no_secret_and_no_word_is_in_a_trace(
    serve: Any, collector: Collector, site: FakeMcpServer, tmp_path: Path
) -> None:
    keys_file = tmp_path / "keys.toml"
    key = new_key(keys_file)
    with (
        serve(otlp_endpoint=collector.url, auth="on", keys_file=keys_file, **FETCH) as server,
        httpx.Client(base_url=server.api, headers=bearer(key), timeout=20) as client,
    ):
        said = script([BOOM], {"say": "hush-output"})
        tools = tools_of(site, headers={"x-secret": "hush-header"})
        fields: Json = {"instructions": "hush-prompt", "metadata": {"n": "hush-metadata"}}
        create(client, model="scripted-chat", input=said, tools=tools, user="hush-user", **fields)
    exported = b"".join(collector.bodies)
    assert b"execute_tool boom" in exported
    assert b"hush" not in exported
    assert key.encode() not in exported


@pytest.mark.parametrize("hangs", [False, True])
def test_a_collector_that_is_gone_or_hangs_holds_up_nobody(serve: Any, hangs: bool) -> None:
    with collecting(hangs=threading.Event() if hangs else None) as collector:
        url = collector.url if hangs else "http://127.0.0.1:9"
        with (
            serve(otlp_endpoint=url) as server,
            httpx.Client(base_url=server.api, timeout=10) as client,
        ):
            for _ in range(5):
                create(client, model="scripted-chat", input="hi")
            stopping_at = time.monotonic()
        assert time.monotonic() - stopping_at < 8


def test_without_a_collector_the_engine_gets_the_clients_headers(http: httpx.Client) -> None:
    response = create(http, model="scripted-chat", input="hi", include=["metrics"])
    assert "traceparent" not in response["metrics"]
    http.headers.update(CLIENT)
    response = create(http, model="scripted-chat", input="hi", include=["metrics"])
    assert response["metrics"]["traceparent"] == CLIENT["traceparent"]
