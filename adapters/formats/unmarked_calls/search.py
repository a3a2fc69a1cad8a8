"""Find calls in the text of a turn: deltas in, deltas out.

The rules are the same for every family and for model servers, after their own reader:

- A block of a message that is nothing but JSON calls of tools that the turn allows, with arguments
  that fit their schemas, is calls (blocks.py). The text around it stays text, without the
  whitespace next to the calls.
- A block starts a line. It does not stand in a fence with something else, in other JSON, or after
  or before a character that makes it a part of something larger.
- Text is held back while it may still become calls, and no longer; so is whitespace at its end.
- Without parallel calls, all calls after the first are dropped, as a family's reader does.

Reasoning and refusals are not searched. How the text is cut makes no difference.
"""

from __future__ import annotations

import weakref
from collections.abc import Generator, Sequence
from typing import Any

from antiphon.adapters.formats.chat_template.parsing.text_buffer import (
    MarkerFinder,
    Resumable,
    TextBuffer,
)
from antiphon.adapters.formats.chat_template.payloads.json_values import parse_json
from antiphon.adapters.formats.tools import ToolNames, call_start
from antiphon.adapters.formats.unmarked_calls.blocks import FENCE, UnmarkedCall, read_block
from antiphon.adapters.formats.unmarked_calls.held_text import HeldText
from antiphon.application.ports import Turn
from antiphon.domain import deltas as d

BLOCK_STARTS = frozenset("{[<`")
BEFORE_BLOCK = frozenset("[({,=|+\\<>")
"""A character that, on the line above, makes JSON a part of something larger."""

_BRACKETS = MarkerFinder(['"', "{", "}", "[", "]"])
_QUOTES = MarkerFinder(['"', "\\"])


def search_of(turn: Turn) -> UnmarkedCalls | None:
    """Return the search of a turn: None if it may not call tools, or asks for a format of text."""
    is_free = turn.text.format.get("type", "text") == "text" and turn.sampling.constraint is None
    return UnmarkedCalls(turn) if turn.tools and turn.choice.mode != "none" and is_free else None


class UnmarkedCalls:
    """Passes deltas on, with calls in place of the text that spells them.

    `count` is the number of calls that were found. `has_dropped_calls`: some are left out, because
    the turn allows only one, or as a repetition.
    """

    def __init__(self, turn: Turn) -> None:
        self._tools = ToolNames(turn.tools, turn.choice)
        self._parallel = turn.parallel_tool_calls
        self._has_calls = False
        self._ends_with_call = False
        self._phase: str | None = None
        self._message: _Message | None = None
        # The calls that were found, and one with markers that may repeat one of them.
        self._repeatable: list[tuple[d.CallStart, Any]] = []
        self._pending: list[d.Delta] = []
        self.count = 0
        self.has_dropped_calls = False

    def feed(self, deltas: Sequence[d.Delta]) -> list[d.Delta]:
        passed: list[d.Delta] = []
        for delta in deltas:
            if isinstance(delta, d.TextDelta):
                passed += self._feed_text(delta)
            elif self._pending and isinstance(delta, d.ArgumentsDelta):
                self._pending.append(delta)
            elif self._pending and isinstance(delta, d.ItemEnd) and self._drops_repetition():
                continue
            else:
                passed += [*self.end(), *self._pass_on(delta)]
        return passed

    def end(self) -> list[d.Delta]:
        """Return what was held back: no more text of the message comes."""
        pending, self._pending = self._pending, []
        message, self._message = self._message, None
        return pending if message is None else [*pending, *self._write(message.end())]

    def _feed_text(self, delta: d.TextDelta) -> list[d.Delta]:
        message = self._message
        if message is not None and delta.phase == self._phase:
            return self._write(message.feed(delta))
        before = self.end()
        self._message, self._phase = _Message(self._tools), delta.phase
        return [*before, *self._write(self._message.feed(delta))]

    def _pass_on(self, delta: d.Delta) -> list[d.Delta]:
        if isinstance(delta, d.ItemEnd) and self._ends_with_call:
            return []  # of the text that became calls
        self._ends_with_call = False
        if isinstance(delta, d.CallStart):
            self._has_calls = True
            if any(_is_same_tool(delta, start) for start, _ in self._repeatable):
                self._pending.append(delta)
                return []
        return [delta]

    def _drops_repetition(self) -> bool:
        """Drop the pending call if it says with markers what was found without them."""
        start, *arguments = self._pending
        value = parse_json("".join([each.text for each in arguments]))  # type: ignore[attr-defined]
        for repeated in self._repeatable:
            if _is_same_tool(start, repeated[0]) and value == repeated[1]:
                self._repeatable.remove(repeated)
                self._pending.clear()
                self.has_dropped_calls = self._ends_with_call = True
                return True
        return False

    def _write(self, found: Sequence[d.Delta | Sequence[UnmarkedCall]]) -> list[d.Delta]:
        """Return what a message became, with its calls as deltas."""
        deltas: list[d.Delta] = []
        for each in found:
            self._ends_with_call = not isinstance(each, d.Delta)
            if isinstance(each, d.Delta):
                deltas.append(each)
                continue
            for call in each:
                deltas += self._write_call(call)
        return deltas

    def _write_call(self, call: UnmarkedCall) -> list[d.Delta]:
        if self._has_calls and not self._parallel:
            self.has_dropped_calls = True
            return []
        self._has_calls = True
        self.count += 1
        start = call_start(call.tool)
        self._repeatable.append((start, parse_json(call.arguments)))
        return [start, d.ArgumentsDelta(call.arguments), d.ItemEnd()]


def _is_same_tool(delta: d.Delta, start: d.CallStart) -> bool:
    assert isinstance(delta, d.CallStart)
    return (delta.name, delta.namespace) == (start.name, start.namespace)


class _Message:
    """The text of one message, as it is searched: it returns texts, and calls between them.

    Offsets count the characters of the message that did not pass through unread.
    """

    def __init__(self, tools: ToolNames) -> None:
        self._tools = tools
        self._buffer = TextBuffer()
        self._held = HeldText()
        self._found: list[d.Delta | Sequence[UnmarkedCall]] = []
        self._given = 0  # the offset up to which text was given out, or became calls
        self._passed = 0  # the offset up to which it is text
        self._last = ""  # the last two characters of text, whitespace aside
        self._backticks = 0  # at the end of the text
        self._is_fenced = False
        self._has_text = False
        self._is_after_calls = False
        self._is_in_line = False
        # Of a proxy: in a cycle of references, the text would stay until it is collected.
        self._search = _Message._read(weakref.proxy(self))
        next(self._search)

    def feed(self, delta: d.TextDelta) -> Sequence[d.Delta | Sequence[UnmarkedCall]]:
        text = delta.text
        if self._is_in_line and text and "\n" not in text and not text[-1].isspace():
            self._note(text)
            return (delta,)
        self._is_in_line = False
        self._held.add(delta)
        self._buffer.write(text)
        next(self._search, None)
        return self._take()

    def end(self) -> Sequence[d.Delta | Sequence[UnmarkedCall]]:
        self._buffer.closed = True
        next(self._search, None)
        return self._take()

    def _take(self) -> Sequence[d.Delta | Sequence[UnmarkedCall]]:
        self._give()
        found, self._found = self._found, []
        return found

    # --- searching --------------------------------------------------------------------------------

    def _read(self) -> Generator[None]:
        buffer = self._buffer
        while True:
            yield from buffer.skip_space()
            char = yield from buffer.peek()
            if not char:
                break
            if char in BLOCK_STARTS and self._may_start_block():
                buffer.pin()
                calls = yield from read_block(buffer, self._tools)
                if calls:
                    buffer.unpin()
                    self._write_calls(calls)
                    continue
                buffer.rewind()
            if char in "{[" and not self._is_fenced:
                yield from self._pass_brackets()
            yield from self._pass_line()
        if not self._is_after_calls:
            self._passed = buffer.offset + buffer.pos

    def _may_start_block(self) -> bool:
        return not (
            self._is_fenced or self._last[-1:] in BEFORE_BLOCK or self._last in ('":', "':")
        )

    def _pass_line(self) -> Resumable[None]:
        """Pass text on up to the end of the line."""
        buffer = self._buffer
        while True:
            start, end = buffer.pos, buffer.text.find("\n", buffer.pos)
            buffer.pos = len(buffer.text) if end < 0 else end
            self._pass(start)
            if end >= 0 or buffer.closed:
                return
            buffer.discard_read()
            self._is_in_line = self._passed == buffer.offset
            yield

    def _pass_brackets(self) -> Resumable[None]:
        """Pass JSON on that is no call, or text in brackets, with all that is in it."""
        buffer, depth, finder = self._buffer, 0, _BRACKETS
        start = buffer.pos
        while True:
            marker_start, marker_end = finder.find(buffer.text, buffer.pos, is_whole=buffer.closed)
            buffer.pos = max(marker_start, marker_end)
            marker = buffer.text[marker_start:marker_end] if marker_end >= 0 else ""
            if marker == '"':
                finder = _BRACKETS if finder is _QUOTES else _QUOTES
            elif marker == "\\":
                self._pass(start)
                start = buffer.pos
                yield from buffer.read_char()
            elif marker:
                depth += 1 if marker in "{[" else -1
            if (marker and depth == 0) or buffer.at_end:
                self._pass(start)
                return
            if not marker:
                self._pass(start)
                buffer.discard_read()
                start = buffer.pos
                yield

    # --- writing ----------------------------------------------------------------------------------

    def _pass(self, start: int) -> None:
        """Note that the text from a place in the buffer to where it was read is text.

        Whitespace at its end may stand before calls, and is passed with what follows.
        """
        buffer = self._buffer
        text = buffer.text[start : buffer.pos].rstrip()
        if not text:
            return
        if self._is_after_calls:
            self._drop(buffer.offset + start)
            self._is_after_calls = False
        self._note(text)
        self._has_text = True
        self._passed = buffer.offset + start + len(text)

    def _note(self, text: str) -> None:
        """Remember what the text so far says about a block after it."""
        if "`" not in text:
            self._backticks = 0
        else:
            for char in text:
                self._backticks = self._backticks + 1 if char == "`" else 0
                if self._backticks == len(FENCE):
                    self._is_fenced = not self._is_fenced
        self._last = (self._last + text.rstrip()[-2:])[-2:]

    def _write_calls(self, calls: Sequence[UnmarkedCall]) -> None:
        self._give()
        self._drop(self._buffer.offset + self._buffer.pos)
        if self._has_text:
            self._found.append(d.ItemEnd())
        self._found.append(calls)
        self._has_text = False
        self._is_after_calls = True
        self._last = ""

    def _give(self) -> None:
        """Give out what is text."""
        if self._passed > self._given:
            self._found += self._held.take(self._passed - self._given)
            self._given = self._passed

    def _drop(self, offset: int) -> None:
        self._held.take(offset - self._given)
        self._given = self._passed = offset
