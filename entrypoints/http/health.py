"""`/livez`: the process answers. `/readyz`: a request would be served. Both are as probes of
Kubernetes ask for them; `/health/live` and `/health/ready` are their older names.
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
        summary="Is the process alive?",
        operation_class=operation("It is.", gives="Alive", needs_key=False),
    )
    async def live(self) -> dict[str, str]:
        return {"status": "live"}

    @get(
        ["/readyz", "/health/ready"],
        summary="Would a request be served?",
        operation_class=operation(
            "It would.", gives="Readiness", or_else="It would not, and why.", needs_key=False
        ),
    )
    async def readyz(self, check_ready: NamedDependency[CheckReady]) -> Response[dict[str, str]]:
        """503 while the server stops, its store cannot be written, or an engine is dead."""
        found = await check_ready()
        body = {
            "status": "ready" if found.is_ready else "not ready",
            "server": found.server,
            "store": found.store,
            "engine": found.engine,
        }
        return Response(body, status_code=200 if found.is_ready else 503)
