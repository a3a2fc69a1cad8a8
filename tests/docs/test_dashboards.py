"""The dashboard and the alert rules name metrics and labels that the server has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator

import pytest
import yaml
from tests.docs.reader import ROOT

from antiphon.application.telemetry.instruments import INSTRUMENTS

FOLDER = ROOT / "dashboards"
SUFFIXES = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
KNOWN = {
    each.exposed_name + suffix: {label.replace(".", "_") for label in each.labels}
    for each in INSTRUMENTS
    for suffix in SUFFIXES[each.kind]
} | {"process_resident_memory_bytes": set(), "process_cpu_seconds_total": set()}
ADDED_LABELS = {"instance", "le"}
"""By Prometheus, and of each bucket."""

_METRIC = re.compile(r"\b(?:antiphon|gen_ai|process|vllm)_\w+(?=[\[{ )])|\bvllm:\w+")
_GROUPED = re.compile(r"\bby \(([^)]*)\)")
_MATCHED = re.compile(r"\b(\w+)\s*(?:=~|!~|!=|=)\s*\"")


def expressions() -> Iterator[tuple[str, str]]:
    """Yield the title and the text of each expression of the dashboard and of the rules."""
    for panel in json.loads((FOLDER / "antiphon.json").read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]


def metrics_in(expression: str) -> set[str]:
    without_groups = _GROUPED.sub("", expression)
    return set(_METRIC.findall(without_groups))


@pytest.mark.parametrize(("title", "expression"), tuple(expressions()))
def test_an_expression_names_metrics_and_labels_that_exist(title: str, expression: str) -> None:
    metrics = metrics_in(expression)
    assert metrics
    assert metrics <= KNOWN.keys()
    labels = ADDED_LABELS.union(*(KNOWN[name] for name in metrics))
    grouped = re.findall(r"\w+", " ".join(_GROUPED.findall(expression)))
    assert {*grouped} | set(_MATCHED.findall(expression)) <= labels


def test_a_name_that_the_server_does_not_have_is_found() -> None:
    assert metrics_in('sum by (antiphon_x) (rate(antiphon_gone_total{a="b"}[5m]))') == {
        "antiphon_gone_total"
    }


def test_every_alert_says_what_to_do() -> None:
    [group] = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]:
        assert set(rule["annotations"]) == {"summary", "action"}
        assert set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))) <= {
            "instance",
            *(label for name in metrics_in(rule["expr"]) for label in KNOWN[name]),
        }


@pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool here")
def test_prometheus_reads_the_rules() -> None:
    checked = subprocess.run(
        ["promtool", "check", "rules", str(FOLDER / "alerts.yml")],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert checked.returncode == 0, checked.stderr
