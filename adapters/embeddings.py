"""Embeddings from an OpenAI-compatible `/v1/embeddings` that the operator configures."""

from __future__ import annotations

import asyncio
import logging
import math
from array import array
from collections.abc import Sequence
from importlib.util import find_spec

import httpx
import msgspec
from msgspec import Struct

from antiphon.adapters.extras import install_command
from antiphon.application.ports import Embeddings, Vectors
from antiphon.domain.errors import EmbeddingsError, SettingsError

logger = logging.getLogger("antiphon.embeddings")

MAX_BYTES = 64 * 1024 * 1024
"""The size limit of an answer: 64 vectors of 4,096 numbers are about 6 MB."""

MAX_CONNECTIONS = 16
FAILURES = (httpx.HTTPError, TimeoutError, msgspec.MsgspecError, ValueError, OverflowError)


class _Vector(Struct, frozen=True):
    index: int
    embedding: list[float]


class _Answer(Struct, frozen=True):
    data: list[_Vector]


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
    ) -> None:
        self._url = f"{url.rstrip('/')}/embeddings"
        self._model = model
        self._client = httpx.AsyncClient(
            headers={"authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=timeout_s,
            limits=httpx.Limits(max_connections=MAX_CONNECTIONS),
            trust_env=False,
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
        await self._client.aclose()

    async def embed(self, texts: Sequence[str]) -> Vectors:
        try:
            vectors = [_normalize(vector) for vector in await self._request(texts)]
        # Clients get one message for every failure; the details go to the operator's log.
        except FAILURES as error:
            logger.warning("no vectors from %s: %s: %s", self._url, type(error).__name__, error)
            raise EmbeddingsError("This server's embedding engine returns no vectors.") from error
        return Vectors(model=self._model, each=vectors)

    async def _request(self, texts: Sequence[str]) -> list[list[float]]:
        body = {"model": self._model, "input": list(texts), "encoding_format": "float"}
        content = bytearray()
        answering = self._client.stream("POST", self._url, json=body)
        async with asyncio.timeout(self._timeout_s), answering as answer:
            answer.raise_for_status()
            async for chunk in answer.aiter_bytes():
                content += chunk
                if len(content) > self._max_bytes:
                    raise ValueError(f"its answer has more than {self._max_bytes} bytes")
        vectors = {vector.index: vector.embedding for vector in _decode(content).data}
        if sorted(vectors) != list(range(len(texts))):
            raise ValueError("it did not return one vector for each text")
        if len({len(vector) for vector in vectors.values()}) != 1:
            raise ValueError("its vectors have different dimensions")
        return [vectors[position] for position in range(len(texts))]


def _normalize(vector: Sequence[float]) -> bytes:
    """Return the vector scaled to length 1, as float32 values."""
    length = math.hypot(*vector)
    if not 0 < length < math.inf:
        raise ValueError("a vector has no finite length above 0")
    return array("f", (value / length for value in vector)).tobytes()
