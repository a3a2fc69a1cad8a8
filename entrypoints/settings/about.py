"""The explanation of a setting, and the groups in `antiphon serve --help`."""

from __future__ import annotations

from typing import Any

from msgspec import Meta

BASE_URL = r"^https?://[^/@\s?#]+(/[^\s?#]*)?\Z"
"""The pattern of the address of another server: without user, query, and fragment."""

SECRET_WORD = r"^[!-~]+\Z"
"""The pattern of a key for another server."""

MODELS = "Models"
STORAGE = "Storage"
BACKGROUND = "Background responses"
NETWORK = "Network"
ACCESS = "API keys"
OIDC = "OpenID Connect"
TRUSTED_PROXY = "Trusted proxy"
REQUESTS = "Requests and limits"
ADMISSION = "Admission"
STREAMS = "Streams"
LOGS = "Logging"
METRICS = "Metrics"
TRACES = "Traces"
CONSOLE = "Console"
WEBHOOKS = "Webhooks"
FETCHING = "Fetching URLs"
OUTGOING = "Outgoing connections"
TOOLS = "Tools"
AGENTS = "Sub-agents"
CODE = "Code interpreter and shell"
WEB = "Web search"
FILE_SEARCH = "File search"
IMAGES = "Image generation"
GUARDS = "Guards"
SCRIPTED = "Scripted engine"

GROUPS = (
    MODELS,
    STORAGE,
    BACKGROUND,
    NETWORK,
    ACCESS,
    OIDC,
    TRUSTED_PROXY,
    REQUESTS,
    ADMISSION,
    STREAMS,
    WEBHOOKS,
    LOGS,
    METRICS,
    TRACES,
    CONSOLE,
    TOOLS,
    AGENTS,
    CODE,
    WEB,
    FETCHING,
    OUTGOING,
    FILE_SEARCH,
    IMAGES,
    GUARDS,
    SCRIPTED,
)
"""In the order in which help and documentation show them."""


def about(
    group: str,
    text: str,
    *,
    allowed: str = "",
    shown_default: str = "",
    is_secret: bool = False,
    **limits: Any,
) -> Meta:
    """Explain a setting. Pass `allowed` and `shown_default` if its type and default are not enough.

    No error message repeats a value that `is_secret`.
    """
    extra = {
        "group": group,
        "allowed": allowed,
        "shown_default": shown_default,
        "is_secret": is_secret,
    }
    return Meta(description=text, extra=extra, **limits)
