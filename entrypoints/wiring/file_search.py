"""Build what indexes files for file search, and what makes their vectors."""

from __future__ import annotations

from antiphon.application.ports import Embeddings, FileStore, ReadPdf, VectorStores
from antiphon.application.resources.indexing import IndexFiles
from antiphon.entrypoints.settings import Settings
from antiphon.entrypoints.settings.options import is_own_class
from antiphon.entrypoints.wiring.fetching import egress
from antiphon.entrypoints.wiring.own_classes import Section
from antiphon.entrypoints.wiring.own_ports import load_port


def embeddings(settings: Settings) -> Embeddings | None:
    """Return the embeddings client, or None to search by words only."""
    engine = settings.embeddings
    if is_own_class(settings.embedding_engine):
        section = Section("embeddings", engine)
        own: Embeddings = load_port(settings, "embedding_engine", Embeddings, section=section)
        return own
    if engine.url is None:
        return None
    from antiphon.adapters.embeddings import HttpEmbeddings

    return HttpEmbeddings(
        engine.url,
        model=engine.model,
        api_key=engine.api_key,
        timeout_s=engine.timeout_s,
        certificate=egress(settings).certificate,
    )


def index_files(
    settings: Settings,
    vector_stores: VectorStores,
    files: FileStore,
    read_pdf: ReadPdf,
    embeddings: Embeddings | None,
) -> IndexFiles:
    quota_bytes = settings.keep_vector_bytes
    return IndexFiles(vector_stores, files, read_pdf, embeddings, quota_bytes=quota_bytes)
