"""`GET /console/activity`: figures of the caller's newest responses, by time and by model, key or
door. A tenant sees its own."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Response, get
from litestar.di import NamedDependency
from litestar.params import FromQuery

from antiphon.domain.responses.activity import Grouping, Span
from antiphon.entrypoints.http.api.parameters import QueryText
from antiphon.entrypoints.http.api.requests import HttpRequest, tenant_of
from antiphon.entrypoints.http.api.services import Services
from antiphon.entrypoints.http.console.pages import console_headers


@get("/console/activity", include_in_schema=False)
async def console_activity(
    request: HttpRequest,
    services: NamedDependency[Services],
    span: FromQuery[Span] = "hour",
    by: FromQuery[Grouping] = "model",
    only: QueryText = None,
) -> Response[dict[str, Any]]:
    report = await services.activity(tenant_of(request), span, by, only)
    return Response(msgspec.to_builtins(report), headers=console_headers(request))
