"""What turns texts into vectors."""

from __future__ import annotations

from antiphon.application.ports import (
    Embeddings,
)
from antiphon.entrypoints.settings import Settings


def embeddings(settings: Settings) -> Embeddings | None:
    """Return what makes vectors, None where texts are searched by words alone."""
    engine = settings.embeddings
    if engine.url is None:
        return None
    from antiphon.adapters.embeddings import HttpEmbeddings

    return HttpEmbeddings(
        engine.url, engine.model, api_key=engine.api_key, timeout_s=engine.timeout_s
    )
