"""Stop strings for formats that read tokens: the engine ends the run, and this ends the text.

An engine leaves the stop string out of a step's text but not out of its tokens. A format whose
parser reads text (ports.Format.reads_text) does not need this module.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from antiphon.domain import deltas as d

TextualDelta = d.TextDelta | d.ReasoningDelta | d.ArgumentsDelta | d.RefusalDelta


class StopStrings:
    """Passes deltas on up to the first stop string, and delays text that may begin one."""

    def __init__(self, stops: Sequence[str], *, include: bool) -> None:
        self._stops = stops
        self._include = include
        self._prefixes = StopPrefixes(stops)
        self._delayed: TextualDelta | None = None
        self._has_stopped = False

    @property
    def has_stopped(self) -> bool:
        """Whether a stop string came: nothing more is passed on."""
        return self._has_stopped

    def feed(self, deltas: Sequence[d.Delta]) -> list[d.Delta]:
        passed: list[d.Delta] = []
        for delta in deltas:
            if self._has_stopped:
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
        return [delayed] if delayed is not None and not self._has_stopped else []

    def _write(self, delta: TextualDelta) -> list[d.Delta]:
        passed: list[d.Delta] = []
        if self._delayed is not None and not _continues(self._delayed, delta):
            passed = self.end()
        joined = _join(self._delayed, delta)
        self._delayed = None
        matches = [(start, stop) for stop in self._stops if (start := joined.text.find(stop)) >= 0]
        if matches:
            self._has_stopped = True
            start, stop = min(matches)
            last = _cut(joined, start + len(stop) if self._include else start)
            return [*passed, last] if last.text else passed
        delayed_length = self._prefixes.feed(delta.text)
        ready = _cut(joined, len(joined.text) - delayed_length)
        if delayed_length:
            self._delayed = _rest_of(joined, ready)
        return [*passed, ready] if ready.text else passed


class StopPrefixes:
    """Reads a text and knows how many characters at its end may begin a stop string.

    Each character is read once (Knuth, Morris and Pratt): comparing each end of the text with each
    beginning of a stop string would cost the square of its length with every token.

    >>> prefixes = StopPrefixes(["STOP"])
    >>> prefixes.feed("and ST"), prefixes.feed("and so"), prefixes.feed(" S"), prefixes.feed("T")
    (2, 0, 1, 2)
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [(stop, _fallbacks(stop)) for stop in stops if stop]
        self._lengths = [0] * len(self._stops)

    def reset(self) -> None:
        """Begin a new text."""
        self._lengths = [0] * len(self._stops)

    def feed(self, text: str) -> int:
        """Read more of a text that has no whole stop string."""
        for number, (stop, fallbacks) in enumerate(self._stops):
            length = self._lengths[number]
            if not length and stop[0] not in text:  # as most often
                continue
            for character in text:
                while length and (length == len(stop) or stop[length] != character):
                    length = fallbacks[length - 1]
                if stop[length] == character:
                    length += 1
            self._lengths[number] = length
        return max(self._lengths, default=0)


def _fallbacks(stop: str) -> list[int]:
    """Return for each beginning of `stop` the length of the longest shorter one that ends it."""
    fallbacks = [0] * len(stop)
    length = 0
    for place in range(1, len(stop)):
        while length and stop[length] != stop[place]:
            length = fallbacks[length - 1]
        if stop[length] == stop[place]:
            length += 1
        fallbacks[place] = length
    return fallbacks


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
