"""The seeds of several answers to one prompt."""

from __future__ import annotations

from msgspec.structs import replace

from antiphon.domain.requests.request import CreateResponse


def with_seed(request: CreateResponse, number: int) -> CreateResponse:
    """Return the request of one of several answers, which differ though a seed was sent."""
    if request.seed is None or not number:
        return request
    return replace(request, seed=request.seed ^ number)
