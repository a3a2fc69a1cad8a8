"""The limits of API keys: this module counts what each key uses, and nothing else does.

A request of a key with limits is counted in three steps:
1. `reserve`, before any work: the request, and the slot of its run.
2. `Reservation.reserve_tokens`, before the run: the tokens of its prompt, and one output token.
3. `settle`, when the run ends: what it really used, and the slot becomes free. The `RunCharge`
   travels with the run's job, so that any server can settle it.

Each step is one atomic call of the store, so that servers together never exceed a limit. Only the
tokens of running responses are not known yet: with `runs`, an operator bounds those too. The
requests of a key without limits cost nothing (docs/decisions/0073).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from antiphon.application.ports import Charge, Clock, KeyUsage, RunSlot, UsageStore
from antiphon.application.support.compensation import Compensation
from antiphon.application.support.tasks import run_to_completion
from antiphon.domain.callers import Caller
from antiphon.domain.errors import LimitExceeded
from antiphon.domain.limits import KINDS, RUNS, LimitState, Quantity, format_duration
from antiphon.domain.usage import TurnUsage

KEPT_WINDOWS = 2
"""A counter is kept for its window and the next, in which late corrections arrive."""

RUNS_RETRY_S = 1.0
"""When to retry after the limit of runs: nobody knows when the next run ends."""

TOKENS_CACHE_S = 1.0
"""How long used-up tokens are remembered here: an ending run may give some back."""

MAX_REMEMBERED = 10_000

Limits = Mapping[str, int]


class RunCharge(Struct, frozen=True, kw_only=True):
    """What a run has reserved of its key's limits, at `reserved_at`."""

    key_id: str
    limits: Limits
    reserved_at: float
    input_tokens: int = 0
    output_tokens: int = 0


class Reservation(Struct, kw_only=True):
    """What an accepted request has reserved. `charge` is None if its run counts nothing."""

    states: tuple[LimitState, ...] = ()
    charge: RunCharge | None = None
    reserve_count: Callable[[int], Awaitable[None]] | None = None

    async def reserve_tokens(self, count_input: Callable[[], Awaitable[int]]) -> None:
        """Reserve the tokens of the prompt, if a limit counts tokens. Raises: LimitExceeded."""
        if self.reserve_count is not None:
            await self.reserve_count(await count_input())


class EnforceLimits:
    """Counts what keys use. `defaults` are the limits of keys that have none of that kind.

    `owner` is this server.
    """

    def __init__(
        self, store: UsageStore, *, owner: str, now: Clock, defaults: Limits | None = None
    ) -> None:
        self._store = store
        self._owner = owner
        self._now = now
        self._defaults = defaults or {}
        self._compensation = Compensation()
        self._used_up = _UsedUpLimits()

    def limits_of(self, caller: Caller) -> Limits:
        """Return the limits by name. Only keys have limits."""
        if not caller.key_id:
            return {}
        limits = caller.policy.limits
        if self._defaults:
            limits = {**self._defaults, **limits}
        # A newer server may have stored a kind of limit that this one does not know.
        return {name: limit for name, limit in limits.items() if name in KINDS}

    def reserve(
        self, caller: Caller, response_id: str = ""
    ) -> AbstractAsyncContextManager[Reservation]:
        """Count a request, and take the slot of its run if it has a `response_id`.

        An exception in the block gives back everything but the request. Raises: LimitExceeded;
        StoreError.
        """
        limits = self.limits_of(caller)
        if not limits:
            return nullcontext(Reservation())
        return self._reserving(caller, response_id, limits)

    @asynccontextmanager
    async def _reserving(
        self, caller: Caller, response_id: str, limits: Limits
    ) -> AsyncIterator[Reservation]:
        reservation = await self._start(caller, response_id, limits)
        try:
            yield reservation
        except BaseException:
            if reservation.charge is not None:
                await self._give_back(reservation.charge, caller, response_id)
            raise

    async def _start(self, caller: Caller, response_id: str, limits: Limits) -> Reservation:
        now = self._now()
        requests: Mapping[Quantity, int] = {"requests": 0 if caller.is_counted else 1}
        if not response_id or all(KINDS[name].quantity == "requests" for name in limits):
            return Reservation(states=await self._reserve(caller, limits, requests, now))
        charge = RunCharge(key_id=caller.key_id, limits=limits, reserved_at=now)
        slot = RunSlot(
            tenant=caller.tenant,
            response_id=response_id,
            owner=self._owner,
            limit=limits.get(RUNS),
        )
        try:
            states = await self._reserve(caller, limits, requests, now, slot)
        except LimitExceeded:
            raise
        except BaseException:  # the store may have reserved it nevertheless
            await self._give_back(charge, caller, response_id)
            raise
        reservation = Reservation(states=states, charge=charge)
        if _counts_tokens(limits):
            reservation.reserve_count = partial(self._reserve_tokens, reservation, caller)
        return reservation

    async def _give_back(self, charge: RunCharge, caller: Caller, response_id: str) -> None:
        await run_to_completion(self.settle(charge, caller.tenant, response_id, ()))

    async def settle(
        self, charge: RunCharge, tenant: str, response_id: str, turns: Iterable[TurnUsage]
    ) -> None:
        """Count what a run that ends has used, and free its slot; never raises.

        Doing it again, here or on another server, has no effect.
        """
        turns = list(turns)
        added = {
            "input_tokens": sum(turn.input for turn in turns) - charge.input_tokens,
            "output_tokens": sum(turn.output for turn in turns) - charge.output_tokens,
        }
        charges = list(_corrections(charge, _with_total(added), self._now()))
        await self._compensation.run(
            partial(self._store.settle_usage, charge.key_id, tenant, response_id, charges),
            log_message=f"the tokens of {response_id} are not counted",
        )

    async def usage(self, caller: Caller) -> tuple[LimitState, ...]:
        """Return what the key has used of its limits. Raises: StoreError."""
        limits, now = self.limits_of(caller), self._now()
        if not limits:
            return ()
        charges = list(_charges(limits, {}, now))
        usage = await self._store.reserve_usage(caller.key_id, charges)
        return _states(limits, charges, usage, now)

    async def _reserve_tokens(self, reservation: Reservation, caller: Caller, count: int) -> None:
        charge = reservation.charge
        assert charge is not None
        # A response has at least one output token; what more it has is counted at its end.
        amounts = _with_total({"input_tokens": count, "output_tokens": 1})
        limits = {name: at for name, at in charge.limits.items() if KINDS[name].quantity in amounts}
        states = await self._reserve(caller, limits, amounts, charge.reserved_at)
        reservation.charge = replace(charge, input_tokens=count, output_tokens=1)
        others = (state for state in reservation.states if state.name not in limits)
        reservation.states = (*others, *states)

    async def _reserve(
        self,
        caller: Caller,
        limits: Limits,
        amounts: Mapping[Quantity, int],
        now: float,
        slot: RunSlot | None = None,
    ) -> tuple[LimitState, ...]:
        """Add the amounts to all counters of their quantities. Raises: LimitExceeded."""
        charges = list(_charges(limits, amounts, now))
        key_id = caller.key_id
        if state := self._used_up.find(key_id, charges, self._now()):
            raise _limit_exceeded(caller, state, 1, (state,))
        usage = await self._store.reserve_usage(key_id, charges, slot)
        states = _states(limits, charges, usage, now)
        if usage.accepted:
            return states
        for charge, count in zip(charges, usage.counts, strict=True):
            if not charge.fits(count):
                exceeded = next(state for state in states if state.name == charge.name)
                self._used_up.add(key_id, charge, exceeded, self._now())
                raise _limit_exceeded(caller, exceeded, charge.amount, states)
        exceeded = next(state for state in states if state.name == RUNS)
        raise _limit_exceeded(caller, exceeded, 1, states)


class _UsedUpLimits:
    """Limits that have nothing left, until when: their keys are refused without the store."""

    def __init__(self) -> None:
        self._entries: OrderedDict[tuple[str, str, int, int | None], tuple[float, LimitState]]
        self._entries = OrderedDict()

    def find(self, key_id: str, charges: Sequence[Charge], now: float) -> LimitState | None:
        for charge in charges:
            entry = self._entries.get((key_id, charge.name, charge.start, charge.limit))
            if entry is not None and charge.amount and now < entry[0]:
                end = charge.start + KINDS[charge.name].window_s
                return replace(entry[1], reset_s=end - now)
        return None

    def add(self, key_id: str, charge: Charge, state: LimitState, now: float) -> None:
        if state.remaining:
            return
        cache_s = state.reset_s
        if state.quantity != "requests":
            cache_s = min(cache_s, TOKENS_CACHE_S)
        self._entries[key_id, charge.name, charge.start, charge.limit] = (now + cache_s, state)
        if len(self._entries) > MAX_REMEMBERED:
            self._entries.popitem(last=False)


def _counts_tokens(limits: Limits) -> bool:
    return any(KINDS[name].quantity not in ("requests", "runs") for name in limits)


def _with_total(amounts: Mapping[str, int]) -> dict[Quantity, int]:
    """Return the amounts of input and output tokens with those of both together."""
    input_tokens, output_tokens = amounts["input_tokens"], amounts["output_tokens"]
    return {
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "tokens": input_tokens + output_tokens,
    }


def _charges(limits: Limits, amounts: Mapping[Quantity, int], now: float) -> Iterable[Charge]:
    """Yield a charge for each limit with a window; its amount is 0 for other quantities."""
    for name, limit in limits.items():
        kind = KINDS[name]
        if kind.window_s:
            yield _charge(name, amounts.get(kind.quantity, 0), now, limit)


def _corrections(
    charge: RunCharge, amounts: Mapping[Quantity, int], now: float
) -> Iterable[Charge]:
    for name in charge.limits:
        amount = amounts.get(KINDS[name].quantity, 0)
        if amount:
            # Too much is given back where it was reserved; more is charged when it is known.
            yield _charge(name, amount, now if amount > 0 else charge.reserved_at)


def _charge(name: str, amount: int, at: float, limit: int | None = None) -> Charge:
    kind = KINDS[name]
    start = kind.window_start(at)
    expires_at = start + KEPT_WINDOWS * kind.window_s
    return Charge(name=name, start=start, amount=amount, expires_at=expires_at, limit=limit)


def _states(
    limits: Limits, charges: Sequence[Charge], usage: KeyUsage, now: float
) -> tuple[LimitState, ...]:
    states = [
        LimitState(
            name=charge.name,
            limit=limits[charge.name],
            used=count,
            reset_s=max(charge.start + KINDS[charge.name].window_s - now, 0),
        )
        for charge, count in zip(charges, usage.counts, strict=True)
    ]
    if RUNS in limits:
        states.append(
            LimitState(name=RUNS, limit=limits[RUNS], used=usage.runs, reset_s=RUNS_RETRY_S)
        )
    return tuple(states)


# --- the answer -----------------------------------------------------------------------------------


def rate_limit_headers(states: Sequence[LimitState]) -> dict[str, str]:
    """Return the headers that official clients read: for requests and tokens, the limit with the
    smallest part left.

    >>> state = LimitState(name="requests/min", limit=60, used=1, reset_s=12)
    >>> rate_limit_headers([state])["x-ratelimit-remaining-requests"]
    '59'
    """
    headers: dict[str, str] = {}
    for name, quantities in _HEADER_QUANTITIES.items():
        counted = [state for state in states if state.quantity in quantities]
        if counted:
            tightest = min(counted, key=lambda state: state.remaining / state.limit)
            headers[f"x-ratelimit-limit-{name}"] = str(tightest.limit)
            headers[f"x-ratelimit-remaining-{name}"] = str(tightest.remaining)
            headers[f"x-ratelimit-reset-{name}"] = format_duration(tightest.reset_s)
    return headers


_HEADER_QUANTITIES: Mapping[str, tuple[Quantity, ...]] = {
    "requests": ("requests",),
    "tokens": ("tokens", "input_tokens", "output_tokens"),
}


def _limit_exceeded(
    caller: Caller, state: LimitState, requested: int, states: Sequence[LimitState]
) -> LimitExceeded:
    counts = f"Limit {state.limit}, Used {state.used}, Requested {requested}."
    title = KINDS[state.name].title
    headers = rate_limit_headers(states)
    if requested > state.limit:
        message = (
            f"Request too large for the API key {caller.key_name!r} on {title}: {counts} Reduce "
            "the input."
        )
        return LimitExceeded(message, headers=headers, retry_after_s=None)
    message = (
        f"Rate limit reached for the API key {caller.key_name!r} on {title}: {counts} Please try "
        f"again in {format_duration(math.ceil(state.reset_s))}."
    )
    return LimitExceeded(message, headers=headers, retry_after_s=state.reset_s)
