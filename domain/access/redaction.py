"""Redaction: requests and responses outside of the API, without secrets and files."""

from __future__ import annotations

import re
from typing import Any

from antiphon.domain.tools import REDACTED, redact_secrets

_DATA_URL = re.compile(r"data:([^;,]{0,100})[^,]{0,200},")
SEALED = frozenset({"encrypted_content", "signature", "authorization_token"})
"""Keys of sealed texts, and of the credentials of MCP servers in requests of the Messages API."""

_BLOCKS = ("base64", "redacted_thinking")
"""Types of objects of the Messages API whose `data` is a file or sealed."""

_START = r"(?:[a-z][a-z0-9+.-]{1,20}:[/\\]{1,20}|(?<![\w:/\\])[/\\]{2,20}(?=\w))"
_WHOLE_URL = re.compile(rf"({_START})(\S+)", re.IGNORECASE)
_URL_IN_TEXT = re.compile(rf"({_START})([^\s\"<>]+)", re.IGNORECASE)
_USER = re.compile(r"^(?:[^/\\?#]*|[^/\\?#:]*:(?!\d{0,5}[/\\?#]).*)@")
"""Also with what must be written as %40 and the like in a password, but for a port."""
_PARAMETER = re.compile(r"(?<=[?&;#])(?:([^=?&;#]*)=)?[^?&;#]*")


def without_secrets(value: Any) -> Any:
    """Return JSON values without the credentials of MCP servers.

    >>> without_secrets([{"type": "mcp", "authorization": "hush", "headers": {"a": "b"}}])
    [{'type': 'mcp', 'headers': {'a': '<redacted>'}}]
    """
    if isinstance(value, list):
        return [without_secrets(each) for each in value]
    if isinstance(value, dict):
        return {name: without_secrets(each) for name, each in redact_secrets(value).items()}
    return value


def without_secrets_and_files(value: Any) -> Any:
    """Return JSON values also without sealed texts, the content of files and secrets in URLs.

    >>> without_secrets_and_files({"image_url": "data:image/png;base64," + "A" * 400})
    {'image_url': '<image/png, 400 characters>'}
    """
    return _without_files(without_secrets(value))


def _without_file(name: str, value: Any, around: dict[str, Any]) -> Any:
    if name in SEALED and isinstance(value, str) and value:
        return REDACTED
    if name == "data" and isinstance(value, str) and around.get("type") in _BLOCKS:
        kind = str(around.get("media_type", "sealed"))[:100]
        return f"<{kind}, {len(value)} characters>"
    return _without_files(value)


def without_url_secrets(text: str) -> str:
    """Return the text without what may be secret in its URLs: users, queries and fragments.

    >>> without_url_secrets("See https://me:pw@a.example/b?token=hush&v=1#top now.")
    'See https://<redacted>@a.example/b?token=<redacted>&v=<redacted>#<redacted> now.'
    """
    if not any(start in text for start in ("//", ":/", "\\")):
        return text
    if whole := _WHOLE_URL.fullmatch(text):
        return _redact_url(whole)
    return _URL_IN_TEXT.sub(_redact_url, text)


def _redact_url(found: re.Match[str]) -> str:
    rest = _USER.sub(f"{REDACTED}@", found[2])
    return found[1] + _PARAMETER.sub(_redact_parameter, rest)


def _redact_parameter(found: re.Match[str]) -> str:
    if not found[0]:
        return ""
    return REDACTED if found[1] is None else f"{found[1]}={REDACTED}"


def _without_files(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_files(each) for each in value]
    if isinstance(value, dict):
        return {name: _without_file(name, each, value) for name, each in value.items()}
    if isinstance(value, str) and (found := _DATA_URL.match(value)) is not None:
        return f"<{found[1] or 'text/plain'}, {len(value) - found.end()} characters>"
    return without_url_secrets(value) if isinstance(value, str) else value
