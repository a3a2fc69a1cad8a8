"""Build what shows a model the files and pictures of its input."""

from __future__ import annotations

from antiphon.application.input.media import LoadMedia, MediaLimits
from antiphon.application.input.show_items import ShowItems
from antiphon.application.ports import Fetcher, FileStore, ReadPdf, Unseal
from antiphon.entrypoints.settings import Settings


def show_items(
    settings: Settings, files: FileStore, fetcher: Fetcher, read_pdf: ReadPdf, *, unseal: Unseal
) -> ShowItems:
    limits = MediaLimits(
        count=settings.max_media,
        max_bytes=settings.max_media_bytes,
        max_pixels=settings.max_image_pixels,
    )
    return ShowItems(
        LoadMedia(files, fetcher, read_pdf, limits=limits),
        unseal=unseal,
        max_output_chars=settings.tools.shown_chars,
    )
