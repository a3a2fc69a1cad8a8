"""`/metrics`: what Prometheus reads of a server."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from msgspec.structs import replace
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_open_metrics
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from tests.http.access.test_auth import bearer, new_key
from tests.http.conftest import create, script, stream, wait_until
from tests.http.resources.test_webhooks import listening, settings
from tests.security.support.raw_clients import connect, read_until_closed
from tests.support import fake_mcp_server
from tests.support.programs import ODD, PROGRAMS, answers, asked, function

from antiphon.adapters.keys.file import append
from antiphon.application.resources.keys import create_key
from antiphon.application.telemetry.instruments import INSTRUMENTS
from antiphon.domain.access.limits import KeyPolicy, Scope
from antiphon.entrypoints.http.wire.protocol import MAX_HEAD_BYTES
from antiphon.entrypoints.wiring.transport import MAX_ADMIN_CONNECTIONS

pytestmark = pytest.mark.slow

MODEL = "scripted-chat"
HAS_SANDBOX = shutil.which("bwrap") is not None


class Metrics:
    """The metrics of a server, as a scraper reads them."""

    def __init__(self, server_url: str) -> None:
        self.url = f"{server_url}/metrics"

    def samples(self) -> list[Sample]:
        answer = httpx.get(self.url)
        assert answer.status_code == 200, answer.text
        families = text_string_to_metric_families(answer.text)
        return [sample for family in families for sample in family.samples]

    def value(self, name: str, /, **labels: str) -> float:
        """Return the sum of the samples with these labels."""
        return sum(
            sample.value
            for sample in self.samples()
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def has(self, value: float, name: str, /, **labels: str) -> bool:
        return self.value(name, **labels) == value


SAID = [{"role": "user", "content": "hello"}]
DOORS: dict[str, tuple[str, dict[str, Any]]] = {
    "responses": ("/responses", {"input": "hello"}),
    "chat_completions": ("/chat/completions", {"messages": SAID}),
    "messages": ("/messages", {"messages": SAID, "max_tokens": 100}),
    "completions": ("/completions", {"prompt": "hello", "max_tokens": 100}),
}


@pytest.fixture(scope="module")
def metered(
    serve_odd_tools: Callable[..., AbstractContextManager[httpx.Client]],
) -> Iterator[httpx.Client]:
    allowed = {"fetch.urls": True, "fetch.hosts": ["127.0.0.1:*"], "fetch.private": ["127.0.0.1"]}
    with serve_odd_tools(metrics=True, programs=HAS_SANDBOX, **allowed) as client:
        yield client


@pytest.fixture
def client(metered: httpx.Client) -> httpx.Client:
    return metered


@pytest.fixture
def metrics(client: httpx.Client) -> Metrics:
    return Metrics(str(client.base_url).removesuffix("/v1/"))


def test_a_response_is_counted_with_its_tokens_and_times(
    client: httpx.Client, metrics: Metrics, model: str
) -> None:
    ended = {"model": model, "door": "responses", "status": "completed", "reason": ""}
    before = metrics.value("antiphon_responses_total", **ended)
    tokens = metrics.value("antiphon_tokens_total", model=model, type="output")
    response = stream(client, model=model, input="hello")
    assert metrics.value("antiphon_responses_total", **ended) == before + 1
    written = metrics.value("antiphon_tokens_total", model=model, type="output") - tokens
    assert written == response["usage"]["output_tokens"]
    for name in (
        "antiphon_response_duration_seconds",
        "antiphon_response_time_to_first_token_seconds",
        "antiphon_response_time_to_first_text_seconds",
        "antiphon_response_turns",
    ):
        assert metrics.value(f"{name}_count", model=model) == before + 1


def test_the_metrics_of_the_convention_stand_beside_ours(
    client: httpx.Client, metrics: Metrics
) -> None:
    stream(client, model=MODEL, input=script({"say": "one two three", "tick": 0.01}))
    labels = {
        "gen_ai_operation_name": "chat",
        "gen_ai_provider_name": "antiphon",
        "gen_ai_response_model": MODEL,
    }
    for name in (
        "gen_ai_server_request_duration_seconds",
        "gen_ai_server_time_to_first_token_seconds",
        "gen_ai_server_time_per_output_token_seconds",
        "gen_ai_client_token_usage",
    ):
        assert metrics.value(f"{name}_count", **labels) >= 1, name


@pytest.mark.parametrize("door", DOORS)
def test_a_response_is_counted_at_the_door_by_which_it_came(
    client: httpx.Client, metrics: Metrics, door: str
) -> None:
    before = metrics.value("antiphon_responses_total", door=door)
    path, body = DOORS[door]
    assert client.post(path, json={"model": MODEL, **body}).status_code == 200
    assert metrics.has(before + 1, "antiphon_responses_total", door=door)


def test_the_record_names_the_door(client: httpx.Client) -> None:
    path, body = DOORS["chat_completions"]
    told = client.post(path, json={"model": MODEL, "store": True, **body}).json()
    stored = f"/responses/{told['id'].replace('chatcmpl-', 'resp_')}"
    record = client.get(stored, params={"include[]": "metrics"}).json()["metrics"]
    assert record["door"] == "chat_completions"


@pytest.mark.parametrize(
    ("turn", "status", "reason"),
    [
        ({"fail": "gone"}, "failed", "server_error"),
        ({"say": "one two three four five"}, "incomplete", "max_output_tokens"),
    ],
)
def test_a_response_that_does_not_complete_is_counted_with_its_reason(
    client: httpx.Client, metrics: Metrics, turn: Any, status: str, reason: str
) -> None:
    body = {"model": MODEL, "input": script(turn), "max_output_tokens": 16}
    if status == "incomplete":
        body["input"] = script({"say": "word " * 50})
    client.post("/responses", json=body)
    assert metrics.has(1, "antiphon_responses_total", status=status, reason=reason)


def test_calls_are_counted_by_tool_and_result(client: httpx.Client, metrics: Metrics) -> None:
    odd = [{"type": "mcp", "server_label": "odd", "require_approval": "never"}]
    said = script({"mcp": "say", "args": {}}, {"mcp": "boom", "args": {}}, {"say": "Done."})
    create(client, model=MODEL, input=said, tools=odd)
    tool = {"type": "mcp", "server": "odd"}
    assert metrics.has(1, "antiphon_tool_calls_total", **tool, name="say", result="ok")
    assert metrics.has(1, "antiphon_tool_calls_total", **tool, name="boom", result="error")
    assert metrics.has(1, "antiphon_tool_call_duration_seconds_count", **tool, name="say")
    assert metrics.value("antiphon_tool_calls_total", name="tools/list", result="ok") >= 1


@pytest.mark.skipif(not HAS_SANDBOX, reason="there is no bwrap here")
def test_a_program_is_counted_where_it_ends_with_all_of_its_calls(
    client: httpx.Client, metrics: Metrics, model: str
) -> None:
    code = """
        const [said] = await Promise.all([tools.odd__say({ words: 1 }), tools.stock({})]);
        await tools.odd__say({ words: 2 });
        throw new Error(said);
    """
    body = {"model": model, "tools": [PROGRAMS, ODD, function()], "include": ["metrics"]}
    waiting = create(client, **body, input=[asked(code)])
    assert "programs" not in waiting["metrics"]
    assert metrics.has(0, "antiphon_programs_total", model=model)
    outputs = answers(waiting, "one")
    ended = create(client, **body, input=outputs, previous_response_id=waiting["id"])
    assert ended["metrics"]["programs"] == [{"result": "error", "calls": 3}]
    create(client, **body, input=[asked("return 1")])
    for result in ("ok", "error"):
        assert metrics.has(1, "antiphon_programs_total", model=model, result=result)
    assert metrics.has(2, "antiphon_program_calls_count", model=model)
    assert metrics.has(3, "antiphon_program_calls_sum", model=model)


def test_no_name_that_a_client_chose_is_a_label(client: httpx.Client, metrics: Metrics) -> None:
    with fake_mcp_server.site() as site:
        theirs = {"type": "mcp", "server_label": "theirs", "server_url": site.url}
        client.post("/responses", json={"model": MODEL, "input": "hi", "tools": [theirs]})
    client.request("THEIRS", "/models")
    client.get("/theirs")
    client.get("/responses/resp_theirs")
    client.post("/responses", json={"model": "theirs", "input": "theirs"})
    samples = metrics.samples()
    assert not any("theirs" in value.lower() for each in samples for value in each.labels.values())


def test_requests_are_counted_by_route_and_status(client: httpx.Client, metrics: Metrics) -> None:
    client.get("/responses/resp_none")
    client.get("/nowhere")
    one = {"method": "GET", "route": "/v1/responses/{response_id}", "status": "404"}
    assert metrics.value("antiphon_http_requests_total", **one) >= 1
    assert metrics.value("antiphon_http_requests_total", route="other", status="404") >= 1
    routed = {"route": "/v1/responses/{response_id}"}
    assert metrics.value("antiphon_http_time_to_first_byte_seconds_count", **routed) >= 1


def test_what_runs_now_is_seen_by_what_it_does(client: httpx.Client, metrics: Metrics) -> None:
    hanging = {"model": MODEL, "input": script([{"say": "Once"}, {"hang": 600}]), "stream": True}
    with client.stream("POST", "/responses", json=hanging) as answer:
        lines = answer.iter_lines()
        while "output_text.delta" not in next(lines):
            pass
        assert metrics.has(1, "antiphon_responses_running", mode="foreground")
        assert metrics.has(1, "antiphon_responses_by_phase", phase="writing")
        assert metrics.has(1, "antiphon_streams_open")
        assert metrics.value("antiphon_oldest_response_age_seconds") > 0
        assert metrics.value("antiphon_connections_open") >= 2
    wait_until(lambda: metrics.has(0, "antiphon_responses_running"))
    assert metrics.has(0, "antiphon_oldest_response_age_seconds")


@pytest.mark.one_process
def test_background_responses_that_wait_are_seen(serve_from: Any, tmp_path: Path) -> None:
    with (
        serve_from(tmp_path, metrics=True, store="sqlite", background_runs=1) as server,
        httpx.Client(base_url=server.api) as client,
    ):
        metrics = Metrics(server.url)
        body = {"model": MODEL, "input": script([{"hang": 600}]), "background": True}
        ids = [client.post("/responses", json=body).json()["id"] for _ in range(3)]
        assert metrics.has(1, "antiphon_responses_running", mode="background")
        assert metrics.has(2, "antiphon_responses_waiting")
        for each in ids:
            client.post(f"/responses/{each}/cancel")
        wait_until(lambda: metrics.has(0, "antiphon_responses_waiting"))
        assert metrics.has(3, "antiphon_responses_total", status="cancelled")
        assert metrics.value("antiphon_response_queue_seconds_count", mode="background") >= 1


def test_readers_who_come_back_are_counted(client: httpx.Client, metrics: Metrics) -> None:
    body = {"model": MODEL, "input": "hi", "background": True}
    created = create(client, **body)
    for after in ({}, {"starting_after": 1}):
        client.get(f"/responses/{created['id']}", params={"stream": True, **after})
    readers = "antiphon_event_readers_total"
    assert metrics.value(readers, start="first") >= 1
    assert metrics.has(1, readers, start="resumed")


def test_the_store_is_timed(client: httpx.Client, metrics: Metrics) -> None:
    client.get("/responses/resp_none")
    names = "create_response finish_response get_response append_events count_waiting_runs"
    for operation in names.split():
        labels = {"operation": operation, "result": "ok"}
        create(client, model=MODEL, input="hi", background=True)
        name = "antiphon_store_operation_duration_seconds_count"
        wait_until(lambda labels=labels, name=name: metrics.value(name, **labels) > 0)  # type: ignore[misc]


def test_each_attempt_of_a_webhook_is_counted(serve: Any) -> None:
    with listening() as receiver, serve(metrics=True, **settings(receiver)) as server:
        metrics = Metrics(server.url)
        body = {"model": MODEL, "input": "hi", "background": True}
        httpx.post(f"{server.api}/responses", json=body)
        wait_until(lambda: metrics.has(1, "antiphon_webhook_attempts_total", result="received"))
        receiver.status = 500
        httpx.post(f"{server.api}/responses", json=body)
        wait_until(lambda: metrics.has(1, "antiphon_webhook_attempts_total", result="refused"))
        assert metrics.has(2, "antiphon_webhook_attempt_duration_seconds_count")


def test_tenants_are_counted_only_when_asked_for(serve: Any, tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    key, reader = new_key(file, "acme"), _metrics_key(file)
    for by_tenant in (False, True):
        given = {"metrics_tenants": by_tenant, "auth": "on", "keys_file": file}
        with serve(metrics=True, **given) as server:
            body = {"model": MODEL, "input": "hi"}
            httpx.post(f"{server.api}/responses", json=body, headers=bearer(key))
            text = httpx.get(f"{server.url}/metrics", headers=bearer(reader)).text
            assert ("acme" in text) is by_tenant


def _metrics_key(file: Path, *scopes: Scope) -> str:
    key, kept = create_key("prometheus", "ops", new_id=lambda p: f"{p}_ops", now=lambda: 0)
    append(file, replace(kept, policy=KeyPolicy(scopes=scopes or ("metrics",))))
    return key


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_a_key_needs_the_scope(serve: Any, tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    ordinary, reader = new_key(file), _metrics_key(file)
    with serve(metrics=True, auth="on", keys_file=file) as server:
        url = f"{server.url}/metrics"
        assert httpx.get(url).status_code == 401
        refused = httpx.get(url, headers=bearer(ordinary))
        assert refused.status_code == 403
        assert "'metrics'" in refused.json()["error"]["message"]
        assert "antiphon_http_requests_total" in httpx.get(url, headers=bearer(reader)).text
        answer = httpx.get(f"{server.api}/responses", headers=bearer(reader))
        assert answer.status_code == 403


def test_the_admin_port_needs_no_key(serve: Any, tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    reader = _metrics_key(file)
    port = _free_port()
    with serve(metrics=True, auth="on", keys_file=file, admin_port=port) as server:
        admin = f"http://127.0.0.1:{port}"
        assert "antiphon_connections_open" in httpx.get(f"{admin}/metrics").text
        assert httpx.get(f"{admin}/livez").json() == {"status": "live"}
        assert httpx.get(f"{admin}/readyz").json()["status"] == "ready"
        assert httpx.get(f"{admin}/v1/models").status_code == 404
        assert httpx.get(f"{server.url}/metrics", headers=bearer(reader)).status_code == 404


def test_the_admin_port_answers_to_its_own_names(serve: Any) -> None:
    port = _free_port()
    with serve(metrics=True, admin_port=port, allowed_host=["antiphon"]):
        admin = f"http://127.0.0.1:{port}"
        for host, status in (("evil.example", 403), ("antiphon", 200), (f"localhost:{port}", 200)):
            headers = {"host": host}
            assert httpx.get(f"{admin}/metrics", headers=headers).status_code == status
            assert httpx.get(f"{admin}/livez", headers=headers).status_code == 200


def test_the_admin_port_has_the_bounds_of_the_api(serve: Any) -> None:
    port = _free_port()
    with serve(metrics=True, admin_port=port), ExitStack() as stack:
        admin = SimpleNamespace(url=f"http://127.0.0.1:{port}")
        for _ in range(2 * MAX_ADMIN_CONNECTIONS):
            stack.enter_context(connect(admin)).sendall(b"GET /livez HTTP/1.1\r\n")
        assert httpx.get(f"{admin.url}/livez").status_code == 200  # those that wait make room
        with connect(admin) as client:
            client.sendall(b"GET /livez HTTP/1.1\r\nx: " + b"x" * 2 * MAX_HEAD_BYTES)
            assert read_until_closed(client).startswith(b"HTTP/1.1 431 ")


def test_without_the_setting_there_are_no_metrics(server: Any) -> None:
    assert httpx.get(f"{server.url}/metrics").status_code == 404


def test_every_metric_of_ours_is_in_the_table(client: httpx.Client, metrics: Metrics) -> None:
    create(client, model=MODEL, input="hi")
    known = {each.exposed_name for each in INSTRUMENTS}
    families = text_string_to_metric_families(httpx.get(metrics.url).text)
    ours = {each.name for each in families if each.name.startswith(("antiphon", "gen_ai"))}
    assert ours
    assert {name for name in ours if name not in known and f"{name}_total" not in known} == set()


def test_a_scraper_may_ask_for_open_metrics(metrics: Metrics) -> None:
    accept = "application/openmetrics-text; version=1.0.0"
    answer = httpx.get(metrics.url, headers={"accept": accept})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    names = {each.name for each in read_open_metrics(answer.text)}
    assert "antiphon_http_requests" in names
