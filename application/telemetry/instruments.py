"""Every metric that this server has, in one table; the reference is drawn from it.

Labels have few values, which operators choose and clients do not. Buckets are in seconds or tokens.
The `gen_ai.*` metrics have the names and buckets of the OpenTelemetry semantic conventions for
generative AI, as of version 1.41 (development).
"""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.application.ports import Instrument

SHORT_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
LONG_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900, 3600)
FIRST_S = (0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 0.75, 1, 1.5, 2.5, 5, 10, 20, 40, 80)

REQUESTS = Instrument(
    name="antiphon_http_requests",
    kind="counter",
    help="HTTP requests that have ended. The status 499 is a client that left before its answer.",
    labels=("method", "route", "status"),
)
FIRST_BYTE = Instrument(
    name="antiphon_http_time_to_first_byte",
    kind="histogram",
    help="From the head of a request to the head of its answer.",
    unit="seconds",
    labels=("route",),
    buckets=SHORT_S,
)

RESPONSES = Instrument(
    name="antiphon_responses",
    kind="counter",
    help="Responses that have ended. The reason is an error's code, or why one is incomplete. The "
    "door is the API that the client speaks.",
    labels=("model", "door", "status", "reason"),
)
RESPONSE_SECONDS = Instrument(
    name="antiphon_response_duration",
    kind="histogram",
    help="From the request of a response to its end, its tools included.",
    unit="seconds",
    labels=("model",),
    buckets=LONG_S,
)
QUEUE_SECONDS = Instrument(
    name="antiphon_response_queue",
    kind="histogram",
    help="From the request of a response until it may run.",
    unit="seconds",
    labels=("mode",),
    buckets=(*SHORT_S, 30, 60, 300, 900, 3600),
)
FIRST_TOKEN = Instrument(
    name="antiphon_response_time_to_first_token",
    kind="histogram",
    help="From the request of a response to its first token, reasoning included.",
    unit="seconds",
    labels=("model",),
    buckets=FIRST_S,
)
FIRST_TEXT = Instrument(
    name="antiphon_response_time_to_first_text",
    kind="histogram",
    help="From the request of a response to the first text that its reader sees.",
    unit="seconds",
    labels=("model",),
    buckets=FIRST_S,
)
GUARD_VERDICTS = Instrument(
    name="antiphon_guard_verdicts",
    kind="counter",
    help="Verdicts of guards: pass, replace, refuse, stop, or failed if one gave none.",
    labels=("guard", "place", "verdict"),
)
GUARD_SECONDS = Instrument(
    name="antiphon_guard",
    kind="counter",
    help="The time that guards have taken for their verdicts.",
    unit="seconds",
    labels=("guard", "place"),
)
TURNS = Instrument(
    name="antiphon_response_turns",
    kind="histogram",
    help="Turns of a response: runs of the model, with tools between them.",
    labels=("model",),
    buckets=(1, 2, 3, 4, 6, 8, 12, 16, 32, 64),
)
TOKENS = Instrument(
    name="antiphon_tokens",
    kind="counter",
    help="Tokens. cached is a part of input, reasoning a part of output.",
    labels=("model", "type"),
)
REPAIRS = Instrument(
    name="antiphon_parser_repairs",
    kind="counter",
    help="Turns whose output the parser had to repair.",
    labels=("model",),
)
TAKEOVERS = Instrument(
    name="antiphon_responses_taken_over",
    kind="counter",
    help="Responses that ended here after another server had begun them.",
)
STORE_FAILURES = Instrument(
    name="antiphon_store_write_failures",
    kind="counter",
    help="Writes of responses to the store that failed and were tried again.",
)
TOOL_CALLS = Instrument(
    name="antiphon_tool_calls",
    kind="counter",
    help="Calls of tools that this server runs. The name tools/list is the listing of an MCP "
    "server. Tools of requests have no name here.",
    labels=("type", "server", "name", "result"),
)
TOOL_SECONDS = Instrument(
    name="antiphon_tool_call_duration",
    kind="histogram",
    help="How long a call of a tool took, without its wait for a slot.",
    unit="seconds",
    labels=("type", "server", "name"),
    buckets=LONG_S,
)
PROGRAMS = Instrument(
    name="antiphon_programs",
    kind="counter",
    help="Programs of models that have ended: ok, or error for one that failed, reached a limit or "
    "could not go on.",
    labels=("model", "result"),
)
PROGRAM_CALLS = Instrument(
    name="antiphon_program_calls",
    kind="histogram",
    help="Calls of tools that a program has made by its end, those that clients answered included.",
    labels=("model",),
    buckets=(0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000),
)
TENANT_RESPONSES = Instrument(
    name="antiphon_tenant_responses",
    kind="counter",
    help="Responses of each tenant, with --metrics-tenants.",
    labels=("tenant", "status"),
)
TENANT_TOKENS = Instrument(
    name="antiphon_tenant_tokens",
    kind="counter",
    help="Tokens of each tenant, with --metrics-tenants.",
    labels=("tenant", "type"),
)

STORE_SECONDS = Instrument(
    name="antiphon_store_operation_duration",
    kind="histogram",
    help="How long the operations of the store take. The result error is a store that failed.",
    unit="seconds",
    labels=("operation", "result"),
    buckets=SHORT_S,
)
WEBHOOKS = Instrument(
    name="antiphon_webhook_attempts",
    kind="counter",
    help="Attempts to deliver a webhook. Each that fails is repeated for up to 72 hours.",
    labels=("result",),
)
WEBHOOK_SECONDS = Instrument(
    name="antiphon_webhook_attempt_duration",
    kind="histogram",
    help="How long an attempt to deliver a webhook took.",
    unit="seconds",
    buckets=SHORT_S,
)
READERS = Instrument(
    name="antiphon_event_readers",
    kind="counter",
    help="Readers of a response's stored events. The start resumed is a reader that has read "
    "before, and source says where the events are.",
    labels=("start", "source"),
)

RUNNING = Instrument(
    name="antiphon_responses_running",
    kind="gauge",
    help="Responses that run on this server now.",
    labels=("mode",),
)
PHASES = Instrument(
    name="antiphon_responses_by_phase",
    kind="gauge",
    help="Responses that run on this server now, by what they are doing.",
    labels=("phase",),
)
OLDEST = Instrument(
    name="antiphon_oldest_response_age",
    kind="gauge",
    help="The age of the oldest response that runs on this server; 0 if none does.",
    unit="seconds",
)
WAITING = Instrument(
    name="antiphon_requests_waiting",
    kind="gauge",
    help="Requests that wait on this server: for a run, or for room for their prompt.",
    labels=("queue",),
)
QUEUED = Instrument(
    name="antiphon_responses_waiting",
    kind="gauge",
    help="Background responses that wait in the store for any server.",
)
STREAMS = Instrument(
    name="antiphon_streams_open", kind="gauge", help="Streams that clients read now."
)
WEBSOCKETS = Instrument(name="antiphon_websockets_open", kind="gauge", help="Open WebSockets.")
CONNECTIONS = Instrument(
    name="antiphon_connections_open", kind="gauge", help="Open connections of clients."
)
UNSENT = Instrument(
    name="antiphon_unsent",
    kind="gauge",
    help="What clients have not read yet, of all connections and of the slowest.",
    unit="bytes",
    labels=("connection",),
)
WORK = Instrument(
    name="antiphon_work",
    kind="gauge",
    help="Large requests, histories, outputs and files that this server works on now.",
    unit="bytes",
    labels=("subject",),
)
MODEL_READY = Instrument(
    name="antiphon_model_state",
    kind="gauge",
    help="1 for the state that the model is in now: ok, starting, silent or unavailable.",
    labels=("model", "state"),
)
INFO = Instrument(
    name="antiphon_server_info",
    kind="gauge",
    help="Always 1; its labels tell the version, the store and the server's id.",
    labels=("version", "store", "server"),
)

_BELOW_100_MS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1)
_GEN_AI = ("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.response.model")
GEN_AI_REQUEST = Instrument(
    name="gen_ai.server.request.duration",
    kind="histogram",
    help="How long the model worked for a turn.",
    unit="seconds",
    labels=(*_GEN_AI, "error.type"),
    buckets=tuple(round(0.01 * 2**power, 2) for power in range(14)),
)
GEN_AI_FIRST_TOKEN = Instrument(
    name="gen_ai.server.time_to_first_token",
    kind="histogram",
    help="From the start of a turn to its first token.",
    unit="seconds",
    labels=_GEN_AI,
    buckets=(*_BELOW_100_MS, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10),
)
GEN_AI_PER_TOKEN = Instrument(
    name="gen_ai.server.time_per_output_token",
    kind="histogram",
    help="The mean time between the tokens of a turn, after the first one.",
    unit="seconds",
    labels=_GEN_AI,
    buckets=(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5),
)
GEN_AI_TOKENS = Instrument(
    name="gen_ai.client.token.usage",
    kind="histogram",
    help="Tokens of a turn.",
    labels=(*_GEN_AI, "gen_ai.token.type"),
    buckets=tuple(4**power for power in range(14)),
)

INSTRUMENTS: Sequence[Instrument] = tuple(
    value for value in list(globals().values()) if isinstance(value, Instrument)
)
