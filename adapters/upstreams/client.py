"""The HTTP client of a model server: pooled connections, streams, and its errors as ours."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from antiphon.adapters.extras import install_command
from antiphon.adapters.upstreams.event_stream import MAX_EVENT_BYTES, EventSplitter
from antiphon.adapters.upstreams.options import UpstreamApiKey, UpstreamOptions
from antiphon.application.support.loop_portions import LoopPortions
from antiphon.domain.errors import EngineDead, EngineError, SettingsError

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

MAX_ANSWER_BYTES = 16 * 1024 * 1024
MAX_STREAM_BYTES = 512 * 1024 * 1024
"""A million tokens, one in each event, take less; with comments, no event need ever come."""
MAX_ERROR_BYTES = 64 * 1024
ERROR_BODY_S = 2.0
"""The time limit for the body of an error: its status has already said most of it."""
MIN_SECRET_CHARS = 8
"""A shorter text, such as a header's `true`, is no secret, and part of many words."""
READ_BYTES = 64 * 1024
"""At most twice this is read ahead of a slow reader, for each stream."""
PORTION_BYTES = 4 * 1024
"""As much of a stream is read before others may do something: up to 70 events, which take 3 ms."""


class UpstreamRefused(EngineError):
    """A model server answered with an error status. `retry_after` is its Retry-After header."""

    def __init__(self, status: int, body: bytes, retry_after: str | None = None) -> None:
        super().__init__(f"The model server answered with status {status}.")
        self.status = status
        self.body = body
        self.retry_after = retry_after


class UpstreamAnswer(Struct, frozen=True, kw_only=True):
    """A whole answer: its status is below 400."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the decoded body. Raises: EngineError."""
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise EngineError("The model server did not answer with JSON.") from None


class UpstreamClient:
    """Sends requests to the model server at `url`, whose paths start there.

    `start` opens the pool inside the running event loop. Redirects are not followed and proxies of
    the environment are not used: the operator names the server itself.
    """

    def __init__(self, url: str, options: UpstreamOptions) -> None:
        self.url = url.rstrip("/")
        self._options = options
        self._key = UpstreamApiKey(options)
        self._session: ClientSession | None = None
        self._portions = LoopPortions()

    async def start(self) -> None:
        """Raises: SettingsError if the key cannot be read or aiohttp is not installed."""
        if find_spec("aiohttp") is None:
            raise SettingsError(
                f"This engine needs aiohttp. Install it with: {install_command('upstream')}"
            )
        import aiohttp

        from antiphon.adapters.upstreams.bounded_connections import BoundedConnector

        self._key.read()
        await self.aclose()
        self._session = aiohttp.ClientSession(
            connector=BoundedConnector(limit=0, keepalive_timeout=30, ssl=await self._tls()),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._options.connect_s),
            trust_env=False,
            auto_decompress=False,  # a few compressed bytes may become more than memory holds
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=READ_BYTES,
        )

    async def _tls(self) -> ssl.SSLContext | bool:
        if not self.url.lower().startswith("https:"):
            return True
        from antiphon.adapters.outgoing.connections import client_tls

        return await asyncio.to_thread(client_tls, self._options.certificate)

    async def aclose(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    @property
    def root(self) -> str:
        """The URL of the server itself: without the version of its API.

        >>> UpstreamClient("http://127.0.0.1:8080/v1/", UpstreamOptions()).root
        'http://127.0.0.1:8080'
        """
        return self.url.removesuffix("/v1")

    def redact(self, text: str) -> str:
        """Return the text without the key and the values of the operator's own headers, for logs:
        servers repeat the key that they refuse."""
        try:
            key = self._key.read()
        except SettingsError:
            key = None
        secrets = [key or "", *self._options.headers.values()]
        for secret in secrets:
            text = text.replace(secret, "…") if len(secret) >= MIN_SECRET_CHARS else text
        return text

    async def get(self, path: str, *, timeout_s: float, at_root: bool = False) -> UpstreamAnswer:
        """`at_root`: the path is one of the server, not of its API.

        Raises: EngineDead if the server cannot be reached; UpstreamRefused; EngineError.
        """
        return await self._fetch("GET", self._address(path, at_root), None, timeout_s=timeout_s)

    async def post(
        self, path: str, body: bytes, *, timeout_s: float, at_root: bool = False
    ) -> UpstreamAnswer:
        """Raises: EngineDead if the server cannot be reached; UpstreamRefused; EngineError."""
        return await self._fetch("POST", self._address(path, at_root), body, timeout_s=timeout_s)

    def _address(self, path: str, at_root: bool) -> str:
        return (self.root if at_root else self.url) + path

    async def stream(
        self,
        path: str,
        body: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        tenant: str = "",
    ) -> EventStream:
        """Return the events that the server answers with; closing them closes the connection.

        Streams of all tenants are read in turn, if they come faster than they can be read.

        Raises: EngineDead if the server cannot be reached; UpstreamRefused; EngineError.
        """
        response = await self._send("POST", self.url + path, body, headers=headers)
        return EventStream(response, partial(self._portions.wait, tenant))

    async def _fetch(
        self, method: str, address: str, body: bytes | None, *, timeout_s: float
    ) -> UpstreamAnswer:
        try:
            async with asyncio.timeout(timeout_s):
                response = await self._send(method, address, body)
                async with response:
                    content = await _read(response, MAX_ANSWER_BYTES)
                    headers = {name.lower(): value for name, value in response.headers.items()}
                    return UpstreamAnswer(status=response.status, headers=headers, body=content)
        except TimeoutError:
            raise EngineError(
                f"The model server did not answer in {timeout_s:g} seconds."
            ) from None

    async def _send(
        self,
        method: str,
        address: str,
        body: bytes | None,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> ClientResponse:
        """Return the response, whose status is below 400 and whose body is not read yet."""
        import aiohttp

        if self._session is None:
            raise EngineDead("The model server is not connected.")
        try:
            async with asyncio.timeout(self._options.response_s):
                response = await self._request(
                    method,
                    address,
                    data=body,
                    headers=self._headers(headers),
                    allow_redirects=False,
                )
        except TimeoutError as error:
            if isinstance(error, aiohttp.ConnectionTimeoutError):
                raise _unreachable(error) from None
            raise EngineError(
                f"The model server did not answer in {self._options.response_s:g} seconds."
            ) from None
        except aiohttp.ClientConnectorError as error:
            raise _unreachable(error) from None
        except (aiohttp.ClientError, ValueError, OSError):
            raise EngineError("The connection to the model server was lost.") from None
        if response.status >= 300:
            content = await _read_error(response)
            raise UpstreamRefused(response.status, content, response.headers.get("retry-after"))
        if response.headers.get("content-encoding", "identity").strip().lower() != "identity":
            response.close()
            raise EngineError("The model server's answer is compressed.")
        return response

    def _headers(self, more: Mapping[str, str] | None) -> dict[str, str]:
        try:
            key = self._key.read()
        except SettingsError as error:  # the file was there at the start
            raise EngineDead("The key of the model server cannot be read.") from error
        authorization = {} if key is None else {"authorization": f"Bearer {key}"}
        return {
            "content-type": "application/json",
            **authorization,
            **self._options.headers,
            **(more or {}),
            "accept-encoding": "identity",
        }

    async def _request(self, method: str, address: str, **options: Any) -> ClientResponse:
        """Send a request; once more if the connection is lost before any answer.

        A server may close an idle connection in the very moment in which it is used again.
        """
        import aiohttp

        assert self._session is not None
        try:
            return await self._session.request(method, address, **options)
        except aiohttp.ClientConnectorError:
            raise
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            return await self._session.request(method, address, **options)


class EventStream:
    """The data of a server's events, in lists: all that arrived together.

    Iterate once. Leaving it closes the connection, which tells the server to stop generating. The
    whole JSON that a server without streams answers is a single event.
    """

    def __init__(self, response: ClientResponse, wait: Callable[[], Awaitable[None]]) -> None:
        self._response = response
        self._wait = wait

    def __aiter__(self) -> AsyncGenerator[list[bytes]]:
        return self._read()

    async def aclose(self) -> None:
        """Close the connection, unless the stream has been read to its end."""
        self._response.close()

    async def __aenter__(self) -> EventStream:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def _read(self) -> AsyncGenerator[list[bytes]]:
        """Raises: EngineError if the connection is lost or an event or the stream is too long."""
        import aiohttp

        splitter, size = EventSplitter(), 0
        try:
            if self._response.content_type == "application/json":
                yield [await _read(self._response, MAX_EVENT_BYTES)]
                return
            async for data in self._response.content.iter_chunked(PORTION_BYTES):
                if len(data) == PORTION_BYTES:  # there may be more already
                    size += PORTION_BYTES
                    if size > MAX_STREAM_BYTES:
                        raise EngineError("The model server's answer is too long.")
                    await self._wait()
                if events := splitter.feed(data):
                    yield events
            if events := splitter.end():
                yield events
        except (aiohttp.ClientError, OSError, ValueError):
            raise EngineError("The connection to the model server was lost.") from None
        finally:
            self._response.close()


def _unreachable(error: Exception) -> EngineDead:
    from antiphon.adapters.outgoing.connections import cause_of

    cause = cause_of(error)
    return EngineDead(f"The model server cannot be reached{cause and ': '}{cause}.")


async def _read(response: ClientResponse, limit: int) -> bytes:
    """Return the body. Raises: EngineError if it is longer than `limit`, or the connection lost."""
    import aiohttp

    content = bytearray()
    try:
        async for data in response.content.iter_any():
            content += data
            if len(content) > limit:
                raise EngineError("The model server's answer is too long.")
    except (aiohttp.ClientError, OSError, ValueError):
        raise EngineError("The connection to the model server was lost.") from None
    return bytes(content)


async def _read_error(response: ClientResponse) -> bytes:
    """Return the body of an error: its beginning, and only what comes in time."""
    import aiohttp

    content = bytearray()
    with suppress(aiohttp.ClientError, OSError, ValueError):
        async with response, asyncio.timeout(ERROR_BODY_S):
            while len(content) < MAX_ERROR_BYTES and (data := await response.content.readany()):
                content += data
    return bytes(content[:MAX_ERROR_BYTES])
