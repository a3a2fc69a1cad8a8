"""Embeddings from an OpenAI-compatible `/v1/embeddings` that the operator configures."""

from __future__ import annotations

import asyncio
import http
import logging
import math
from array import array
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import httpcore
import msgspec
from msgspec import Struct

from antiphon.adapters.extras import install_command
from antiphon.adapters.outgoing.connections import BoundedBackend, cause_of, client_tls
from antiphon.adapters.outgoing.egress import ClientCertificate
from antiphon.application.ports import Embeddings, Vectors
from antiphon.domain.bounds import count_of
from antiphon.domain.errors import EmbeddingsError, EmbeddingsRefused, SettingsError

logger = logging.getLogger("antiphon.embeddings")

MAX_BYTES = 64 * 1024 * 1024
"""The size limit of an answer: 64 vectors of 4,096 numbers are about 6 MB."""

MAX_CONNECTIONS = 16
REFUSALS = (400, 413, 422)
"""How servers say that a text is too long, or that tokens are not theirs."""

FAILURES = (
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.TimeoutException,
    OSError,
    TimeoutError,
    msgspec.MsgspecError,
    ValueError,
    OverflowError,
)


class _Vector(Struct, frozen=True):
    index: int
    embedding: list[float]


class _Usage(Struct, frozen=True):
    prompt_tokens: Any = None


class _Answer(Struct, frozen=True):
    data: list[_Vector]
    usage: _Usage | None = None


_decode = msgspec.json.Decoder(_Answer).decode


class HttpEmbeddings(Embeddings):
    """Sends texts to `{url}/embeddings`; it does not follow redirects."""

    def __init__(
        self,
        url: str,
        *,
        model: str,
        api_key: str | None = None,
        timeout_s: float = 30.0,
        max_bytes: int = MAX_BYTES,
        certificate: ClientCertificate | None = None,
    ) -> None:
        self._url = f"{url.rstrip('/')}/embeddings"
        self._model = model
        self._headers = {
            "content-type": "application/json",
            "user-agent": "antiphon",
            "accept-encoding": "identity",  # a few compressed bytes may become very many
            **({"authorization": f"Bearer {api_key}"} if api_key else {}),
        }
        is_secure = url.lower().startswith("https:")
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=client_tls(certificate) if is_secure else None,
            max_connections=MAX_CONNECTIONS,
            network_backend=BoundedBackend(),
        )
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes

    async def start(self) -> None:
        if find_spec("numpy") is None:
            raise SettingsError(
                f"Embeddings need a package. Install it with: {install_command('embeddings')}"
            )
        try:
            await self.embed(["?"])
        except EmbeddingsError as error:
            reason = error.__cause__ or error
            raise SettingsError(
                f"The embedding engine {self._url!r} does not return vectors of the model "
                f"{self._model!r}: {reason}"
            ) from None

    async def aclose(self) -> None:
        await self._pool.aclose()

    async def embed(self, texts: Sequence[str]) -> Vectors:
        return await self._embed(texts)

    async def embed_tokens(self, inputs: Sequence[Sequence[int]]) -> Vectors:
        return await self._embed(inputs)

    async def _embed(self, inputs: Sequence[str] | Sequence[Sequence[int]]) -> Vectors:
        try:
            answer = await self._request(inputs)
            vectors = [_normalize(vector) for vector in _in_order(answer, len(inputs))]
        # Clients get one message for every failure; the details go to the operator's log.
        except FAILURES as error:
            reason = cause_of(error) or f"{type(error).__name__}: {error}"
            logger.warning("no vectors from %s: %s", self._url, reason)
            raise EmbeddingsError("This server's embedding engine returns no vectors.") from error
        tokens = None if answer.usage is None else count_of(answer.usage.prompt_tokens)
        return Vectors(model=self._model, each=vectors, tokens=tokens)

    async def _request(self, inputs: Sequence[str] | Sequence[Sequence[int]]) -> _Answer:
        body = {"model": self._model, "input": list(inputs), "encoding_format": "float"}
        content = bytearray()
        answering = self._pool.stream(
            "POST", self._url, headers=[*self._headers.items()], content=msgspec.json.encode(body)
        )
        async with asyncio.timeout(self._timeout_s), answering as answer:
            if answer.status in REFUSALS:
                raise EmbeddingsRefused(answer.status)
            if answer.status != http.HTTPStatus.OK:
                raise ValueError(f"it answers with status {answer.status}")
            if any(name.lower() == b"content-encoding" for name, _ in answer.headers):
                raise ValueError("its answer is compressed")
            async for chunk in answer.aiter_stream():
                content += chunk
                if len(content) > self._max_bytes:
                    raise ValueError(f"its answer has more than {self._max_bytes} bytes")
        return _decode(content)


def _in_order(answer: _Answer, count: int) -> list[list[float]]:
    """Return the vectors of `count` inputs. Raises: ValueError if they are not as they must be."""
    vectors = {vector.index: vector.embedding for vector in answer.data}
    if sorted(vectors) != list(range(count)):
        raise ValueError("it did not return one vector for each text")
    if len({len(vector) for vector in vectors.values()}) != 1:
        raise ValueError("its vectors have different dimensions")
    return [vectors[position] for position in range(count)]


def _normalize(vector: Sequence[float]) -> bytes:
    """Return the vector scaled to length 1, as float32 values."""
    length = math.hypot(*vector)
    if not 0 < length < math.inf:
        raise ValueError("a vector has no finite length above 0")
    return array("f", (value / length for value in vector)).tobytes()
