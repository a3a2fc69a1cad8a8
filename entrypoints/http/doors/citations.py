"""The pages that the texts of an answer cite."""

from __future__ import annotations

from typing import Any

import msgspec

from antiphon.domain.content import UrlCitation


def cited_page(annotation: Any) -> UrlCitation | None:
    """Return the page that an annotation cites; None for any other annotation."""
    if isinstance(annotation, dict) and annotation.get("type") == "url_citation":  # as stored
        annotation = msgspec.convert(annotation, UrlCitation)
    return annotation if isinstance(annotation, UrlCitation) else None
