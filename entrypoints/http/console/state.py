"""`GET /console/state`: what the server is doing now, and what the caller's tenant has here.

Of other tenants it tells only how many of their runs there are, together.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from litestar import Response, get
from litestar.di import NamedDependency
from msgspec import Struct

from antiphon import __version__
from antiphon.application.model.describe_models import DescribeModels, ModelDescription
from antiphon.application.ports import Store
from antiphon.application.resources.limits import EnforceLimits
from antiphon.application.resources.quotas import Quotas
from antiphon.application.responses.admission import Admission
from antiphon.application.runs.active_runs import ActiveRuns
from antiphon.application.runs.readiness import CheckReady, Readiness
from antiphon.application.support.bytes_in_work import BytesInWork
from antiphon.application.websocket.open_websockets import OpenWebSockets
from antiphon.domain.access.callers import Caller
from antiphon.entrypoints.http.api.requests import HttpRequest, caller_of
from antiphon.entrypoints.http.console.pages import console_headers
from antiphon.entrypoints.http.wire.connections import Connections
from antiphon.entrypoints.http.wire.sse import KeepAlive
from antiphon.entrypoints.process.peers import Peers

LOAD = "load"


class Load(Struct, frozen=True, kw_only=True):
    """The current activity of the server: of one process, or of all of its workers."""

    running: int
    phases: Mapping[str, int]
    background: int
    background_slots: int
    waiting: int
    waiting_for_tokens: int
    oldest_seconds: float | None
    open: int
    streams: int
    websockets: int
    work_bytes: Mapping[str, int]
    max_work_bytes: int


CONNECTIONS = ("open", "streams", "websockets")
MEMORY = ("work_bytes", "max_work_bytes")
RUNS = tuple(name for name in Load.__struct_fields__ if name not in (*CONNECTIONS, *MEMORY))
COUNTS = tuple(
    name
    for name in Load.__struct_fields__
    if name not in ("phases", "oldest_seconds", "work_bytes")
)
"""The fields that add up."""


class ServerState(Struct, frozen=True, kw_only=True):
    """The sources of the endpoint. `started_at` is in seconds since the epoch; the events of a
    finished response are kept for `keep_events_s`. `tool_labels` are those of the MCP servers that
    requests may name without a URL; a request may have `max_body_bytes` and so many images and
    files as `max_media` says.
    """

    owner: str
    store_kind: str
    started_at: int
    keep_events_s: float
    tool_labels: Sequence[str]
    max_body_bytes: int
    max_media: int
    quotas: Quotas
    limits: EnforceLimits
    store: Store
    runs: ActiveRuns
    admission: Admission
    check_ready: CheckReady
    describe_models: DescribeModels
    streams: KeepAlive
    websockets: OpenWebSockets
    connections: Connections
    bytes_in_work: BytesInWork
    peers: Peers | None = None

    def __post_init__(self) -> None:
        if self.peers is not None:
            self.peers.offer(LOAD, self._encoded_load)

    async def read(self, caller: Caller) -> Mapping[str, Any]:
        """Return the state as the caller may see it. Raises: StoreError."""
        load, readiness, models, usage, limits, queued = await asyncio.gather(
            self._whole_load(),
            self.check_ready(),
            self.describe_models(caller.policy),
            self.store.get_storage_usage(caller.tenant),
            self.limits.usage(caller),
            self.store.count_waiting_runs(),
        )
        return {
            "server": self._server(readiness),
            "requests": {
                "max_body_bytes": self.max_body_bytes,
                "max_media": self.max_media,
                "tool_labels": self.tool_labels if caller.policy.allows_tool("mcp") else (),
            },
            "models": [_model(model, readiness) for model in models],
            "runs": {**{name: getattr(load, name) for name in RUNS}, "queued": queued},
            "connections": {name: getattr(load, name) for name in CONNECTIONS},
            "memory": {name: getattr(load, name) for name in MEMORY},
            "tenant": {
                "name": caller.tenant,
                "key": caller.key_name,
                "responses": usage.responses,
                "bytes": usage.bytes,
                "waiting": usage.waiting,
                "max_responses": self.quotas.responses,
                "max_bytes": self.quotas.bytes,
                "limits": [
                    {"name": each.name, "limit": each.limit, "used": each.used} for each in limits
                ],
            },
        }

    def _server(self, readiness: Readiness) -> Mapping[str, Any]:
        return {
            "id": self.owner,
            "version": __version__,
            "started_at": self.started_at,
            "state": readiness.server,
            "engine": readiness.engine,
            "store": readiness.store,
            "store_kind": self.store_kind,
            "keep_events_s": self.keep_events_s,
        }

    async def _whole_load(self) -> Load:
        if self.peers is None:
            return self._load()
        answers = await self.peers.ask_all(LOAD)
        return _sum(msgspec.json.decode(answer, type=Load) for answer in answers.values())

    async def _encoded_load(self) -> bytes:
        return msgspec.json.encode(self._load())

    def _load(self) -> Load:
        received_at = self.runs.oldest_received_at
        return Load(
            running=len(self.runs),
            phases=self.runs.count_phases(),
            background=self.runs.background,
            background_slots=self.runs.background + self.runs.free_slots,
            waiting=self.admission.runs.waiting,
            waiting_for_tokens=self.admission.prompt_tokens.waiting,
            oldest_seconds=None if received_at is None else time.time() - received_at,
            open=len(self.connections),
            streams=len(self.streams),
            websockets=len(self.websockets),
            work_bytes=self.bytes_in_work.by_subject,
            max_work_bytes=self.bytes_in_work.max_bytes,
        )


def _sum(loads: Iterable[Load]) -> Load:
    """Return the load of all workers: sums, and the oldest of their runs."""
    all_loads = list(loads)
    phases: Counter[str] = Counter()
    work_bytes: Counter[str] = Counter()
    for load in all_loads:
        phases.update(load.phases)
        work_bytes.update(load.work_bytes)
    ages = [load.oldest_seconds for load in all_loads if load.oldest_seconds is not None]
    return Load(
        phases=phases,
        work_bytes=work_bytes,
        oldest_seconds=max(ages, default=None),
        **{name: sum(getattr(load, name) for load in all_loads) for name in COUNTS},
    )


def _model(model: ModelDescription, readiness: Readiness) -> Mapping[str, Any]:
    known = model.capabilities
    return {
        "names": model.names,
        "state": readiness.models.get(model.names[0], ""),
        "hosted_tools": model.hosted_tools,
        "context_length": known and known.context_length,
        "format": known and known.format_name,
        "efforts": known and known.efforts,
        "input_modalities": known and known.input_modalities,
    }


@get("/console/state", include_in_schema=False)
async def console_state(
    request: HttpRequest, server_state: NamedDependency[ServerState]
) -> Response[Mapping[str, Any]]:
    return Response(await server_state.read(caller_of(request)), headers=console_headers(request))
