"""What searches and reads the web for models, as the settings have it."""

from __future__ import annotations

from antiphon.application.ports import ReadPdf, Web
from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.settings import Settings


def web(settings: Settings, read_pdf: ReadPdf) -> Web | None:
    """Return the web, None where it is not asked for. Raises: SettingsError."""
    if settings.web_search == "off":
        return None
    return _corpus(settings, read_pdf)


def _corpus(settings: Settings, read_pdf: ReadPdf) -> Web:
    from antiphon.adapters.web.corpus import CorpusWeb
    from antiphon.adapters.web.reading import PageReader

    given = settings.web
    if given.folder is None:
        raise SettingsError("The web search corpus needs web.folder: the folder of its pages.")
    return CorpusWeb(
        given.folder,
        PageReader(read_pdf),
        base_url=given.folder_url,
        most=given.results,
        max_bytes=given.max_page_kb * 1024,
        timeout_s=given.timeout_s,
    )
