"""A run in the pool: another server goes on if one is lost; leaving it aborts it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from antiphon.adapters.engines.pooled.pool import Member, Pool
from antiphon.adapters.engines.pooled.prefixes import block_hashes
from antiphon.adapters.engines.pooled.profile import ServerProfile
from antiphon.adapters.engines.pooled.refusals import (
    Outcome,
    outcome_of,
    read_details,
    to_request_error,
)
from antiphon.adapters.engines.vllm_names import constrained_field
from antiphon.adapters.upstreams.client import EventStream, UpstreamRefused
from antiphon.adapters.upstreams.event_stream import DONE
from antiphon.application.ports import EngineRequest, PooledSteps, Step
from antiphon.domain.errors import EngineDead, EngineError, ServerOverloaded

MAX_FAILURES = 3
"""A run may fail on so many servers: a request that breaks servers should not break all."""

EARLY_REFUSAL_S = 0.5
"""vLLM checks constraints and biases only after it has answered with status 200. For a request with
one, the admission waits so long for the refusal, or the first token."""

LAST_EVENTS_S = 2.0
"""After the last token, the usage and the end of the stream follow at once. A server that does not
send them in this time is not waited for: only the number of cached tokens is lost."""

log = logging.getLogger("antiphon.engine")

INTERNAL_ERROR = 500


class RunFailed(EngineError):
    """The server itself says that the run failed: its connection was not lost."""


class WireRequest(Struct, frozen=True, kw_only=True):
    """A request to a server. `decodes_text`: its answer is tokens alone; they are decoded here."""

    path: str
    body: bytes
    decodes_text: bool = False


class StepReader(Protocol):
    """Reads the events of a run.

    `cached_tokens` is what the server has told of its cache, and `prompt_tokens` the number of the
    prompt's tokens. `is_cut` is set when the run has ended here and not at the server, which does
    not know the stop token.
    """

    cached_tokens: int | None
    prompt_tokens: int | None
    is_cut: bool

    def read(self, data: bytes) -> Step | None:
        """Return the event's step, None if it has none.

        Raises: RequestError for a request that the server refuses only now; EngineError.
        """


Prepare = Callable[[EngineRequest, ServerProfile], tuple[WireRequest, StepReader]]
"""Returns what a server is sent, and what reads its answer. Raises: RequestError, EngineError."""

Renew = Callable[[EngineRequest], EngineRequest | None]
"""Returns the request without what a server may have kept wrongly, None if it has nothing such."""


def renew_nothing(_: EngineRequest) -> None:
    return None


def constrained_param(request: EngineRequest) -> str | None:
    """Return the field to blame for what a server refuses without naming a parameter."""
    return constrained_field(request.turn) if request.sampling.constraint else None


class Attempt:
    """A run on one server."""

    def __init__(self, member: Member, stream: EventStream, reader: StepReader) -> None:
        self.member = member
        self._reader = reader
        self._stream = stream
        self._batches: AsyncGenerator[list[bytes]] = aiter(stream)
        self._first: asyncio.Task[list[bytes]] | None = None

    async def wait_for_first(self, timeout_s: float) -> None:
        """Return when the first events are there, but not later than this."""
        self._first = asyncio.ensure_future(anext(self._batches))
        await asyncio.wait({self._first}, timeout=timeout_s)

    async def next_batch(self) -> list[bytes]:
        """Raises: EngineError if the stream is lost or ends."""
        first, self._first = self._first, None
        try:
            return await (anext(self._batches) if first is None else first)
        except StopAsyncIteration:
            raise EngineError("The model server ended the run without a reason.") from None
        except asyncio.CancelledError:
            if first is not None:
                first.cancel()
            raise

    async def read_rest(self) -> None:
        """Read the stream to its end, for its usage and so that its connection is used again."""
        try:
            async with asyncio.timeout(LAST_EVENTS_S):
                async for batch in self._batches:
                    for data in batch:
                        self.read(data)
        except (TimeoutError, EngineError):
            return  # the output is whole all the same; the connection is closed

    def read(self, data: bytes) -> Step | None:
        """Raises: RequestError, EngineError."""
        return None if data == DONE else self._reader.read(data)

    @property
    def has_first(self) -> bool:
        return self._first is not None and self._first.done()

    @property
    def cached_tokens(self) -> int:
        return self._reader.cached_tokens or 0

    @property
    def prompt_tokens(self) -> int | None:
        """The length of the prompt according to the server."""
        return self._reader.prompt_tokens

    @property
    def is_cut(self) -> bool:
        return self._reader.is_cut

    async def aclose(self) -> None:
        if self._first is not None:
            self._first.cancel()
            await asyncio.gather(self._first, return_exceptions=True)
        await self._batches.aclose()
        await self._stream.aclose()


class PoolRun(PooledSteps):
    """The steps of a run. Reading it to the end, or `aclose`, frees its place on the server."""

    def __init__(
        self,
        pool: Pool,
        request: EngineRequest,
        prepare: Prepare,
        *,
        renew: Renew = renew_nothing,
        resumes_constraints: bool = False,
    ) -> None:
        self._pool = pool
        self._resumes_constraints = resumes_constraints
        self._renew = renew
        self._request = request
        self._prepare = prepare
        self._hashes = block_hashes(request.prompt.token_ids, request.cache_salt)
        self._tried: list[Member] = []
        self._failures = 0
        self._was_busy = False
        self._attempt: Attempt | None = None
        self._steps: deque[Step] = deque()
        self._written = list(request.written)
        self._first_tokens = len(self._written)
        self._ends_whole = True
        self._error: EngineError | None = None
        self._is_over = False

    def __aiter__(self) -> AsyncIterator[Step]:
        return self

    @property
    def server(self) -> str:
        return self._tried[-1].client.url if self._tried else ""

    @property
    def attempts(self) -> int:
        return max(len(self._tried), 1)

    async def admit(self) -> None:
        """Start the run on a server. Raises: RequestError, ServerOverloaded, EngineError."""
        try:
            attempt = self._attempt = await self._open()
            sampling = self._request.sampling
            if sampling.constraint is not None or sampling.logit_bias:
                await attempt.wait_for_first(EARLY_REFUSAL_S)
                if attempt.has_first:
                    await self._read()
        except BaseException:
            await self.aclose()
            raise

    async def __anext__(self) -> Step:
        while not self._steps:
            if self._is_over:
                raise StopAsyncIteration
            try:
                await self._read()
            except BaseException:
                await self.aclose()
                raise
        step = self._steps.popleft()
        self._is_over = step.finish is not None
        return step

    async def aclose(self) -> None:
        self._is_over = True
        self._steps.clear()
        await self._leave()

    async def _read(self) -> None:
        """Read the steps that arrived together; on another server if this one is lost in time.

        Raises: RequestError, ServerOverloaded, EngineError.
        """
        if self._error is not None:
            raise self._error
        if self._attempt is None:
            self._attempt = await self._open()
        attempt = self._attempt
        try:
            await self._read_batch(attempt)
        except EngineError as error:
            # A single lost connection is no proof. A server that is gone will fail its check.
            self._pool.report_doubt()
            self._failures += 1
            await self._leave()
            if self._has_tokens and not self._can_go_on:
                self._error = error  # raised after the steps that came before it
                return
            self._request = replace(self._request, written=tuple(self._written))
            if isinstance(error, RunFailed):
                self._renew_request(attempt.member)
            log.info("run %s: %s", self._request.request_id, error)

    async def _read_batch(self, attempt: Attempt) -> None:
        last: Step | None = None
        for data in await attempt.next_batch():
            step = attempt.read(data)
            if step is None or last is not None:
                continue
            self._written += step.token_ids
            self._ends_whole = bool(step.text) or not self._request.detokenize
            if step.finish is None:
                self._steps.append(step)
            else:
                last = step
        if last is not None:
            if not attempt.is_cut:
                await attempt.read_rest()
            self._check_count(attempt)
            # vLLM computes at least one token of a prompt.
            cached = min(attempt.cached_tokens, len(self._request.prompt.token_ids) - 1)
            self._steps.append(replace(last, cached_tokens=cached))
            await self._leave()

    @property
    def _has_tokens(self) -> bool:
        return len(self._written) > self._first_tokens

    @property
    def _can_go_on(self) -> bool:
        """Whether another server can go on after what came: many begin a constraint anew, and a
        character may have begun."""
        constraint = self._request.sampling.constraint
        return self._ends_whole and (constraint is None or self._resumes_constraints)

    def _check_count(self, attempt: Attempt) -> None:
        request = self._request
        counted = len(request.prompt.token_ids) + len(request.written)
        server_count = attempt.prompt_tokens
        if server_count not in (None, counted):
            log.warning(
                "run %s: the prompt was counted as %d tokens, but the server ran %d",
                *(self._request.request_id, counted, server_count),
            )

    async def _open(self) -> Attempt:
        """Return the run on the next server that takes it.

        Raises: RequestError; ServerOverloaded if a server is too busy and no other takes it;
        EngineDead if no server is there; EngineError.
        """
        while self._failures < MAX_FAILURES:
            member = self._pool.acquire(self._hashes, tried=self._tried)
            if member is None:
                break
            self._tried.append(member)
            try:
                return await self._try(member)
            except UpstreamRefused as error:
                await self._pool.release(member)
                self._note_refusal(member, error)
            except EngineDead:  # nothing was sent: this is no failure of the run
                await self._pool.release(member)
                self._pool.report_failure(member)
            except EngineError:
                await self._pool.release(member)
                self._pool.report_doubt()
                self._failures += 1
            except BaseException:
                await self._pool.release(member)
                raise
        if self._was_busy:
            raise ServerOverloaded("The model servers are overloaded. Please retry later.")
        if self._failures:
            raise EngineError("The model servers could not run this request.")
        raise EngineDead("No model server is available.")

    async def _try(self, member: Member) -> Attempt:
        """Raises: RequestError, UpstreamRefused, EngineError."""
        assert member.profile is not None
        request, profile = self._request, member.profile
        if request.written and request.sampling.constraint is not None:
            # What is left of a constraint takes long where much was written.
            wire, reader = await asyncio.to_thread(self._prepare, request, profile)
        else:
            wire, reader = self._prepare(request, profile)
        stream = await member.client.stream(
            wire.path,
            wire.body,
            headers=self._request.trace_headers,
            tenant=self._request.turn.tenant,
        )
        return Attempt(member, stream, reader)

    def _note_refusal(self, member: Member, error: UpstreamRefused) -> None:
        """Raises: RequestError if no server will run the request."""
        match outcome_of(error.status):
            case Outcome.INVALID:
                param = constrained_param(self._request)
                raise to_request_error(read_details(error.body), default_param=param) from error
            case Outcome.BUSY:
                self._was_busy = True
                self._pool.report_doubt()
            case Outcome.FAILED if error.status == INTERNAL_ERROR and self._renew_request(member):
                self._failures += 1
                self._pool.report_doubt()
            case Outcome.FAILED:
                log.warning(
                    "model server %s refused a run: status %d", member.client.url, error.status
                )
                self._pool.report_failure(member)
                self._failures += 1

    def _renew_request(self, member: Member) -> bool:
        """Whether the server may be tried once more: it may fail over what it remembers."""
        renewed = self._renew(self._request)
        if renewed is None:
            return False
        self._request = renewed
        self._tried.remove(member)
        return True

    async def _leave(self) -> None:
        """Close the connection to the server, which ends the run there, too."""
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            try:
                await attempt.aclose()
            finally:
                await self._pool.release(attempt.member)
