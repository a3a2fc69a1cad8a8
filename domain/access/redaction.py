"""Redaction: requests and responses outside of the API, without secrets and files."""

from __future__ import annotations

import re
from typing import Any

from antiphon.domain.tools import REDACTED, redact_secrets

_DATA_URL = re.compile(r"data:([^;,]{0,100})[^,]{0,200},")
SEALED = "encrypted_content"


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
    """Return JSON values also without sealed texts and the content of files.

    >>> without_secrets_and_files({"image_url": "data:image/png;base64," + "A" * 400})
    {'image_url': '<image/png, 400 characters>'}
    """
    return _without_files(without_secrets(value))


def _without_files(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_files(each) for each in value]
    if isinstance(value, dict):
        return {
            name: REDACTED if name == SEALED and each else _without_files(each)
            for name, each in value.items()
        }
    if isinstance(value, str) and (found := _DATA_URL.match(value)) is not None:
        return f"<{found[1] or 'text/plain'}, {len(value) - found.end()} characters>"
    return value
