"""The contents of files in an object store: S3 and what speaks its protocol, GCS, Azure, a folder.

An object is written by one request, never in parts: it has its whole content or does not exist, and
a killed server leaves no hidden parts behind, which only a rule of the bucket would remove.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from antiphon.adapters.extras import install_command
from antiphon.adapters.stores.files.contents import ContentKey, FileContents
from antiphon.domain.errors import NotFound, SettingsError, StoreError

try:
    import obstore
    from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
    from obstore.store import from_url
except ImportError:
    raise SettingsError(
        f"Object stores need obstore. Install it with: {install_command('objects')}"
    ) from None

READ_BYTES = 256 * 1024
START_S = 20.0
"""How long the first object may take; without credentials, the client looks for some first."""
STEP_S = 30.0
"""How long a deletion, the start of an answer, or the next piece of it may take."""
WRITE_S = 600.0
"""How long writing an object may take, all attempts together."""

RETRIES: Mapping[str, Any] = {"max_retries": 3, "retry_timeout": timedelta(seconds=10)}
S3_SCHEMES = ("s3", "s3a")

ERRORS = (BaseError, OSError, TimeoutError)
REASONS: tuple[tuple[type[BaseException], str], ...] = (
    (PermissionDeniedError, "these credentials lack the permission"),
    (PermissionError, "this user lacks the permission"),
    (UnauthenticatedError, "it rejected the credentials"),
    (TimeoutError, "it did not answer in time"),
    (FileNotFoundError, "the bucket does not exist"),
)
"""The first matching entry applies."""


class ObjectContents(FileContents):
    """Contents as objects below a URL, which all servers that share files must be given.

    Credentials come from the environment, as for other clients of the object store. `endpoint` is
    the URL of a service that speaks the protocol of S3.
    """

    def __init__(self, url: str, *, endpoint: str | None = None) -> None:
        self.place = url.rstrip("/")
        parts = urlsplit(url)
        options: dict[str, Any] = {}
        if parts.scheme == "file":
            options["mkdir"] = True
        else:
            options["retry_config"] = RETRIES
            options["client_options"] = {
                "connect_timeout": "5s",
                # For a whole request, also of a slow reader; each step has a limit of its own.
                "timeout": "24h",
                "allow_http": _may_use_http(endpoint),
            }
        if endpoint is not None:
            if parts.scheme not in S3_SCHEMES:
                raise SettingsError("file_store_endpoint is for a file_store at s3://… alone.")
            options["endpoint"] = endpoint
        try:
            self._store: Any = from_url(url, **options)
        except ERRORS as error:
            raise SettingsError(f"file_store: {self._message(error)}") from error

    async def start(self) -> None:
        # The name is random, since several servers may start at the same time.
        path = f"probe-{secrets.token_hex(8)}"
        try:
            async with self._errors(START_S):
                await obstore.put_async(self._store, path, b"probe", use_multipart=False)
                await obstore.delete_async(self._store, path)
        except StoreError as error:
            raise SettingsError(str(error)) from error

    async def write(self, key: ContentKey, content: bytes) -> None:
        async with self._errors(WRITE_S):
            await obstore.put_async(self._store, _path(key), content, use_multipart=False)

    async def read(self, key: ContentKey) -> AsyncGenerator[bytes]:
        async with self._errors(STEP_S):
            try:
                answer = await obstore.get_async(self._store, _path(key))
            except FileNotFoundError:
                raise NotFound("There is no such file.") from None
        pieces = aiter(answer.stream(min_chunk_size=READ_BYTES))
        missing = key.bytes
        while missing > 0:
            async with self._errors(STEP_S):
                piece = await anext(pieces, None)
            if piece is None:
                raise StoreError(f"The content of file {key.file_id!r} has ended too early.")
            missing -= len(piece)
            yield bytes(piece)

    async def delete(self, key: ContentKey) -> None:
        async with self._errors(STEP_S):
            with suppress(FileNotFoundError):  # only some object stores say so
                await obstore.delete_async(self._store, _path(key))

    @asynccontextmanager
    async def _errors(self, limit_s: float) -> AsyncIterator[None]:
        """Raise a StoreError for whatever fails in the block."""
        try:
            async with asyncio.timeout(limit_s):
                yield
        except ERRORS as error:
            raise StoreError(self._message(error)) from error

    def _message(self, error: BaseException) -> str:
        reasons = (reason for kind, reason in REASONS if isinstance(error, kind))
        reason = next(reasons, None) or _first_sentence(error)
        return f"The object store {self.place} cannot be used: {reason}."


def _may_use_http(endpoint: str | None) -> bool:
    address = endpoint or os.environ.get("AWS_ENDPOINT_URL", "")
    return address.startswith("http://")


def _path(key: ContentKey) -> str:
    # A tenant's name may contain any character, and is nobody's business who lists the bucket.
    return f"{hashlib.sha256(key.tenant.encode()).hexdigest()[:32]}/{key.file_id}"


def _first_sentence(error: BaseException) -> str:
    """Return what users need of an error, without the state of the client that follows."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return line.partition("<?xml")[0].strip(" :").rstrip(".")
