"""`/metrics`: what Prometheus reads, and what the HTTP layer counts for it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from litestar import Response, get
from litestar.di import NamedDependency
from litestar.exceptions import NotFoundException

from antiphon.application.ports import Meter
from antiphon.application.telemetry.instruments import FIRST_BYTE, REQUESTS
from antiphon.domain.access.rights import METRICS_PATH
from antiphon.entrypoints.http.api.requests import HttpRequest, header
from antiphon.entrypoints.http.request_log import EndedRequest, OnRequestEnd

Expose = Callable[[str], Awaitable[tuple[bytes, str]]]
"""Returns the metrics as text, and its content type, for the value of an `Accept` header."""

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "WEBSOCKET"})
OTHER = "other"
"""The label of what clients made up."""

_TYPE = re.compile(r":\w+(?=})")


@get(METRICS_PATH, include_in_schema=False)
async def metrics_page(
    request: HttpRequest, expose: NamedDependency[Expose | None]
) -> Response[bytes]:
    """Return the metrics. Raises: NotFoundException if the server has none."""
    if expose is None:
        raise NotFoundException
    text, content_type = await expose(header(request, b"accept"))
    return Response(text, media_type=content_type)


def meter_requests(meter: Meter) -> OnRequestEnd:
    """Return what counts each request that has ended."""
    routes: dict[str, str] = {}

    def count(ended: EndedRequest) -> None:
        route = routes.get(ended.route)
        if route is None:
            route = routes[ended.route] = route_name(ended.route)
        method = ended.method if ended.method in METHODS else OTHER
        meter.add(REQUESTS, 1, (method, route, str(ended.status)))
        if ended.first_byte_seconds is not None:
            meter.observe(FIRST_BYTE, ended.first_byte_seconds, (route,))

    return count


def route_name(template: str) -> str:
    """Return a route without the types of its parameters.

    >>> route_name("/v1/responses/{response_id:str}"), route_name("")
    ('/v1/responses/{response_id}', 'other')
    """
    return _TYPE.sub("", template) or OTHER
