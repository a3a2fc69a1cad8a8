"""A real Prometheus scrapes a server, and computes what the dashboard and the rules ask for."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.docs.test_dashboards import expressions
from tests.faults.support.replicas import free_port
from tests.http.conftest import create, script, wait_until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(120)]

MODEL = "scripted-chat"
CAUSED = frozenset(
    {
        "Time to the first token",
        "Time to the first visible text",
        "Time between tokens",
        "Duration of responses",
        "Running and waiting",
        "Tokens a second",
        "Wait before a run",
        "Oldest response",
        "Responses that did not complete",
        "Requests with an error",
        "Slowest operations of the store",
        "Memory and processor",
    }
)
"""The panels that show something of what the test does."""


@contextmanager
def scraping(target: str, folder: Path, rules: Path) -> Iterator[httpx.Client]:
    """Run a Prometheus that scrapes the target each half second; yield a client of its API."""
    binary = shutil.which("prometheus")
    if binary is None:
        pytest.skip("there is no prometheus on this machine")
    config = {
        "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
        "rule_files": [str(rules)],
        "scrape_configs": [{"job_name": "antiphon", "static_configs": [{"targets": [target]}]}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    port = free_port()
    options = (
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    )
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen([binary, *options], stdout=log, stderr=log)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:
            wait_until(lambda: _answers(client))
            yield client
    finally:
        process.kill()
        process.wait(timeout=30)


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/-/ready").status_code == 200
    except httpx.TransportError:
        return False


def query(prometheus: httpx.Client, expression: str) -> list[Any]:
    answer = prometheus.get("/api/v1/query", params={"query": expression}).json()
    assert answer["status"] == "success", answer
    result: list[Any] = answer["data"]["result"]
    return result


def filled(expression: str) -> str:
    """Return an expression of the dashboard as Grafana sends it."""
    return expression.replace("$__rate_interval", "1m").replace("$instance", ".*")


def test_prometheus_computes_every_panel_and_every_rule(serve: Any, tmp_path: Path) -> None:
    port = free_port()
    rules = Path(__file__).parents[2] / "dashboards" / "alerts.yml"
    with (
        serve(metrics=True, store="sqlite", admin_port=port) as server,
        scraping(f"127.0.0.1:{port}", tmp_path, rules) as prometheus,
        httpx.Client(base_url=server.api, timeout=20) as client,
    ):

        def scrapes() -> int:
            found = query(prometheus, 'count_over_time(up{job="antiphon"}[5m])')
            return int(found[0]["value"][1]) if found else 0

        for _ in range(3):
            create(client, model=MODEL, input=script({"say": "one two", "tick": 0.01}))
            client.post("/responses", json={"model": MODEL, "input": script({"fail": "gone"})})
            client.get("/responses/resp_none")
            seen = scrapes()
            wait_until(lambda seen=seen: scrapes() > seen)  # type: ignore[misc]
        shown = {
            title for title, expression in expressions() if query(prometheus, filled(expression))
        }
        assert shown >= CAUSED
        loaded = prometheus.get("/api/v1/rules").json()["data"]["groups"][0]["rules"]
        assert [rule["name"] for rule in loaded if rule["health"] == "err"] == []
        assert len(loaded) >= 10


def test_the_rule_for_failed_responses_fires(serve: Any, tmp_path: Path) -> None:
    port = free_port()
    text = (Path(__file__).parents[2] / "dashboards" / "alerts.yml").read_text()
    rules = tmp_path / "rules.yml"
    rules.write_text(text.replace("for: 5m", "for: 1s"))
    with (
        serve(metrics=True, admin_port=port) as server,
        scraping(f"127.0.0.1:{port}", tmp_path, rules) as prometheus,
        httpx.Client(base_url=server.api, timeout=20) as client,
    ):

        def firing() -> set[str]:
            body = {"model": MODEL, "input": script({"fail": "gone"})}
            client.post("/responses", json=body)
            alerts = prometheus.get("/api/v1/alerts").json()["data"]["alerts"]
            return {each["labels"]["alertname"] for each in alerts if each["state"] == "firing"}

        wait_until(lambda: "AntiphonResponsesFail" in firing(), 60)
