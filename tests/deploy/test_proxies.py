"""Streams, WebSockets and uploads through real proxies, which have the files of deploy/proxies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import yaml
from tests.deploy.proxies import KINDS, SILENCE_S, Proxy, running
from tests.deploy.tools import DEPLOY, program, run
from tests.faults.support.replicas import Replica, replicas, wait_for
from tests.http.wire.websocket_client import LAST, Client
from websockets.sync.client import connect

LONG = '@@script [[{"say": "word ", "repeat": 10000, "tick": 0.02}]]'
SILENT = f'@@script [[{{"delay": {3 * SILENCE_S}, "say": "done"}}]]'
KEEPALIVE_S = SILENCE_S / 5
MANY_BYTES = 4 * 1024 * 1024
"""More than nginx accepts by default."""

pytestmark = pytest.mark.deploy


class Setup(NamedTuple):
    """A server, and a proxy before it."""

    server: Replica
    proxy: Proxy

    def stream(self, asked: str) -> Any:
        return httpx.stream(
            "POST", f"{self.proxy.api}/responses", json=body(asked), verify=self.proxy.tls
        )


def body(asked: str) -> dict[str, Any]:
    return {"model": "scripted-chat", "input": asked, "stream": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("proxies")


def _server(folder: Path, *options: str) -> Iterator[Replica]:
    folder.mkdir()
    with replicas(folder, "--store", "memory", *options, count=1) as [server]:
        yield server


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Replica]:
    yield from _server(folder / "server", "--keepalive-s", str(KEEPALIVE_S))


@pytest.fixture(scope="module")
def silent_server(folder: Path) -> Iterator[Replica]:
    yield from _server(folder / "silent", "--keepalive-s", "0")


@pytest.fixture(scope="module")
def trusting_server(folder: Path) -> Iterator[Replica]:
    yield from _server(folder / "trusting", "--trusted-proxy-addresses", "127.0.0.1")


@contextmanager
def before(server: Replica, kind: str, folder: Path) -> Iterator[Setup]:
    with running(kind, server.url.removeprefix("http://"), folder) as proxy:
        yield Setup(server, proxy)


@pytest.fixture(scope="module", params=KINDS)
def behind(server: Replica, request: pytest.FixtureRequest, folder: Path) -> Iterator[Setup]:
    with before(server, request.param, folder / request.param) as found:
        yield found


def status(server: Replica, response_id: str) -> str:
    return str(httpx.get(f"{server.api}/responses/{response_id}").json()["status"])


def test_each_event_arrives_while_the_response_runs(behind: Setup) -> None:
    with behind.stream(LONG) as answer:
        text, parts = "", answer.iter_text()  # a name, or leaving the loop would end the answer
        for part in parts:
            text += part
            if "output_text.delta" in text:
                break
        assert status(behind.server, id_in(text)) == "in_progress"


def test_a_client_that_leaves_ends_its_response(behind: Setup) -> None:
    with behind.stream(LONG) as answer:
        response_id = id_in(next(answer.iter_text()))
    wait_for(lambda: status(behind.server, response_id) != "in_progress" or None)


def test_a_silent_stream_outlasts_the_proxys_patience(behind: Setup) -> None:
    with behind.stream(SILENT) as answer:
        text = answer.read().decode()
    assert "\n: " in text or text.startswith(":")
    assert text.strip().splitlines()[-2] == "event: response.completed"


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_keepalives_that_do_it(kind: str, silent_server: Replica, tmp_path: Path) -> None:
    with (
        before(silent_server, kind, tmp_path / "proxy") as setup,
        pytest.raises(httpx.RemoteProtocolError),
        setup.stream(SILENT) as answer,
    ):
        answer.read()


def test_responses_run_over_a_websocket(behind: Setup) -> None:
    with connect(behind.proxy.websocket, ssl=behind.proxy.tls, proxy=None) as connection:
        client = Client(connection)
        client.ask(SILENT)
        assert client.until(*LAST)[-1]["type"] == "response.completed"
        assert client.turn()["status"] == "completed"


def test_a_large_file_is_uploaded(behind: Setup) -> None:
    answer = httpx.post(
        f"{behind.proxy.api}/files",
        data={"purpose": "user_data"},
        files={"file": ("long.txt", b"x" * MANY_BYTES)},
        verify=behind.proxy.tls,
        timeout=30,
    )
    assert answer.json()["bytes"] == MANY_BYTES


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_client_says_of_its_tenant_is_removed(
    kind: str, trusting_server: Replica, tmp_path: Path
) -> None:
    claimed = {"x-antiphon-tenant": "anna"}
    assert httpx.get(f"{trusting_server.api}/models", headers=claimed).status_code == 200
    with before(trusting_server, kind, tmp_path / "proxy") as (_, proxy):
        through = httpx.get(f"{proxy.api}/models", headers=claimed, verify=proxy.tls)
    assert through.status_code == 401


def id_in(text: str) -> str:
    return text.partition('"id":"')[2].partition('"')[0]


# --- the files alone ------------------------------------------------------------------------------


def test_caddy_reads_its_file_and_would_format_it_so() -> None:
    file = str(DEPLOY / "proxies/Caddyfile")
    run(program("caddy"), "validate", "--adapter", "caddyfile", "--config", file)
    assert run(program("caddy"), "fmt", file) == Path(file).read_text()


def test_envoys_file_fits_the_messages_of_its_api() -> None:
    """Envoy itself is in no package that can be installed here; its messages are."""
    bootstrap = pytest.importorskip("envoy.config.bootstrap.v3.bootstrap_pb2")
    http = "envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2"
    for module in (
        http,
        "envoy.extensions.filters.http.router.v3.router_pb2",
        "envoy.extensions.transport_sockets.tls.v3.tls_pb2",
    ):
        pytest.importorskip(module)
    from google.protobuf import json_format

    text = yaml.safe_load((DEPLOY / "proxies/envoy.yaml").read_text())
    read = json_format.ParseDict(text, bootstrap.Bootstrap())
    assert [cluster.name for cluster in read.static_resources.clusters] == ["antiphon"]
    text["static_resources"]["clusters"][0]["idle_timeout"] = "1s"
    with pytest.raises(json_format.ParseError):
        json_format.ParseDict(text, bootstrap.Bootstrap())
