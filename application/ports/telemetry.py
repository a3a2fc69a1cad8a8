"""Telemetry: what operators count, time and trace."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Literal, Protocol

from msgspec import Struct

from antiphon.domain.responses.metrics import ResponseMetrics
from antiphon.domain.responses.response import Response
from antiphon.domain.responses.usage import Usage

Labels = tuple[str, ...]


class Instrument(Struct, frozen=True, kw_only=True):
    """A metric: what is counted, timed or read, and by which labels.

    `name` is without the suffix for its unit, and without `_total`. Labels have few values, which
    no client chooses. `buckets` are the upper bounds of a histogram, in its unit.
    """

    name: str
    kind: Literal["counter", "histogram", "gauge"]
    help: str
    unit: str = ""
    labels: Labels = ()
    buckets: Sequence[float] = ()

    @property
    def exposed_name(self) -> str:
        """The name as Prometheus has it.

        >>> Instrument(name="a.time", kind="histogram", help="", unit="seconds").exposed_name
        'a_time_seconds'
        """
        name = self.name.replace(".", "_") + (f"_{self.unit}" if self.unit else "")
        return f"{name}_total" if self.kind == "counter" else name


ReadGauge = Callable[[], Awaitable[Mapping[Labels, float]]]
"""Returns the value of a gauge for each combination of labels. It may fail: then there is none."""


class Meter(Protocol):
    """Counts and times what the server does. No method waits or raises."""

    @abstractmethod
    def add(self, counter: Instrument, value: float = 1, labels: Labels = ()) -> None:
        """Add to a counter; `labels` has a value for each of its labels, in order."""

    @abstractmethod
    def observe(self, histogram: Instrument, value: float, labels: Labels = ()) -> None:
        """Add a value, in the unit of the histogram."""

    @abstractmethod
    def watch(self, gauge: Instrument, read: ReadGauge) -> None:
        """Call `read` whenever somebody asks for the metrics."""


class NullMeter(Meter):
    """Counts nothing, for a server without metrics."""

    def add(self, counter: Instrument, value: float = 1, labels: Labels = ()) -> None:
        pass

    def observe(self, histogram: Instrument, value: float, labels: Labels = ()) -> None:
        pass

    def watch(self, gauge: Instrument, read: ReadGauge) -> None:
        pass


class EndedRun(Struct, frozen=True, kw_only=True):
    """A run that has ended here, without its output, which may be large.

    `error` is the code of an error, and `incomplete_reason` why the response is incomplete.
    """

    tenant: str
    response_id: str
    model: str
    status: str
    background: bool
    conversation_id: str | None
    error: str
    incomplete_reason: str
    usage: Usage | None
    metrics: ResponseMetrics

    @classmethod
    def of(cls, tenant: str, response: Response, metrics: ResponseMetrics) -> EndedRun:
        details = response.incomplete_details
        return cls(
            tenant=tenant,
            response_id=response.id,
            model=response.model,
            status=response.status,
            background=bool(response.background),
            conversation_id=response.conversation.id if response.conversation else None,
            error=(response.error.code or "error") if response.error else "",
            incomplete_reason=details.reason if details else "",
            usage=response.usage,
            metrics=metrics,
        )

    @property
    def spans(self) -> int:
        """The number of the spans of its trace, by which its size is judged."""
        return 1 + sum(1 + len(turn.tool_calls) for turn in self.metrics.turns)


ReportRun = Callable[[EndedRun], None]
"""Tells somebody of an ended run. It does not wait."""
