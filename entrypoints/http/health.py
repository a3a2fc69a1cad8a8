"""Health checks for Kubernetes probes. `/livez`: the process responds. `/readyz`: the server can
handle requests. `/health/live` and `/health/ready` are their older names.
"""

from __future__ import annotations

from litestar import Controller, Response, get
from litestar.di import NamedDependency

from antiphon.application.runs.readiness import CheckReady
from antiphon.entrypoints.http.openapi import operation


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
        ["/readyz", "/health/ready"],
        summary="Check readiness",
        operation_class=operation(
            "The server is ready.",
            gives="Readiness",
            or_else="The server is not ready.",
            needs_key=False,
        ),
    )
    async def readyz(self, check_ready: NamedDependency[CheckReady]) -> Response[dict[str, str]]:
        """Returns 503 if the server is stopping, the store is not writable, or an engine is dead.

        The body names the reason.
        """
        readiness = await check_ready()
        body = {
            "status": "ready" if readiness.is_ready else "not ready",
            "server": readiness.server,
            "store": readiness.store,
            "engine": readiness.engine,
        }
        return Response(body, status_code=200 if readiness.is_ready else 503)
