"""Ray Serve without Ray: the settings of the application, its scaling, and what stands for the
transport. `make test-ray` starts a cluster.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec import Struct

from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.ray_serve.application import load_settings, read_replicas
from antiphon.entrypoints.ray_serve.asgi import ServedByRay
from antiphon.entrypoints.ray_serve.scaling import scale_by_load
from antiphon.testing.server import scripted_app

ARGS = {"store": "postgresql://db.example/antiphon", "data_dir": "/var/lib/antiphon"}


# --- settings ---


def test_arguments_win_over_the_environment_over_the_settings_file(toml: Any) -> None:
    file = toml("lease_s = 1.0\nresponse_s = 1.0\nkeep_days = 1")
    environ = {"ANTIPHON_RESPONSE_S": "2", "ANTIPHON_KEEP_DAYS": "2"}
    args = {**ARGS, "settings_file": str(file), "keep_days": "3", "scripted.step_tokens": 4}
    settings = load_settings(args, environ)
    assert (settings.lease_s, settings.response_s, settings.keep_days) == (1, 2, 3)
    assert settings.scripted.step_tokens == 4


def test_keys_are_needed_unless_auth_is_off(toml: Any) -> None:
    assert load_settings(ARGS, {}).needs_keys
    assert load_settings({**ARGS, "settings_file": str(toml('host = "127.0.0.1"'))}, {}).needs_keys
    assert not load_settings({**ARGS, "auth": "off"}, {}).needs_keys


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"stor": "memory"}, "'stor' is not a setting"),
        ({"settings_file": "nowhere.toml"}, "'nowhere.toml' does not exist"),
        ({"lease_s": "soon"}, "lease-s must be"),
        ({"store": "memory"}, "The store memory is of one process"),
        ({"data_dir": "data"}, "data_dir must be an absolute path on Ray Serve, not 'data'"),
        ({"tls_cert": "cert.pem"}, "tls_cert has no effect on Ray Serve"),
        ({"max_connections": 10}, "max_connections has no effect on Ray Serve"),
        ({"drain_delay_s": 5}, "drain_delay_s has no effect on Ray Serve"),
        (
            {"trusted_proxy.addresses": ["10.0.0.1"]},
            "trusted_proxy.addresses needs trusted_proxy.secret on Ray Serve",
        ),
    ],
)
def test_what_cannot_work_on_ray_is_refused(args: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load_settings({**ARGS, **args}, {})


def test_a_trusted_proxy_with_a_secret_and_a_file_of_one_machine_can_be_set(tmp_path: Path) -> None:
    proxy = {"trusted_proxy.addresses": ["10.0.0.1"], "trusted_proxy.secret": "s" * 32}
    assert load_settings({**ARGS, **proxy}, {}).trusted_proxy.secret
    assert load_settings({**ARGS, "store": f"sqlite:///{tmp_path}/shared.db"}, {}).sqlite_file


# --- replicas ---


@pytest.mark.parametrize(
    ("args", "least", "most"),
    [
        ({}, 1, 1),
        ({"min_replicas": "2"}, 2, 2),
        ({"min_replicas": 2, "max_replicas": "8"}, 2, 8),
    ],
)
def test_there_are_as_many_replicas_as_the_arguments_allow(
    args: dict[str, Any], least: int, most: int
) -> None:
    autoscaling = read_replicas(args).autoscaling()
    assert (autoscaling["min_replicas"], autoscaling["max_replicas"]) == (least, most)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"min_replicas": "none"}, "The number of replicas is invalid: .*min_replicas"),
        ({"min_replicas": 0}, "The number of replicas is invalid: .*min_replicas"),
        ({"target_ongoing_requests": 0}, "invalid: .*target_ongoing_requests"),
        ({"min_replicas": 3, "max_replicas": 2}, "max_replicas is 2, less than min_replicas"),
    ],
)
def test_an_invalid_number_of_replicas_is_refused(args: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        read_replicas(args).autoscaling()


class Target(Struct, frozen=True):
    requests: float

    def get_target_ongoing_requests(self) -> float:
        return self.requests


class Load(Struct):
    """What Serve's controller knows."""

    total_num_requests: float
    aggregated_metrics: dict[str, dict[str, float]] | None = None
    config: Target = Target(10)


@pytest.mark.parametrize(
    ("load", "replicas"),
    [
        (Load(0), 0),
        (Load(25), 2.5),
        (Load(10, {"background_runs": {"a": 10, "b": 10}}), 3),
        (Load(0, {"waiting_runs": {"a": 40, "b": 40}}), 4),
        (Load(10, {"background_runs": {"a": 20}, "waiting_runs": {"a": 20}}), 5),
    ],
)
def test_open_requests_and_background_runs_bring_replicas(load: Load, replicas: float) -> None:
    assert scale_by_load(load) == (replicas, {})


def test_serves_controller_need_not_import_the_server() -> None:
    code = (
        "import sys, antiphon.entrypoints.ray_serve.scaling; "
        "print(*{'litestar', 'uvicorn', 'dependency_injector', 'ray'} & set(sys.modules))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert printed.stdout.strip() == ""


# --- what stands for the transport ---


async def nothing() -> None:
    """Stop nothing."""


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with scripted_app() as app:
        served = ServedByRay(app, arrival_s=0.2, max_bytes=1024, shut_down=nothing)
        transport = httpx.ASGITransport(app=served)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost/v1") as opened:
            yield opened


async def test_the_id_of_a_request_is_left_to_serve(client: httpx.AsyncClient) -> None:
    for path in ("/models", "/nothing"):
        assert "x-request-id" not in (await client.get(path)).headers


async def test_a_body_must_arrive_in_time(client: httpx.AsyncClient) -> None:
    async def endless() -> AsyncIterator[bytes]:
        yield b'{"model": '
        await asyncio.Event().wait()

    json_type = {"content-type": "application/json"}
    answer = await client.post("/responses", content=endless(), headers=json_type)
    assert answer.status_code == 408
    assert answer.json()["error"]["message"] == "The request did not arrive within 0.2 seconds."


async def test_an_answer_may_take_longer_than_its_request(client: httpx.AsyncClient) -> None:
    body = {"model": "scripted-chat", "input": '@@script [[{"delay": 0.5, "say": "done"}]]'}
    answer = await client.post("/responses", json=body)
    assert answer.json()["status"] == "completed"


@pytest.mark.parametrize(
    ("content", "is_accepted"),
    [
        ({"text": "x" * 1024}, True),
        ({"text": "é" * 512}, True),
        ({"bytes": b"x" * 1024}, True),
        ({"text": "x" * 1025}, False),
        ({"text": "é" * 513}, False),
        ({"bytes": b"x" * 1025}, False),
    ],
)
async def test_a_websocket_message_that_is_too_large_closes_the_connection(
    content: dict[str, Any], is_accepted: bool
) -> None:
    received: list[str] = []
    sent: list[dict[str, Any]] = []

    async def app(_scope: Any, receive: Any, _send: Any) -> None:
        received.append((await receive())["type"])

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.receive", **content}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    served = ServedByRay(app, arrival_s=1, max_bytes=1024, shut_down=nothing)
    await served({"type": "websocket"}, receive, send)
    assert received == ["websocket.receive" if is_accepted else "websocket.disconnect"]
    assert [each["code"] for each in sent] == ([] if is_accepted else [1009])


async def test_the_end_of_the_apps_life_shuts_the_server_down() -> None:
    ended = asyncio.Event()

    async def shut_down() -> None:
        ended.set()

    served = ServedByRay(nothing, arrival_s=1, max_bytes=1, shut_down=shut_down)  # type: ignore[arg-type]
    events = iter(({"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}))
    sent: list[str] = []

    async def receive() -> dict[str, str]:
        return next(events)

    async def send(message: dict[str, str]) -> None:
        sent.append(message["type"])

    await served({"type": "lifespan"}, receive, send)
    assert ended.is_set()
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
