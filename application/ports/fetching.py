"""Outgoing HTTP requests."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct


class FetchResult(Struct, frozen=True, kw_only=True):
    """An answer with any status. The names of headers are in lower case.

    `url` is the URL that answered, after redirects.
    """

    status: int
    url: str = ""
    headers: Mapping[str, str] = {}
    content_type: str = ""
    content: bytes = b""


class Fetcher(Protocol):
    """Makes all outgoing HTTP requests that a client can cause."""

    @abstractmethod
    async def fetch(
        self,
        url: str,
        *,
        tenant: str,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        content: bytes = b"",
        hosts: Sequence[str] = (),
    ) -> FetchResult:
        """Return the answer; a GET follows redirects and checks each like the URL itself.

        With `hosts`, all of these URLs must be of one of them, or of a subdomain.

        For other methods, only the answer's status and headers may be read. Slow sites of one
        tenant do not keep the others waiting.
        Raises: FetchRefused for a URL that may not be fetched; FetchTooLarge; FetchFailed. Their
        messages may be shown to clients, so they reveal nothing about the server's network.
        """
