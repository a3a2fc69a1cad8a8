"""Cut reasoning between `<think>` and `</think>` out of a text."""

from __future__ import annotations

from antiphon.application.model.stop_strings import StopPrefixes
from antiphon.domain import deltas as d

OPEN, CLOSE = "<think>", "</think>"


class ThinkTags:
    """Reads a text that begins with reasoning; `is_open`: without the tag that opens it.

    A text that begins otherwise has none: a `<think>` later in it is the model's own words.
    """

    def __init__(self, *, is_open: bool) -> None:
        self._read = self._read_opening if is_open else self._read_start
        self._rest = ""
        self._blanks: list[str] = []
        """Spaces and line ends before the rest: of no tag, but perhaps at the end of reasoning."""

    def feed(self, text: str) -> list[d.Delta]:
        self._rest += text
        return self._read()

    def end(self) -> list[d.Delta]:
        """Return what was held back because it might have become a tag."""
        rest, self._rest = self._with_blanks(self._rest), ""
        if not rest:
            return []
        is_reasoning = self._read == self._read_reasoning
        return [d.ReasoningDelta(rest) if is_reasoning else d.TextDelta(rest)]

    def _read_start(self) -> list[d.Delta]:
        start = self._rest.lstrip()
        self._blanks.append(self._rest[: len(self._rest) - len(start)])
        self._rest = start
        if start.startswith(OPEN):
            self._blanks.clear()
            self._rest = start[len(OPEN) :]
            self._read = self._read_opening
            return self._read()
        if OPEN.startswith(start):
            return []
        self._rest = self._with_blanks(start)
        self._read = self._read_text
        return self._read()

    def _read_opening(self) -> list[d.Delta]:
        """Leave out the line ends before the reasoning."""
        self._rest = self._rest.lstrip()
        if not self._rest:
            return []
        self._read = self._read_reasoning
        return self._read()

    def _read_reasoning(self) -> list[d.Delta]:
        reasoning, tag, after = self._rest.partition(CLOSE)
        if tag:
            deltas = self._write_reasoning(reasoning.rstrip())
            self._blanks.clear()  # line ends before the tag are left out
            self._rest, self._read = after, self._read_gap
            return [*deltas, *self._read()]
        place = len(reasoning) - StopPrefixes([CLOSE]).feed(reasoning)
        ready = reasoning[:place].rstrip()
        deltas = self._write_reasoning(ready)
        self._blanks.append(reasoning[len(ready) : place])
        self._rest = reasoning[place:]
        return deltas

    def _read_gap(self) -> list[d.Delta]:
        """Leave out the blank lines between reasoning and text."""
        self._rest = self._rest.lstrip()
        if not self._rest:
            return []
        self._read = self._read_text
        return self._read()

    def _read_text(self) -> list[d.Delta]:
        text, self._rest = self._rest, ""
        return [d.TextDelta(text)] if text else []

    def _write_reasoning(self, text: str) -> list[d.Delta]:
        return [d.ReasoningDelta(self._with_blanks(text))] if text else []

    def _with_blanks(self, text: str) -> str:
        blanks, self._blanks = self._blanks, []
        return "".join([*blanks, text])
