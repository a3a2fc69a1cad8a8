"""`GET /console/state`: what the server is doing now, and what the caller's tenant has here.

Of other tenants it tells only how many of their runs there are, together.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from litestar import Response, get
from litestar.di import NamedDependency
from msgspec import Struct

from antiphon import __version__
from antiphon.application.model.describe_models import DescribeModels, ModelDescription
from antiphon.application.ports import Store
from antiphon.application.responses.admission import Admission
from antiphon.application.runs.active_runs import ActiveRuns
from antiphon.application.runs.readiness import CheckReady, Readiness
from antiphon.application.websocket.open_websockets import OpenWebSockets
from antiphon.domain.callers import Caller
from antiphon.entrypoints.http.connections import Connections
from antiphon.entrypoints.http.console.pages import console_headers
from antiphon.entrypoints.http.keepalive import KeepAlive
from antiphon.entrypoints.http.requests import HttpRequest, caller_of


class ServerState(Struct, frozen=True, kw_only=True):
    """What the endpoint reads. `started_at` is in seconds since the epoch."""

    owner: str
    store_kind: str
    started_at: int
    store: Store
    runs: ActiveRuns
    admission: Admission
    check_ready: CheckReady
    describe_models: DescribeModels
    streams: KeepAlive
    websockets: OpenWebSockets
    connections: Connections

    async def read(self, caller: Caller) -> Mapping[str, Any]:
        """Return the state as the caller may see it. Raises: StoreError."""
        readiness, models, usage, queued = await asyncio.gather(
            self.check_ready(),
            self.describe_models(caller.policy),
            self.store.usage(caller.tenant),
            self.store.count_waiting(),
        )
        return {
            "server": self._server(readiness),
            "models": [_model(model, readiness) for model in models],
            "runs": {**self._runs(), "queued": queued},
            "connections": {
                "open": len(self.connections),
                "streams": len(self.streams),
                "websockets": len(self.websockets),
            },
            "tenant": {
                "name": caller.tenant,
                "key": caller.key_name,
                "responses": usage.responses,
                "bytes": usage.bytes,
                "waiting": usage.waiting,
                "limits": dict(caller.policy.limits),
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
        }

    def _runs(self) -> Mapping[str, Any]:
        received_at = self.runs.oldest_received_at
        return {
            "running": len(self.runs),
            "phases": self.runs.count_phases(),
            "background": self.runs.background,
            "background_slots": self.runs.background + self.runs.free_slots,
            "waiting": self.admission.runs.waiting,
            "waiting_for_tokens": self.admission.prompt_tokens.waiting,
            "oldest_seconds": None if received_at is None else time.time() - received_at,
        }


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
