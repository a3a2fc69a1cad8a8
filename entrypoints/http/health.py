"""`/health/live`: the process answers. `/health/ready`: a request would be served."""

from __future__ import annotations

from litestar import Controller, get
from litestar.di import NamedDependency

from antiphon.application.models import Models


class Health(Controller):
    path = "/health"
    tags = ("Health",)

    @get("/live", summary="Is the process alive?")
    async def live(self) -> dict[str, str]:
        return {"status": "live"}

    @get("/ready", summary="Would a request be served?")
    async def ready(self, models: NamedDependency[Models]) -> dict[str, str]:
        """503 once an engine is dead: nothing but a restart helps then."""
        await models.check()
        return {"status": "ready"}
