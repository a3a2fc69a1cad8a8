"""Stop strings end a turn where the text of its messages has one.

Engines would look for them in everything that a model writes: in its reasoning, in the markup of
messages and in the arguments of calls, which would end without an answer, or with half of a call.
So they are not told of any.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from msgspec.structs import replace

from antiphon.application.ports import Sampling
from antiphon.domain import deltas as d

TextualDelta = d.TextDelta | d.RefusalDelta

STEP_TOKENS = 16
"""Of a turn with stop strings: so many tokens may be generated in vain."""


def stop_strings_of(sampling: Sampling) -> StopStrings | None:
    """Return the stop strings of a turn, None if it has none."""
    if not sampling.stop:
        return None
    return StopStrings(sampling.stop, include=sampling.include_stop_str_in_output)


class StopStrings:
    """Passes deltas on up to the first stop string, and delays text that may begin one."""

    def __init__(self, stops: Sequence[str], *, include: bool) -> None:
        self._stops = stops
        self._include = include
        self._prefixes = StopPrefixes(stops)
        self._delayed: TextualDelta | None = None
        self.stopped_by: str | None = None
        """The stop string that came: nothing more is passed on."""

    @property
    def has_stopped(self) -> bool:
        """Whether a stop string came."""
        return self.stopped_by is not None

    def feed(self, deltas: Sequence[d.Delta]) -> list[d.Delta]:
        passed: list[d.Delta] = []
        for delta in deltas:
            if self.has_stopped:
                continue
            if isinstance(delta, TextualDelta):
                passed += self._write(delta)
            else:
                passed += [*self.end(), delta]
        return passed

    def end(self) -> list[d.Delta]:
        """Return the delayed text: no stop string came."""
        delayed, self._delayed = self._delayed, None
        self._prefixes.reset()
        return [delayed] if delayed is not None and not self.has_stopped else []

    def _write(self, delta: TextualDelta) -> list[d.Delta]:
        passed: list[d.Delta] = []
        if self._delayed is not None and not _continues(self._delayed, delta):
            passed = self.end()
        joined = _join(self._delayed, delta)
        self._delayed = None
        matches = [(start, stop) for stop in self._stops if (start := joined.text.find(stop)) >= 0]
        if matches:
            start, stop = min(matches)
            self.stopped_by = stop
            last = _cut(joined, start + len(stop) if self._include else start)
            return [*passed, last] if last.text else passed
        delayed_length = self._prefixes.feed(delta.text)
        ready = _cut(joined, len(joined.text) - delayed_length)
        if delayed_length:
            self._delayed = _rest_of(joined, ready)
        return [*passed, ready] if ready.text else passed


class StopPrefixes:
    """Reads a text and knows how many characters at its end may begin a stop string.

    Where they begin only moves forward: an end of the text that begins no stop string will not do
    so when it is longer. So each character is tried once, whatever the stop strings are.

    >>> prefixes = StopPrefixes(["STOP"])
    >>> prefixes.feed("and ST"), prefixes.feed("and so"), prefixes.feed(" S"), prefixes.feed("T")
    (2, 0, 1, 2)
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = sorted({stop for stop in stops if stop})
        self._firsts = {stop[0] for stop in self._stops}
        self._max_length = max(map(len, self._stops), default=1) - 1
        self._end = ""

    def reset(self) -> None:
        """Begin a new text."""
        self._end = ""

    def feed(self, text: str) -> int:
        """Read more of a text that has no whole stop string."""
        if not self._end and self._firsts.isdisjoint(text):  # as most often
            return 0
        end = self._end + text
        start = self._next_first(end, max(0, len(end) - self._max_length))
        while start < len(end) and not self._begins_stop(end[start:]):
            start = self._next_first(end, start + 1)
        self._end = end[start:]
        return len(self._end)

    def _next_first(self, text: str, start: int) -> int:
        """Return the next place at which a stop string may begin, or the length of the text."""
        places = [text.find(first, start) for first in self._firsts]
        return min((place for place in places if place >= 0), default=len(text))

    def _begins_stop(self, text: str) -> bool:
        # In their order, those that it begins come right after it.
        place = bisect_right(self._stops, text)
        return place < len(self._stops) and self._stops[place].startswith(text)


def _continues(delayed: TextualDelta, delta: TextualDelta) -> bool:
    return type(delayed) is type(delta) and getattr(delayed, "phase", None) == getattr(
        delta, "phase", None
    )


def _join(delayed: TextualDelta | None, delta: TextualDelta) -> TextualDelta:
    if delayed is None:
        return delta
    joined = replace(delta, text=delayed.text + delta.text)
    if isinstance(delayed, d.TextDelta) and isinstance(delta, d.TextDelta):
        return replace(joined, logprobs=delayed.logprobs + delta.logprobs)
    return joined


def _cut(delta: TextualDelta, length: int) -> TextualDelta:
    """Return the first `length` characters, with the logprobs of their whole tokens."""
    if length >= len(delta.text):
        return delta
    text = delta.text[:length]
    if not isinstance(delta, d.TextDelta):
        return replace(delta, text=text)
    remaining_bytes, count = len(text.encode()), 0
    for logprob in delta.logprobs:
        remaining_bytes -= len(logprob.bytes)
        if remaining_bytes < 0:
            break
        count += 1
    return replace(delta, text=text, logprobs=delta.logprobs[:count])


def _rest_of(whole: TextualDelta, start: TextualDelta) -> TextualDelta:
    rest = replace(whole, text=whole.text[len(start.text) :])
    if isinstance(whole, d.TextDelta) and isinstance(start, d.TextDelta):
        return replace(rest, logprobs=whole.logprobs[len(start.logprobs) :])
    return rest
