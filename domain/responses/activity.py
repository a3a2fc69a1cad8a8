"""The activity of a tenant over a time: how many responses, how they ended, how fast they were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from msgspec import UNSET, Struct, field

from antiphon.domain.responses.metrics import LISTING
from antiphon.domain.responses.response_lists import ResponseSummary

Span = Literal["hour", "day", "week"]
Grouping = Literal["model", "key", "door"]

STEPS: Mapping[Span, tuple[int, int]] = {
    "hour": (3600, 60),
    "day": (24 * 3600, 1800),
    "week": (7 * 24 * 3600, 3 * 3600),
}
"""How many seconds a chart shows, and how many a bar of it stands for."""

MAX_NAMES = 6
"""Of models, reasons or tools in a bar; the others are one."""
MAX_GROUPS = 50
OTHERS = ""
"""The name of all others. Those without a name, as of a response without a key, are with them."""


class Percentiles(Struct, frozen=True, kw_only=True):
    """Half of the values are at most `p50`, and 95 % at most `p95`."""

    p50: float
    p95: float


class Figures(Struct, frozen=True, kw_only=True):
    """Sums, and times in seconds; None where no response has such a time.

    `ended_badly` counts the responses that failed, were cancelled or are incomplete.
    """

    requests: int
    ended_badly: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    tool_calls: int
    first_token: Percentiles | None
    queue: Percentiles | None
    tokens_per_second: Percentiles | None


class ActivityBucket(Struct, frozen=True, kw_only=True):
    """The responses that were created in the `step` seconds from `at`.

    `after` is the response before the newest of them in a list: the list after it begins here.
    """

    at: int
    after: str | None
    figures: Figures
    groups: Mapping[str, int]
    reasons: Mapping[str, int]
    tools: Mapping[str, int]


class ActivityGroup(Struct, frozen=True, kw_only=True):
    """All responses of a model, a key or a door."""

    name: str
    figures: Figures


class ActivityReport(Struct, frozen=True, kw_only=True):
    """The newest `read` responses. Those before `covered_from` were not read; None: all were."""

    begins_at: int
    ends_at: int
    step: int
    read: int
    covered_from: int | None
    names: Sequence[str]
    reasons: Sequence[str]
    tools: Sequence[str]
    groups: Sequence[ActivityGroup]
    buckets: Sequence[ActivityBucket]


class _Tally(Struct):
    requests: int = 0
    ended_badly: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    tool_calls: int = 0
    first_token: list[float] = field(default_factory=list)
    queue: list[float] = field(default_factory=list)
    tokens_per_second: list[float] = field(default_factory=list)

    def figures(self) -> Figures:
        return Figures(
            requests=self.requests,
            ended_badly=self.ended_badly,
            input_tokens=self.input_tokens,
            cached_tokens=self.cached_tokens,
            output_tokens=self.output_tokens,
            tool_calls=self.tool_calls,
            first_token=percentiles_of(self.first_token),
            queue=percentiles_of(self.queue),
            tokens_per_second=percentiles_of(self.tokens_per_second),
        )


class _Bucket(_Tally):
    after: str | None = None
    groups: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    tools: Counter[str] = field(default_factory=Counter)


class CountActivity:
    """Counts the responses of a list, the newest first.

    `only` is a model, a key or a door, by `grouping`: then only its responses count.
    """

    def __init__(
        self, span: Span, *, now: float, grouping: Grouping = "model", only: str | None = None
    ) -> None:
        seconds, self._step = STEPS[span]
        self._ends_at = (int(now) // self._step + 1) * self._step
        self.begins_at = self._ends_at - seconds
        self._grouping = grouping
        self._only = only
        self._buckets: dict[int, _Bucket] = {}
        self._groups: dict[str, _Tally] = {}
        self._read = 0
        self._last_id: str | None = None

    def add(self, response: ResponseSummary) -> None:
        """Count a response, if it was created in this time."""
        before, self._last_id = self._last_id, response.id
        self._read += 1
        if not self.begins_at <= response.created_at < self._ends_at:
            return
        at = response.created_at - response.created_at % self._step
        bucket = self._buckets.setdefault(at, _Bucket(after=before))
        name = _group_of(response, self._grouping)
        if self._only not in (None, name):
            return
        bucket.groups[name] += 1
        reason = reason_of(response)
        if reason:
            bucket.reasons[reason] += 1
        tools = _tools_of(response)
        bucket.tools.update(tools)
        for tally in (bucket, self._groups.setdefault(name, _Tally())):
            _add(tally, response, ended_badly=bool(reason), tool_calls=len(tools))

    def report(self, *, covered_from: int | None = None) -> ActivityReport:
        """Return what was counted. `covered_from`: no response before then was read."""
        names = _most_frequent(each.groups for each in self._buckets.values())
        reasons = _most_frequent(each.reasons for each in self._buckets.values())
        tools = _most_frequent(each.tools for each in self._buckets.values())
        largest = sorted(self._groups.items(), key=lambda each: (-each[1].requests, each[0]))
        return ActivityReport(
            begins_at=self.begins_at,
            ends_at=self._ends_at,
            step=self._step,
            read=self._read,
            covered_from=covered_from,
            names=names,
            reasons=reasons,
            tools=tools,
            groups=[
                ActivityGroup(name=name, figures=tally.figures())
                for name, tally in largest[:MAX_GROUPS]
            ],
            buckets=[
                ActivityBucket(
                    at=at,
                    after=bucket.after,
                    figures=bucket.figures(),
                    groups=_with_others(bucket.groups, names),
                    reasons=_with_others(bucket.reasons, reasons),
                    tools=_with_others(bucket.tools, tools),
                )
                for at, bucket in sorted(self._buckets.items())
            ],
        )


def reason_of(response: ResponseSummary) -> str:
    """Return why a response did not complete; "" if it did, or runs."""
    if response.error is not None:
        return response.error.code
    if response.incomplete_details is not None:
        return response.incomplete_details.reason
    return response.status if response.status in ("failed", "incomplete", "cancelled") else ""


def percentiles_of(values: Sequence[float]) -> Percentiles | None:
    """Return the percentiles by the nearest rank.

    >>> percentiles_of([4.0, 1.0, 3.0, 2.0])
    Percentiles(p50=2.0, p95=4.0)
    """
    if not values:
        return None
    ordered = sorted(values)
    p50, p95 = (ordered[-(-len(ordered) * rank // 100) - 1] for rank in (50, 95))
    return Percentiles(p50=p50, p95=p95)


def _add(tally: _Tally, response: ResponseSummary, *, ended_badly: bool, tool_calls: int) -> None:
    tally.requests += 1
    tally.ended_badly += ended_badly
    tally.tool_calls += tool_calls
    if response.usage is not None:
        tally.input_tokens += response.usage.input_tokens
        tally.cached_tokens += response.usage.input_tokens_details.cached_tokens
        tally.output_tokens += response.usage.output_tokens
    metrics = response.metrics
    if metrics is UNSET:
        return
    if metrics.admitted_at is not None and metrics.epoch == 1:
        tally.queue.append(metrics.admitted_at - metrics.received_at)
    firsts = (turn.first_token_at for turn in metrics.turns)
    if (first := next((each for each in firsts if each is not None), None)) is not None:
        tally.first_token.append(first - metrics.received_at)
    speeds = (turn.tokens_per_second for turn in reversed(metrics.turns))
    if (speed := next((each for each in speeds if each), None)) is not None:
        tally.tokens_per_second.append(speed)


def _group_of(response: ResponseSummary, grouping: Grouping) -> str:
    if grouping == "model":
        return response.model
    metrics = response.metrics
    if metrics is UNSET:
        return OTHERS
    return metrics.door if grouping == "door" else metrics.key_name or metrics.key_id


def _tools_of(response: ResponseSummary) -> list[str]:
    turns = () if response.metrics is UNSET else response.metrics.turns
    return [call.name for turn in turns for call in turn.tool_calls if call.name != LISTING]


def _most_frequent(counts: Iterable[Counter[str]]) -> list[str]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    del total[OTHERS]
    return sorted(total, key=lambda name: (-total[name], name))[:MAX_NAMES]


def _with_others(counts: Mapping[str, int], names: Sequence[str]) -> dict[str, int]:
    found = {name: counts[name] for name in names if name in counts}
    others = sum(counts.values()) - sum(found.values())
    return {**found, OTHERS: others} if others else found
