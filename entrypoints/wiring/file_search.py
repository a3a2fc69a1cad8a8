"""Build the embeddings client for file search."""

from __future__ import annotations

from antiphon.application.ports import Embeddings
from antiphon.entrypoints.settings import Settings


def embeddings(settings: Settings) -> Embeddings | None:
    """Return the embeddings client, or None to search by words only."""
    engine = settings.embeddings
    if engine.url is None:
        return None
    from antiphon.adapters.embeddings import HttpEmbeddings

    return HttpEmbeddings(
        engine.url, engine.model, api_key=engine.api_key, timeout_s=engine.timeout_s
    )
