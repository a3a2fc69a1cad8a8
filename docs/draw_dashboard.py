"""Write dashboards/antiphon.json, a dashboard for Grafana, from the table below: `make docs`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

PAGE = Path(__file__).parents[1] / "dashboards" / "antiphon.json"
RATE = "$__rate_interval"
SERVERS = 'instance=~"$instance"'
COLUMNS = 24
HEIGHT = 8


class Panel(NamedTuple):
    """A chart. `queries` are pairs of a legend and an expression in PromQL."""

    title: str
    unit: str
    queries: Sequence[tuple[str, str]]
    description: str = ""


def rate(metric: str, *labels: str, where: str = "") -> str:
    """Return the rate of a counter, by some labels."""
    return f"sum by ({', '.join(labels)}) (rate({metric}{{{_and(where)}}}[{RATE}]))"


def share(part: str, whole: str) -> str:
    return f"{part} / ({whole} > 0)"


def quantile(q: float, metric: str, *labels: str, where: str = "") -> str:
    """Return a quantile of a histogram, by some labels."""
    by = ", ".join(("le", *labels))
    return (
        f"histogram_quantile({q}, sum by ({by}) (rate({metric}_bucket{{{_and(where)}}}[{RATE}])))"
    )


def now(metric: str, *labels: str) -> str:
    return f"sum by ({', '.join(labels)}) ({metric}{{{SERVERS}}})"


def _and(where: str) -> str:
    return f"{SERVERS}, {where}" if where else SERVERS


def _quantiles(metric: str, label: str, where: str = "") -> list[tuple[str, str]]:
    return [
        (f"{{{{{label}}}}} p{q * 100:g}", quantile(q, metric, label, where=where))
        for q in (0.5, 0.95)
    ]


ROWS: Sequence[tuple[str, Sequence[Panel]]] = (
    (
        "What clients see",
        (
            Panel(
                "Time to the first token",
                "s",
                _quantiles("antiphon_response_time_to_first_token_seconds", "model"),
                "From the request, its wait included. Reasoning counts.",
            ),
            Panel(
                "Time to the first visible text",
                "s",
                _quantiles("antiphon_response_time_to_first_text_seconds", "model"),
            ),
            Panel(
                "Time between tokens",
                "s",
                _quantiles("gen_ai_server_time_per_output_token_seconds", "gen_ai_response_model"),
            ),
            Panel(
                "Duration of responses",
                "s",
                _quantiles("antiphon_response_duration_seconds", "model"),
            ),
        ),
    ),
    (
        "Load",
        (
            Panel(
                "Running and waiting",
                "short",
                (
                    ("running {{mode}}", now("antiphon_responses_running", "mode")),
                    ("waiting for {{queue}}", now("antiphon_requests_waiting", "queue")),
                    ("in the store", f"max(antiphon_responses_waiting{{{SERVERS}}})"),
                ),
                "The store counts background responses that wait for any server.",
            ),
            Panel(
                "What responses are doing",
                "short",
                (("{{phase}}", now("antiphon_responses_by_phase", "phase")),),
            ),
            Panel(
                "Tokens a second",
                "short",
                (("{{model}} {{type}}", rate("antiphon_tokens_total", "model", "type")),),
            ),
            Panel(
                "Share of the prompt from the cache",
                "percentunit",
                (
                    (
                        "{{model}}",
                        share(
                            rate("antiphon_tokens_total", "model", where='type="cached"'),
                            rate("antiphon_tokens_total", "model", where='type="input"'),
                        ),
                    ),
                ),
            ),
            Panel(
                "Wait before a run",
                "s",
                _quantiles("antiphon_response_queue_seconds", "mode"),
            ),
            Panel(
                "Oldest response",
                "s",
                (("{{instance}}", f"antiphon_oldest_response_age_seconds{{{SERVERS}}}"),),
            ),
        ),
    ),
    (
        "Errors",
        (
            Panel(
                "Responses that did not complete",
                "reqps",
                (
                    (
                        "{{status}} {{reason}}",
                        rate(
                            "antiphon_responses_total",
                            "status",
                            "reason",
                            where='status!="completed"',
                        ),
                    ),
                ),
            ),
            Panel(
                "Requests with an error",
                "reqps",
                (
                    (
                        "{{status}} {{route}}",
                        rate(
                            "antiphon_http_requests_total",
                            "status",
                            "route",
                            where='status=~"[45].."',
                        ),
                    ),
                ),
                "429: a limit of a key, or a full queue. 499: the client left. 503: no room.",
            ),
            Panel(
                "Models that are not ready",
                "short",
                (
                    (
                        "{{model}} {{state}}",
                        'sum by (model, state) (antiphon_model_state{instance=~"$instance", '
                        'state!="ok"})',
                    ),
                ),
            ),
            Panel(
                "Repairs and takeovers",
                "short",
                (
                    ("repaired {{model}}", rate("antiphon_parser_repairs_total", "model")),
                    ("taken over", rate("antiphon_responses_taken_over_total")),
                    ("store writes failed", rate("antiphon_store_write_failures_total")),
                ),
            ),
        ),
    ),
    (
        "Tools",
        (
            Panel(
                "Slowest tools",
                "s",
                (
                    (
                        "{{type}} {{server}} {{name}}",
                        "topk(8, "
                        + quantile(
                            0.95, "antiphon_tool_call_duration_seconds", "type", "server", "name"
                        )
                        + ")",
                    ),
                ),
            ),
            Panel(
                "Calls that did not work",
                "reqps",
                (
                    (
                        "{{type}} {{server}} {{name}} {{result}}",
                        rate(
                            "antiphon_tool_calls_total",
                            "type",
                            "server",
                            "name",
                            "result",
                            where='result!="ok"',
                        ),
                    ),
                ),
            ),
            Panel(
                "Programs",
                "reqps",
                (("{{result}}", rate("antiphon_programs_total", "result")),),
            ),
            Panel(
                "Verdicts of guards that let a text not pass",
                "reqps",
                (
                    (
                        "{{guard}} {{place}} {{verdict}}",
                        rate(
                            "antiphon_guard_verdicts_total",
                            "guard",
                            "place",
                            "verdict",
                            where='verdict!="pass"',
                        ),
                    ),
                ),
            ),
        ),
    ),
    (
        "Server",
        (
            Panel(
                "Slowest operations of the store",
                "s",
                (
                    (
                        "{{operation}}",
                        "topk(8, "
                        + quantile(0.95, "antiphon_store_operation_duration_seconds", "operation")
                        + ")",
                    ),
                ),
            ),
            Panel(
                "Store operations that failed",
                "ops",
                (
                    (
                        "{{operation}}",
                        rate(
                            "antiphon_store_operation_duration_seconds_count",
                            "operation",
                            where='result="error"',
                        ),
                    ),
                ),
            ),
            Panel(
                "Webhooks",
                "reqps",
                (("{{result}}", rate("antiphon_webhook_attempts_total", "result")),),
            ),
            Panel(
                "Readers",
                "short",
                (
                    ("streams", now("antiphon_streams_open")),
                    ("websockets", now("antiphon_websockets_open")),
                    ("connections", now("antiphon_connections_open")),
                    ("came back, a second", rate("antiphon_event_readers_total", "start")),
                ),
            ),
            Panel(
                "Not read by clients yet",
                "bytes",
                (("{{connection}}", now("antiphon_unsent_bytes", "connection")),),
            ),
            Panel(
                "Bytes in work", "bytes", (("{{subject}}", now("antiphon_work_bytes", "subject")),)
            ),
            Panel(
                "Memory and processor",
                "short",
                (
                    ("bytes {{instance}}", f"process_resident_memory_bytes{{{SERVERS}}}"),
                    ("cores {{instance}}", rate("process_cpu_seconds_total", "instance")),
                ),
            ),
        ),
    ),
)


def page() -> str:
    dashboard = {
        "title": "Antiphon",
        "uid": "antiphon",
        "description": "Responses, models, tools and stores of Antiphon servers.",
        "tags": ["antiphon", "llm"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_datasource(), _instance()]},
        "panels": list(_panels()),
    }
    return json.dumps(dashboard, indent=2) + "\n"


def _datasource() -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
    }


def _instance() -> dict[str, Any]:
    return {
        "name": "instance",
        "label": "Server",
        "type": "query",
        "datasource": _SOURCE,
        "query": "label_values(antiphon_server_info, instance)",
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _panels() -> Iterator[dict[str, Any]]:
    ids = count(1)
    top = 0
    for title, panels in ROWS:
        place = {"x": 0, "y": top, "w": COLUMNS, "h": 1}
        yield {"id": next(ids), "type": "row", "title": title, "gridPos": place, "panels": []}
        top += 1
        for position, panel in enumerate(panels):
            column = position % 2 * (COLUMNS // 2)
            place = {"x": column, "y": top, "w": COLUMNS // 2, "h": HEIGHT}
            yield _panel(panel, next(ids), place)
            if column or position == len(panels) - 1:
                top += HEIGHT


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"tooltip": {"mode": "multi"}, "legend": {"displayMode": "list"}},
        "targets": [
            {"refId": chr(ord("A") + position), "legendFormat": legend, "expr": expression}
            for position, (legend, expression) in enumerate(panel.queries)
        ],
    }


_SOURCE = {"type": "prometheus", "uid": "${datasource}"}

if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
