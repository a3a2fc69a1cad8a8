"""Health checks for Kubernetes probes. `/livez`: the process responds. `/readyz`: the server can
handle requests. `/health/live` and `/health/ready` are their older names; load balancers and load
generators ask for `/health`.
"""

from __future__ import annotations

from typing import Any

from litestar import Controller, Response, get
from litestar.di import NamedDependency

from antiphon.application.runs.readiness import CheckReady
from antiphon.entrypoints.http.pages.openapi import operation


class Health(Controller):
    path = "/"
    tags = ("Health",)

    @get(
        ["/livez", "/health/live"],
        summary="Check liveness",
        operation_class=operation("The process is running.", gives="Alive", needs_key=False),
    )
    async def live(self) -> dict[str, str]:
        return {"status": "live"}

    @get(
        ["/readyz", "/health", "/health/ready"],
        summary="Check readiness",
        operation_class=operation(
            "The server is ready.",
            gives="Readiness",
            or_else="The server is not ready.",
            needs_key=False,
        ),
    )
    async def readyz(self, check_ready: NamedDependency[CheckReady]) -> Response[dict[str, Any]]:
        """Returns 503 if the server is stopping, the store is not writable, a model is starting for
        the first time, or no model works. The body has the state of each part and model; `reasons`
        has more words on some.
        """
        readiness = await check_ready()
        body = {
            "status": "ready" if readiness.is_ready else "not ready",
            "server": readiness.server,
            "store": readiness.store,
            "files": readiness.files,
            "engine": readiness.engine,
            "models": dict(readiness.models),
        }
        if readiness.reasons:
            body["reasons"] = dict(readiness.reasons)
        return Response(body, status_code=200 if readiness.is_ready else 503)
