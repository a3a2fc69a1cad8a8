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
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from antiphon.application.ports import Charge, Clock, RunSlot, UsageStore
from antiphon.application.support.compensation import Compensation
from antiphon.application.support.tasks import run_to_completion
from antiphon.domain.access.callers import Caller
from antiphon.domain.access.limits import (
    KINDS,
    MINUTE_S,
    RUNS,
    LimitState,
    Quantity,
    format_duration,
)
from antiphon.domain.errors import LimitExceeded
from antiphon.domain.responses.usage import TurnUsage

KEPT_WINDOWS = 2
"""A counter is kept for its window and the next, in which late corrections arrive."""

RUNS_RETRY_S = 1.0
"""When to retry after the limit of runs: nobody knows when the next run ends."""

TOKENS_CACHE_S = 1.0
"""How long used-up tokens are remembered here: an ending run may give some back."""

MAX_REMEMBERED = 10_000

Limits = Mapping[str, int]

NOTHING: Mapping[Quantity, int] = {}
ONE_REQUEST: Mapping[Quantity, int] = {"requests": 1}

HEADER_NAMES: Mapping[str, str] = {
    name: "requests" if kind.quantity == "requests" else "tokens"
    for name, kind in KINDS.items()
    if name != RUNS
}
"""By limit, what the headers that tell of it end with."""

REQUEST_LIMITS = frozenset(name for name, of in HEADER_NAMES.items() if of == "requests")
TOKEN_LIMITS = frozenset(name for name, of in HEADER_NAMES.items() if of == "tokens")


class RunCharge(Struct, frozen=True, kw_only=True):
    """A run's reservation of its key's limits, made at `reserved_at`."""

    key_id: str
    limits: Limits
    reserved_at: float
    input_tokens: int = 0
    output_tokens: int = 0


Settle = Callable[[RunCharge, str, str, Iterable[TurnUsage]], Coroutine[Any, Any, None]]


class Reservation:
    """A request's reservation of its key's limits: a context for the work that it is for.

    Entering it reserves the request, and the slot of its run if it has a `response_id`; an
    exception in it gives back everything but the request. `charge` is None if its run counts
    nothing. Entering it raises LimitExceeded; StoreError.
    """

    def __init__(
        self,
        counters: _Counters,
        caller: Caller,
        limits: Limits,
        *,
        response_id: str,
        owner: str,
        settle: Settle,
    ) -> None:
        self.charge: RunCharge | None = None
        self._counters = counters
        self._caller = caller
        self._limits = limits
        self._response_id = response_id
        self._owner = owner
        self._settle = settle
        self._used: dict[str, int] = {}
        self._at = 0.0

    async def __aenter__(self) -> Reservation:
        if self._limits:
            await self._start()
        return self

    async def __aexit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        if error is not None:
            await self._give_back()

    @property
    def states(self) -> tuple[LimitState, ...]:
        """The key's usage of its limits, this request included."""
        return _states(self._limits, self._used, self._at)

    async def reserve_tokens(self, count_input: Callable[[], Awaitable[int]]) -> None:
        """Reserve the tokens of the prompt, if a limit counts tokens. Raises: LimitExceeded."""
        if self.charge is None or TOKEN_LIMITS.isdisjoint(self._limits):
            return
        count = await count_input()
        limits = {name: limit for name, limit in self._limits.items() if name in TOKEN_LIMITS}
        # A response has at least one output token; what more it has is counted at its end.
        self._used |= await self._counters.reserve(
            self._caller, limits, _token_amounts(count, 1), self._at
        )
        self.charge = replace(self.charge, input_tokens=count, output_tokens=1)

    async def _start(self) -> None:
        caller, limits = self._caller, self._limits
        self._at = self._counters.now()
        amounts = NOTHING if caller.is_counted else ONE_REQUEST
        if not self._response_id or REQUEST_LIMITS.issuperset(limits):
            self._used = await self._counters.reserve(caller, limits, amounts, self._at)
            return
        self.charge = RunCharge(key_id=caller.key_id, limits=limits, reserved_at=self._at)
        slot = RunSlot(
            tenant=caller.tenant,
            response_id=self._response_id,
            owner=self._owner,
            limit=limits.get(RUNS),
        )
        try:
            self._used = await self._counters.reserve(caller, limits, amounts, self._at, slot)
        except LimitExceeded:
            raise
        except BaseException:  # the store may have reserved it nevertheless
            await self._give_back()
            raise

    async def _give_back(self) -> None:
        if self.charge is not None:
            await run_to_completion(
                self._settle(self.charge, self._caller.tenant, self._response_id, ())
            )


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
        self._counters = _Counters(store, now)

    def limits_of(self, caller: Caller) -> Limits:
        """Return the limits by name. Only keys have limits."""
        if not caller.key_id:
            return {}
        limits = caller.policy.limits
        if self._defaults:
            limits = {**self._defaults, **limits}
        # A newer server may have stored a kind of limit that this one does not know.
        return {name: limit for name, limit in limits.items() if name in KINDS}

    def reserve(self, caller: Caller, response_id: str = "") -> Reservation:
        """Return the reservation of a request, which starts when it is entered."""
        return Reservation(
            self._counters,
            caller,
            self.limits_of(caller),
            response_id=response_id,
            owner=self._owner,
            settle=self.settle,
        )

    async def settle(
        self, charge: RunCharge, tenant: str, response_id: str, turns: Iterable[TurnUsage]
    ) -> None:
        """Count what a run that ends has used, and free its slot; never raises.

        Doing it again, here or on another server, has no effect.
        """
        input_tokens, output_tokens = -charge.input_tokens, -charge.output_tokens
        for turn in turns:
            input_tokens += turn.input
            output_tokens += turn.output
        amounts = _token_amounts(input_tokens, output_tokens)
        charges = list(_corrections(charge, amounts, self._now()))
        await self._compensation.run(
            partial(self._store.settle_usage, charge.key_id, tenant, response_id, charges),
            log_message=f"the tokens of {response_id} are not counted",
        )

    async def usage(self, caller: Caller) -> tuple[LimitState, ...]:
        """Return what the key has used of its limits. Raises: StoreError."""
        limits, now = self.limits_of(caller), self._now()
        if not limits:
            return ()
        return _states(limits, await self._counters.reserve(caller, limits, NOTHING, now), now)


class _Counters:
    """The counters of all keys in the store, and those that are known to be used up."""

    def __init__(self, store: UsageStore, now: Clock) -> None:
        self.now = now
        self._store = store
        self._used_up = _UsedUpLimits()

    async def reserve(
        self,
        caller: Caller,
        limits: Limits,
        amounts: Mapping[Quantity, int],
        at: float,
        slot: RunSlot | None = None,
    ) -> dict[str, int]:
        """Add the amounts to all counters of their quantities; return their new counts by name.

        Raises: LimitExceeded; StoreError.
        """
        charges = _charges(limits, amounts, at)
        if state := self._used_up.find(caller.key_id, charges, self.now()):
            raise _limit_exceeded(caller, state, 1, (state,))
        usage = await self._store.reserve_usage(caller.key_id, charges, slot)
        used = {charge.name: count for charge, count in zip(charges, usage.counts, strict=True)}
        if RUNS in limits:
            used[RUNS] = usage.runs
        if not usage.accepted:
            raise self._refusal(caller, charges, _states(limits, used, at))
        return used

    def _refusal(
        self, caller: Caller, charges: Sequence[Charge], states: Sequence[LimitState]
    ) -> LimitExceeded:
        """Return the error for the first limit that is exceeded."""
        by_name = {state.name: state for state in states}
        for charge in charges:
            state = by_name[charge.name]
            if not charge.fits(state.used):
                self._used_up.add(caller.key_id, charge, state, self.now())
                return _limit_exceeded(caller, state, charge.amount, states)
        return _limit_exceeded(caller, by_name[RUNS], 1, states)


class _UsedUpLimits:
    """Limits that have nothing left, until when: their keys are refused without the store."""

    def __init__(self) -> None:
        self._entries: OrderedDict[tuple[str, str, int, int | None], tuple[float, LimitState]]
        self._entries = OrderedDict()

    def find(self, key_id: str, charges: Sequence[Charge], now: float) -> LimitState | None:
        if not self._entries:
            return None
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


class _Window(Struct, frozen=True, kw_only=True):
    """The window of a limit at some time. Times are in seconds since the epoch."""

    quantity: Quantity
    start: int
    end: int
    expires_at: int


@lru_cache(maxsize=8)
def _windows_of_minute(minute: int) -> Mapping[str, _Window]:
    """Return the windows that contain this minute since the epoch, by the name of their limit."""
    windows = {}
    for name, kind in KINDS.items():
        if kind.window_s:
            start = kind.window_start(minute * MINUTE_S)
            windows[name] = _Window(
                quantity=kind.quantity,
                start=start,
                end=start + kind.window_s,
                expires_at=start + KEPT_WINDOWS * kind.window_s,
            )
    return windows


def _windows(at: float) -> Mapping[str, _Window]:
    return _windows_of_minute(int(at) // MINUTE_S)


def _token_amounts(input_tokens: int, output_tokens: int) -> dict[Quantity, int]:
    return {
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "tokens": input_tokens + output_tokens,
    }


def _charges(limits: Limits, amounts: Mapping[Quantity, int], at: float) -> Sequence[Charge]:
    """Return a charge for each limit with a window; its amount is 0 for other quantities."""
    windows = _windows(at)
    return [
        Charge(
            name=name,
            start=window.start,
            amount=amounts.get(window.quantity, 0),
            expires_at=window.expires_at,
            limit=limit,
        )
        for name, limit in limits.items()
        if (window := windows.get(name)) is not None
    ]


def _corrections(
    charge: RunCharge, amounts: Mapping[Quantity, int], now: float
) -> Iterable[Charge]:
    for name in charge.limits:
        amount = amounts.get(KINDS[name].quantity, 0)
        if amount:
            # Too much is given back where it was reserved; more is charged when it is known.
            window = _windows(now if amount > 0 else charge.reserved_at)[name]
            yield Charge(name=name, start=window.start, amount=amount, expires_at=window.expires_at)


def _states(limits: Limits, used: Mapping[str, int], at: float) -> tuple[LimitState, ...]:
    """Return the states of the limits that have a count, in the order of the limits."""
    windows = _windows(at)
    return tuple(
        [
            LimitState(
                name=name,
                limit=limit,
                used=used[name],
                reset_s=windows[name].end - at if name in windows else RUNS_RETRY_S,
            )
            for name, limit in limits.items()
            if name in used
        ]
    )


# --- the answer -----------------------------------------------------------------------------------


def rate_limit_headers(states: Sequence[LimitState]) -> dict[str, str]:
    """Return the headers that official clients read: for requests and tokens, the limit with the
    smallest part left.

    >>> state = LimitState(name="requests/min", limit=60, used=1, reset_s=12)
    >>> rate_limit_headers([state])["x-ratelimit-remaining-requests"]
    '59'
    """
    tightest: dict[str, LimitState] = {}
    for state in states:
        name = HEADER_NAMES.get(state.name)
        if name is not None:
            other = tightest.setdefault(name, state)
            if state.remaining * other.limit < other.remaining * state.limit:
                tightest[name] = state
    headers = {}
    for name, state in tightest.items():
        headers[f"x-ratelimit-limit-{name}"] = str(state.limit)
        headers[f"x-ratelimit-remaining-{name}"] = str(state.remaining)
        headers[f"x-ratelimit-reset-{name}"] = format_duration(state.reset_s)
    return headers


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
