"""Stop strings for formats that read tokens: the engine ends the run, this ends the text.

An engine leaves the stop string out of a step's text, but its tokens are there all the same. A
format whose parser reads text (ports.Format.reads_text) needs none of this.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from antiphon.domain import deltas as d

Written = d.TextDelta | d.ReasoningDelta | d.ArgumentsDelta | d.RefusalDelta


class StopStrings:
    """Passes deltas on up to the first stop string; what might become one is held back."""

    def __init__(self, stops: Sequence[str], *, include: bool) -> None:
        self._stops = stops
        self._include = include
        self._held: Written | None = None
        self._met = False

    def feed(self, deltas: Sequence[d.Delta]) -> list[d.Delta]:
        passed: list[d.Delta] = []
        for delta in deltas:
            if self._met:
                continue
            if isinstance(delta, Written):
                passed += self._write(delta)
            else:
                passed += [*self.end(), delta]
        return passed

    def end(self) -> list[d.Delta]:
        """Return what was held back for a stop string that did not come."""
        held, self._held = self._held, None
        return [held] if held is not None and not self._met else []

    def _write(self, delta: Written) -> list[d.Delta]:
        passed: list[d.Delta] = []
        if self._held is not None and not _continues(self._held, delta):
            passed = self.end()
        whole = _joined(self._held, delta)
        self._held = None
        found = [(at, stop) for stop in self._stops if (at := whole.text.find(stop)) >= 0]
        if found:
            self._met = True
            at, stop = min(found)
            whole = _first(whole, at + len(stop) if self._include else at)
            return [*passed, whole] if whole.text else passed
        keep = beginning_of_stop(whole.text, self._stops)
        before = _first(whole, len(whole.text) - keep)
        if keep:
            self._held = _rest(whole, before)
        return [*passed, before] if before.text else passed


def beginning_of_stop(text: str, stops: Sequence[str]) -> int:
    """Return how much of the end of `text`, which holds no stop string, may begin one.

    >>> beginning_of_stop("and ST", ["STOP"]), beginning_of_stop("and so", ["STOP"])
    (2, 0)
    """
    longest = max(map(len, stops), default=1) - 1
    for length in range(min(longest, len(text)), 0, -1):
        end = text[-length:]
        if any(stop.startswith(end) for stop in stops):
            return length
    return 0


def _continues(held: Written, delta: Written) -> bool:
    return type(held) is type(delta) and getattr(held, "phase", None) == getattr(
        delta, "phase", None
    )


def _joined(held: Written | None, delta: Written) -> Written:
    if held is None:
        return delta
    joined = replace(delta, text=held.text + delta.text)
    if isinstance(held, d.TextDelta) and isinstance(delta, d.TextDelta):
        return replace(joined, logprobs=held.logprobs + delta.logprobs)
    return joined


def _first(delta: Written, length: int) -> Written:
    """Return the first `length` characters, with the logprobs of their whole tokens."""
    if length >= len(delta.text):
        return delta
    text = delta.text[:length]
    if not isinstance(delta, d.TextDelta):
        return replace(delta, text=text)
    room, count = len(text.encode()), 0
    for logprob in delta.logprobs:
        room -= len(logprob.bytes)
        if room < 0:
            break
        count += 1
    return replace(delta, text=text, logprobs=delta.logprobs[:count])


def _rest(whole: Written, before: Written) -> Written:
    rest = replace(whole, text=whole.text[len(before.text) :])
    if isinstance(whole, d.TextDelta) and isinstance(before, d.TextDelta):
        return replace(rest, logprobs=whole.logprobs[len(before.logprobs) :])
    return rest
