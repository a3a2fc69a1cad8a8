"""The only way out: outgoing HTTP requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct


class FetchResult(Struct, frozen=True, kw_only=True):
    """An answer, whatever its status. Names of headers are in small letters.

    `url` is what answered: where redirects were followed, the last of them.
    """

    status: int
    url: str = ""
    headers: Mapping[str, str] = {}
    content_type: str = ""
    content: bytes = b""


class Fetcher(Protocol):
    """The only way out: every outgoing HTTP request that a client can cause takes it."""

    async def fetch(
        self,
        url: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        content: bytes = b"",
    ) -> FetchResult:
        """Return the answer; a GET follows redirects, each checked like the URL itself.

        Of the answer to anything but a GET, status and headers may be all that is read.
        Raises: FetchRefused for a URL that may not be fetched; FetchTooLarge; FetchFailed. Their
        messages may be shown to clients: they say nothing of the network behind this server.
        """
