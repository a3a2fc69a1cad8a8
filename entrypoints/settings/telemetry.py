"""The settings of what an operator sees of the server: logs, metrics, traces, the console."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from antiphon.entrypoints.settings.about import CONSOLE, LOGS, METRICS, TRACES, about
from antiphon.entrypoints.settings.admission import AdmissionSettings

COLLECTOR_URL = r"^https?://[^/@\s?#]+(/[^@\s?#]*)?\Z"


class TelemetrySettings(AdmissionSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A Struct has one base, so each part of the settings extends the part before it."""

    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        about(LOGS, "The lowest level to log."),
    ] = "info"
    log_format: Annotated[
        Literal["text", "json"],
        about(LOGS, "How to log: lines for people, or a JSON object a line."),
    ] = "text"
    metrics: Annotated[
        bool,
        about(
            METRICS,
            "Serve metrics for Prometheus at /metrics, for API keys with the scope metrics "
            "(`antiphon keys create --scope metrics`). Needs the extra `metrics`.",
        ),
    ] = False
    metrics_tenants: Annotated[
        bool,
        about(METRICS, "Also count responses and tokens by tenant, for up to 500 tenants."),
    ] = False
    admin_port: Annotated[
        Annotated[int, Meta(ge=0, le=65_535)] | None,
        about(
            METRICS,
            "A second port, for /metrics and the health checks only. They need no key there, and "
            "/metrics is not on the port of the API then.",
            shown_default="none",
        ),
    ] = None
    admin_host: Annotated[
        str, about(METRICS, "The address to listen on for --admin-port.", min_length=1)
    ] = "127.0.0.1"
    otlp_endpoint: Annotated[
        Annotated[str, Meta(pattern=COLLECTOR_URL)] | None,
        about(
            TRACES,
            "The URL of an OpenTelemetry collector (OTLP over HTTP), for example "
            "http://127.0.0.1:4318. Each response is then exported as a trace. Needs the extra "
            "`traces`.",
            allowed="a URL without a user",
            shown_default="no traces",
        ),
    ] = None
    trace_sample_ratio: Annotated[
        float,
        about(
            TRACES,
            "The share of responses to trace, of those whose client sends no traceparent.",
            ge=0,
            le=1,
        ),
    ] = 1.0
    log_requests: Annotated[
        bool, about(LOGS, "Log what clients send. Your logs then contain their prompts.")
    ] = False
    log_outputs: Annotated[
        bool, about(LOGS, "Log model outputs. Your logs then contain their text.")
    ] = False
    audit_log: Annotated[
        Path | None,
        about(
            LOGS,
            "A file to which each call of a tool that the server runs is added as a line of JSON: "
            "who, which tool, a hash of the arguments, and how it ended. package.module:Class is "
            "your own audit log; write ./ before a file with such a name.",
            allowed="a path or package.module:Class",
            shown_default="none",
        ),
    ] = None
    error_stacks: Annotated[bool, about(LOGS, "Log the stack trace of every error response.")] = (
        False
    )
    loop_watchdog_ms: Annotated[
        int,
        about(
            LOGS,
            "Log a warning with a stack when the event loop has not run for this many "
            "milliseconds, so that every client waited. 0 switches this off.",
            ge=0,
        ),
    ] = 100
    console: Annotated[
        bool,
        about(
            CONSOLE,
            "Serve the console at /console: a page on which you see what the responses of your "
            "key's tenant do.",
        ),
    ] = True
    keep_traces: Annotated[
        Literal["off", "failed", "all"],
        about(
            LOGS,
            "Which responses to keep a trace of, for `antiphon explain` and `antiphon replay`: the "
            "rendered prompts and the raw text of the model. failed keeps those that do not "
            "complete. Traces are encrypted in the store, and deleted with their responses.",
        ),
    ] = "off"
    keep_trace_bytes: Annotated[
        int,
        about(
            LOGS,
            "Maximum bytes of a response's trace, before compression. Parts of a longer trace are "
            "left out, and its bundle says which.",
            ge=4096,
        ),
    ] = 4 * 1024 * 1024
