"""Make vectors for clients, with the model that makes those of vector stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from msgspec import Struct

from antiphon.application.ports import Embeddings, NewId, Vectors
from antiphon.application.resources.limits import EnforceLimits
from antiphon.application.support.bytes_in_work import BytesInWork
from antiphon.application.support.fair_queue import FairQueue
from antiphon.domain.access.callers import Caller
from antiphon.domain.access.limits import KeyPolicy, LimitState
from antiphon.domain.errors import NotFound, RequestError
from antiphon.domain.responses.usage import TurnUsage
from antiphon.domain.retrieval.embeddings import Inputs, NewEmbeddings, inputs_of, shorten

BATCH = 64
"""Inputs that the engine gets at once. Tenants take turns after each batch."""

AT_ONCE = 8
"""Batches in work, of all tenants."""

MAX_NUMBERS = 2**20
"""Of an answer, in all vectors: 2,048 of 512. As JSON, such an answer has 20 MB."""

CHARS_PER_TOKEN = 4
"""An estimate, for limits before the engine has counted and if it does not count."""

EncodeVectors = Callable[[Sequence[bytes], int], bytes]
"""Returns vectors as their client gets them; the number is the index of the first."""


class MadeEmbeddings(Struct, frozen=True, kw_only=True):
    """`parts` are the encoded vectors, in order; `tokens` those of the input."""

    parts: Sequence[bytes]
    tokens: int
    rate_limits: Sequence[LimitState]


class MakeEmbeddings:
    """`POST /v1/embeddings`. `model` is the name that clients ask for; without `embeddings`, there
    is no such model."""

    def __init__(
        self,
        embeddings: Embeddings | None,
        limits: EnforceLimits,
        bytes_in_work: BytesInWork,
        *,
        model: str,
        new_id: NewId,
    ) -> None:
        self._embeddings = embeddings
        self._limits = limits
        self._bytes_in_work = bytes_in_work
        self._new_id = new_id
        self._queue = FairQueue(AT_ONCE)
        self.model = model

    def is_allowed(self, policy: KeyPolicy) -> bool:
        """Return whether there is a model, and the key may use it."""
        return self._embeddings is not None and policy.allows_model((self.model,))

    async def __call__(
        self, caller: Caller, request: NewEmbeddings, encode: EncodeVectors
    ) -> MadeEmbeddings:
        """Make the vectors; `encode` gets each batch when it is there.

        A short request can have a long answer, whose bytes count from the first batch on.
        Raises: LimitExceeded, EmbeddingsError, RequestError; ConcurrencyLimitExceeded,
        ServerOverloaded if there is no room for the answer.
        """
        inputs = inputs_of(request)
        engine = self._engine_for(caller.policy, request.model)
        estimate = sum(map(_estimate, inputs))
        request_id = self._new_id("emb")
        held = self._bytes_in_work.hold(caller.tenant, "model_output")
        async with self._limits.reserve(caller, request_id) as reservation:

            async def count() -> int:
                return estimate

            await reservation.reserve_tokens(count)
            parts: list[bytes] = []
            tokens = 0
            with held:
                for start in range(0, len(inputs), BATCH):
                    batch = inputs[start : start + BATCH]
                    async with self._queue.slot(caller.tenant):
                        vectors = await _embed(engine, batch)
                    _check_size(len(inputs), vectors, request.dimensions)
                    counted = vectors.tokens
                    tokens += sum(map(_estimate, batch)) if counted is None else counted
                    parts.append(encode(_cut(vectors.each, request.dimensions), start))
                    if not start:  # all vectors are as long
                        await held.wait_for(len(parts[0]) * len(inputs) // len(batch))
        if reservation.charge is not None:
            used = (TurnUsage(input=tokens),)
            await self._limits.settle(reservation.charge, caller.tenant, request_id, used)
        return MadeEmbeddings(parts=parts, tokens=tokens, rate_limits=reservation.states)

    def _engine_for(self, policy: KeyPolicy, name: str) -> Embeddings:
        if self._embeddings is None:
            raise NotFound(
                "This server has no embedding model; its operator names one with embeddings.url.",
                code="model_not_found",
            )
        if name != self.model or not self.is_allowed(policy):
            known = f"This server has {self.model!r}." if self.is_allowed(policy) else ""
            raise RequestError(
                f"The requested embedding model {name[:100]!r} does not exist. {known}".rstrip(),
                param="model",
                code="model_not_found",
            )
        return self._embeddings


async def _embed(engine: Embeddings, inputs: Inputs) -> Vectors:
    if isinstance(inputs[0], str):  # so all are
        return await engine.embed(cast("Sequence[str]", inputs))
    return await engine.embed_tokens(cast("Sequence[Sequence[int]]", inputs))


def _estimate(entry: str | Sequence[int]) -> int:
    return -(-len(entry) // CHARS_PER_TOKEN) if isinstance(entry, str) else len(entry)


def _check_size(count: int, vectors: Vectors, dimensions: int | None) -> None:
    """Raises: RequestError for a number of vectors that is too large for an answer."""
    length = dimensions or len(vectors.each[0]) // 4
    most = MAX_NUMBERS // length
    if count > most:
        raise RequestError(
            f"'input' may hold {most} inputs for vectors of {length} numbers; it has {count}. Send "
            "several requests.",
            param="input",
            code="invalid_value",
        )


def _cut(vectors: Sequence[bytes], dimensions: int | None) -> Sequence[bytes]:
    return vectors if dimensions is None else [shorten(each, dimensions) for each in vectors]
