"""How a setting is explained, and the groups of `antiphon serve --help`."""

from __future__ import annotations

from typing import Any

from msgspec import Meta

SERVED = "What is served"
KEPT = "What is kept"
BACKGROUND = "What runs in the background"
ADDRESS = "Where it listens"
ACCESS = "Who may ask"
REQUESTS = "What a request may be"
STREAMS = "Streams"
LOGS = "Logs and errors"
WEBHOOKS = "Webhooks"
FETCHED = "What is fetched"
TOOLS = "Tools that the server runs"
CODE = "The code interpreter"
WEB = "Web search"
FILE_SEARCH = "File search"
SCRIPTED = "The scripted engine"


def about(
    group: str,
    text: str,
    *,
    allowed: str = "",
    shown_default: str = "",
    is_secret: bool = False,
    **limits: Any,
) -> Meta:
    """Explain a setting; `allowed` and `shown_default` where type and default do not say it.

    No sentence repeats a value that `is_secret`.
    """
    extra = {
        "group": group,
        "allowed": allowed,
        "shown_default": shown_default,
        "is_secret": is_secret,
    }
    return Meta(description=text, extra=extra, **limits)
