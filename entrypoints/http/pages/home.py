"""`GET /`: a page about this server for browsers, and a line of JSON for other clients."""

from __future__ import annotations

import msgspec
from litestar import Response, get
from litestar.di import NamedDependency

from antiphon import __version__
from antiphon.application.model.models import Models
from antiphon.entrypoints.http import pages
from antiphon.entrypoints.http.api.requests import HttpRequest, header, response_headers
from antiphon.entrypoints.http.pages import openapi
from antiphon.entrypoints.http.pages.first_request import curl_line, python_lines
from antiphon.entrypoints.http.pages.signposts import START

MODEL_PLACEHOLDER = "MODEL"
"""The model in the example request, on a server that shows its models only to clients with keys."""


@get("/", include_in_schema=False)
async def home(
    request: HttpRequest,
    models: NamedDependency[Models],
    needs_keys: NamedDependency[bool],
    has_console: NamedDependency[bool],
) -> Response[bytes]:
    # Claude Code and monitors ask here whether a server is there.
    if "text/html" not in header(request, b"accept"):
        told = msgspec.json.encode({"name": "antiphon", "version": __version__, "message": START})
        return Response(
            told,
            media_type="application/json",
            headers={"vary": "accept", **response_headers(request)},
        )
    names = [] if needs_keys else list(models.by_name)
    url = f"{request.scope['scheme']}://{header(request, b'host') or 'localhost'}"
    model = names[0] if names else MODEL_PLACEHOLDER
    page = pages.render(
        "home.html",
        version=__version__,
        models=names,
        needs_keys=needs_keys,
        has_console=has_console,
        base_url=f"{url}/v1",
        schema=openapi.PATH,
        curl=curl_line(url, model, needs_key=needs_keys),
        python=python_lines(url, model, needs_key=needs_keys),
    )
    return Response(
        page,
        media_type="text/html",
        headers={**pages.HEADERS, "vary": "accept", **response_headers(request)},
    )
