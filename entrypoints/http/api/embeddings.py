"""`/v1/embeddings`: vectors of texts."""

from __future__ import annotations

from array import array
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import msgspec
from litestar import Controller, handlers
from litestar.di import NamedDependency
from litestar.types import ASGIApp

from antiphon.domain.retrieval.embeddings import NewEmbeddings
from antiphon.entrypoints.http.api.json_bodies import reading_json
from antiphon.entrypoints.http.api.requests import HttpRequest, caller_of, response_headers
from antiphon.entrypoints.http.api.services import Services
from antiphon.entrypoints.http.pages.openapi import operation
from antiphon.entrypoints.http.wire.asgi_responses import JsonResponse

_encode = msgspec.json.Encoder().encode


class EmbeddingRoutes(Controller):
    """The handler decodes, calls one service, and encodes."""

    path = "/v1/embeddings"
    tags = ("Embeddings",)

    @handlers.post(
        summary="Create embeddings",
        operation_class=operation("The vectors.", takes="NewEmbeddings", gives="EmbeddingList"),
        status_code=200,
    )
    async def create(self, request: HttpRequest, services: NamedDependency[Services]) -> ASGIApp:
        """Returns a vector for each input, in their order."""
        async with reading_json(request, NewEmbeddings, services.options) as decoded:
            asked = decoded.request
            encode = _as_base64 if asked.encoding_format == "base64" else _as_numbers
            made = await services.embed(caller_of(request), asked, encode)
        usage = {"prompt_tokens": made.tokens, "total_tokens": made.tokens}
        body = b'{"object":"list","data":[%b],"model":%b,"usage":%b}' % (
            b",".join(made.parts),
            _encode(asked.model),
            _encode(usage),
        )
        return JsonResponse(body, response_headers(request, decoded.ignored, made.rate_limits))


def _as_numbers(vectors: Sequence[bytes], first: int) -> bytes:
    return _entries([array("f", each).tolist() for each in vectors], first)


def _as_base64(vectors: Sequence[bytes], first: int) -> bytes:
    return _entries([b64encode(each).decode() for each in vectors], first)


def _entries(vectors: Sequence[Any], first: int) -> bytes:
    """Return the entries of the list, without its brackets."""
    entries = [
        {"object": "embedding", "index": index, "embedding": vector}
        for index, vector in enumerate(vectors, first)
    ]
    return _encode(entries)[1:-1]
