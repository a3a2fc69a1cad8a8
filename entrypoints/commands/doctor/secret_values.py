"""The secrets in the settings, which no output may contain."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from antiphon.adapters.tool_servers.configured import redact
from antiphon.entrypoints.settings import SETTINGS, Settings
from antiphon.entrypoints.settings.storage import without_password

SECRET_NAME = re.compile(r"key|token|secret|passw|auth|header|credential|cookie", re.IGNORECASE)


def hide_secrets(settings: Settings) -> Callable[[str], str]:
    """Return a function that replaces the secrets of these settings in a text."""
    # The longest first: a secret may be a part of another.
    secrets = sorted(set(_secrets_of(settings)), key=len, reverse=True)
    return lambda text: str(redact(secrets, without_password(text)))


def _secrets_of(settings: Settings) -> Iterator[str]:
    for path, setting in SETTINGS.items():
        if setting.is_secret:
            value: Any = settings
            for name in path.split("."):
                value = getattr(value, name)
            yield from _strings_in(value)
    for server in settings.mcp_servers:
        yield from _strings_in(server.headers)
        yield from _strings_in({k: v for k, v in server.env.items() if k != "PATH"})
    for model in settings.models:
        yield from _named_secrets(model.options)
    yield from _url_passwords(settings.store)


def _strings_in(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
            # A message may repeat only the credential, without its scheme.
            yield value.removeprefix("Bearer ")
        case dict():
            for each in value.values():
                yield from _strings_in(each)
        case list() | tuple():
            for each in value:
                yield from _strings_in(each)


def _named_secrets(value: Any) -> Iterator[str]:
    match value:
        case dict():
            for name, each in value.items():
                yield from (_strings_in if SECRET_NAME.search(name) else _named_secrets)(each)
        case list() | tuple():
            for each in value:
                yield from _named_secrets(each)


def _url_passwords(address: str) -> Iterator[str]:
    try:
        parts = urlsplit(address)
        passwords = [parts.password or ""]
    except ValueError:
        return
    for name, values in parse_qs(parts.query).items():
        passwords += values if SECRET_NAME.search(name) else []
    for password in filter(None, passwords):
        yield password
        yield unquote(password)
