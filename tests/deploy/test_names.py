"""What the files of deploy/ name is there: settings, options, metrics, headers and paths."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from litestar.handlers import HTTPRouteHandler
from tests.deploy.tools import DEPLOY, ROOT
from tests.docs.test_dashboards import KNOWN as METRICS

from antiphon.domain.access.rights import METRICS_PATH
from antiphon.entrypoints.cli import app
from antiphon.entrypoints.http.access.trusted_proxy import SECRET_HEADER
from antiphon.entrypoints.http.api.health import Health
from antiphon.entrypoints.http.relay.relayed_requests import HEADER as RELAY_HEADER
from antiphon.entrypoints.server.lifetime import LEAVE_S
from antiphon.entrypoints.server.serve import STREAM_END_S
from antiphon.entrypoints.settings import CONFIG_VARIABLE, SETTINGS, Settings, TrustedProxy, load

FILES = tuple(sorted(path for path in DEPLOY.rglob("*") if path.is_file()))
VARIABLES = {each.variable for each in SETTINGS.values()} | {CONFIG_VARIABLE}
HEADERS = {TrustedProxy().tenant_header, SECRET_HEADER.decode(), RELAY_HEADER}
"""By which servers and proxies vouch for a request."""
PATHS = {
    path
    for handler in vars(Health).values()
    if isinstance(handler, HTTPRouteHandler)
    for path in handler.paths
} | {METRICS_PATH}

_VARIABLE = re.compile(r"\bANTIPHON_[A-Z0-9_]+")
_SETTING = re.compile(r"(?<![\w.])[a-z]+(?:_[a-z]+)*_(?:s|bytes)\b(?!\w)")
_METRIC = re.compile(r"(?<![$\w])(?:antiphon|gen_ai)_\w+")
_HEADER = re.compile(r"\bx-antiphon-[a-z-]*[a-z]")
_PATH = re.compile(r"(?:path: |health_uri |8000'? ?\+? ?'?)(/[a-z]+)\b(?!/)")
_COMMAND = re.compile(r"\bantiphon (?P<words>(?:serve|keys create)\b[^`\n]*)")
_OPTION = re.compile(r"(?<!\S)--[a-z-]+")


def name_of(path: Path) -> str:
    return str(path.relative_to(DEPLOY))


def options_of(command: str) -> set[str]:
    node: Any = app
    for word in command.split():
        if word.startswith("-") or word not in getattr(node, "commands", {}):
            break
        node = node.commands[word]
    return {text for each in node.params for text in (*each.opts, *each.secondary_opts)}


def unknown_names(text: str) -> Iterator[str]:
    yield from set(_VARIABLE.findall(text)) - VARIABLES
    yield from set(_METRIC.findall(text)) - METRICS.keys()
    yield from set(_HEADER.findall(text)) - HEADERS
    yield from set(_PATH.findall(text)) - PATHS - {"/health", "/tmp"}
    for comment in (line for line in text.splitlines() if line.lstrip().startswith("#")):
        yield from set(_SETTING.findall(comment)) - SETTINGS.keys()
    for command in _COMMAND.finditer(text):
        yield from set(_OPTION.findall(command["words"])) - options_of(command["words"])


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_file_names_only_what_there_is(path: Path) -> None:
    assert list(unknown_names(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "text",
    [
        "ANTIPHON_GRACEFUL_SHUTDOWN: 5",
        "metric: {name: antiphon_streams}",
        "proxy_set_header x-antiphon-user $user;",
        "httpGet: {path: /healthz, port: http}",
        "health_uri /ready",
        "# drain_s is too short",
        "ExecStart=/opt/antiphon/bin/antiphon serve --prot 80",
        "antiphon keys create --label me",
    ],
)
def test_a_name_that_there_is_not_is_found(text: str) -> None:
    assert len(list(unknown_names(text))) == 1


@pytest.mark.parametrize("path", [path for path in FILES if path.suffix == ".toml"], ids=name_of)
def test_a_settings_file_is_valid(path: Path) -> None:
    assert load(path)


def test_the_settings_of_the_chart_are_valid(tmp_path: Path) -> None:
    values = yaml.safe_load((DEPLOY / "helm/antiphon/values.yaml").read_text())
    (tmp_path / "antiphon.toml").write_text(values["settings"])
    assert load(tmp_path / "antiphon.toml")


def test_a_service_manager_waits_longer_than_a_shutdown_takes() -> None:
    takes_s = Settings().graceful_shutdown_s + STREAM_END_S + LEAVE_S
    services = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text())["services"]
    unit = (DEPLOY / "systemd/antiphon.service").read_text()
    [unit_s] = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert float(services["antiphon"]["stop_grace_period"].removesuffix("s")) > takes_s
    assert float(unit_s) > takes_s


@pytest.mark.parametrize("name", ["nginx.conf", "Caddyfile", "envoy.yaml"])
def test_a_proxy_passes_on_no_header_that_vouches_for_a_request(name: str) -> None:
    text = (DEPLOY / "proxies" / name).read_text()
    assert {header for header in HEADERS if header not in text} == set()


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("nginx.conf", r"proxy_read_timeout (\d+)s;"),
        ("Caddyfile", r"(?:response_header|read)_timeout (\d+)s"),
        ("envoy.yaml", r"stream_idle_timeout: (\d+)s"),
    ],
)
def test_a_proxy_waits_longer_than_a_response_may_be_silent(name: str, pattern: str) -> None:
    found = re.findall(pattern, (DEPLOY / "proxies" / name).read_text())
    assert found
    assert all(float(each) > Settings().response_s > Settings().keepalive_s for each in found)


def test_the_image_gets_what_the_wheel_is_built_from() -> None:
    containerfile = (DEPLOY / "container/Containerfile").read_text()
    copied = {
        name.strip("/")
        for names in re.findall(r"^COPY (?!--from)(.+) \S+$", containerfile, re.MULTILINE)
        for name in names.split()
    }
    ignored = (ROOT / ".containerignore").read_text().splitlines()
    assert copied == {line[1:] for line in ignored if line.startswith("!")}
    assert (ROOT / ".dockerignore").read_text().splitlines() == ignored
