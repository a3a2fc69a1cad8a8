"""Vectors from an OpenAI-compatible `/v1/embeddings`, which the operator names."""

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

MOST_BYTES = 64 * 1024 * 1024
"""What an answer may have: 64 vectors of 4,096 numbers are some 6 MB."""

CONNECTIONS = 16
FAULTS = (httpx.HTTPError, TimeoutError, msgspec.MsgspecError, ValueError, OverflowError)


class _Vector(Struct, frozen=True):
    index: int
    embedding: list[float]


class _Answer(Struct, frozen=True):
    data: list[_Vector]


_decode = msgspec.json.Decoder(_Answer).decode


class HttpEmbeddings(Embeddings):
    """`url` is what `/embeddings` is appended to. Goes nowhere else: redirects are not followed."""

    def __init__(
        self,
        url: str,
        model: str,
        *,
        api_key: str | None = None,
        timeout_s: float = 30.0,
        max_bytes: int = MOST_BYTES,
    ) -> None:
        self._url = f"{url.rstrip('/')}/embeddings"
        self._model = model
        self._client = httpx.AsyncClient(
            headers={"authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=timeout_s,
            limits=httpx.Limits(max_connections=CONNECTIONS),
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
            why = error.__cause__ or error
            raise SettingsError(
                f"The embedding engine {self._url!r} gives no vectors of the model "
                f"{self._model!r}: {why}"
            ) from None

    async def aclose(self) -> None:
        await self._client.aclose()

    async def embed(self, texts: Sequence[str]) -> Vectors:
        try:
            each = [_normed(vector) for vector in await self._asked(texts)]
        # Whatever it answers, the client is told the same: the rest is for the operator.
        except FAULTS as error:
            logger.warning("no vectors from %s: %s: %s", self._url, type(error).__name__, error)
            raise EmbeddingsError(
                "The embedding engine of this server gives no vectors now."
            ) from error
        return Vectors(model=self._model, each=each)

    async def _asked(self, texts: Sequence[str]) -> list[list[float]]:
        body = {"model": self._model, "input": list(texts), "encoding_format": "float"}
        content = bytearray()
        answering = self._client.stream("POST", self._url, json=body)
        async with asyncio.timeout(self._timeout_s), answering as answer:
            answer.raise_for_status()
            async for piece in answer.aiter_bytes():
                content += piece
                if len(content) > self._max_bytes:
                    raise ValueError(f"its answer has more than {self._max_bytes} bytes")
        found = {vector.index: vector.embedding for vector in _decode(content).data}
        if sorted(found) != list(range(len(texts))):
            raise ValueError("it gave not one vector for each text")
        if len({len(vector) for vector in found.values()}) != 1:
            raise ValueError("its vectors have different lengths")
        return [found[position] for position in range(len(texts))]


def _normed(vector: Sequence[float]) -> bytes:
    """Return the vector with length 1, as float32s."""
    length = math.hypot(*vector)
    if not 0 < length < math.inf:
        raise ValueError("a vector of no length")
    return array("f", (value / length for value in vector)).tobytes()
