"""`GET /console/threads/{id}`: the responses before and after a response, in short."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Response, get
from litestar.di import NamedDependency

from antiphon.entrypoints.http.api.parameters import PathId
from antiphon.entrypoints.http.api.requests import HttpRequest, tenant_of
from antiphon.entrypoints.http.api.services import Services
from antiphon.entrypoints.http.console.pages import console_headers


@get("/console/threads/{response_id:str}", include_in_schema=False)
async def console_thread(
    request: HttpRequest, services: NamedDependency[Services], response_id: PathId
) -> Response[dict[str, Any]]:
    thread = await services.thread(tenant_of(request), response_id)
    return Response(msgspec.to_builtins(thread), headers=console_headers(request))
