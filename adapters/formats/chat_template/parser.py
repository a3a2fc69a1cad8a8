"""What a model of a chat-template family writes, read as deltas.

Rules, the same for every family (its row says which markers there are):

- Prose is visible text, reasoning or a refusal, depending on the marker before it. Whitespace
  between prose and a block (reasoning, a call) belongs to the markup; prose of whitespace alone is
  none. A message that nothing precedes keeps its leading whitespace.
- A call is a call if it names a tool that this turn offers. Anything else between call markers,
  and whatever is malformed before its arguments begin, is prose without the markers.
- A call inside reasoning ends the reasoning: models forget to close it.
- Without parallel calls, those after the first are read and given out to nobody.
- Markers that end a turn, or that close what is not open, are never text.
- Where the text's format is JSON, a message that begins as JSON goes on to the end of the turn: a
  marker in it is a part of a string.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

from antiphon.adapters.formats.chat_template.families import Family, Region
from antiphon.adapters.formats.chat_template.logprob_alignment import LogprobAlignment
from antiphon.adapters.formats.chat_template.payloads import READERS, Calls
from antiphon.adapters.formats.chat_template.text_buffer import MarkerFinder, Resumable, TextBuffer
from antiphon.adapters.formats.chat_template.tokenizer import Tokenizer
from antiphon.adapters.formats.tools import call_start, callable_tools
from antiphon.application.ports import Parser, Step, Turn
from antiphon.domain import deltas as d
from antiphon.domain.tools import ToolSpec

JSON_FORMATS = ("json_schema", "json_object")
JSON_BEGINNINGS = '{["'

Kind = Callable[[str], d.Delta]
"""A delta that is a text: TextDelta, ReasoningDelta, RefusalDelta, ArgumentsDelta."""


class ChatTemplateParser(Parser):
    """Reads one turn. `reasons_first`: the prompt has opened the reasoning already."""

    def __init__(
        self, family: Family, tokenizer: Tokenizer, *, turn: Turn, reasons_first: bool = False
    ) -> None:
        self.reasoning_tokens = 0
        self._mended = False
        self._tokenizer = tokenizer
        self._tape = TextBuffer()
        self._out = _Deltas()
        self._calls = _OfferedCalls(turn, self._out, begins=self._call_begins)
        self._regions = family.calls
        self._bare = family.bare if self._calls.tools else {}
        self._moves = _moves(family)
        self._finder, self._catch = _search(
            (*self._moves, *family.calls, *family.dropped, *family.ends)
        )
        self._json_ends = family.ends if turn.text.format.get("type") in JSON_FORMATS else None

        # Reasoning tokens are counted by the markers' ids, or, where a marker is no token, by
        # encoding the reasoning. Neither depends on steps; text may lag behind its tokens.
        self._think_id, self._leave_ids = _ids(family, tokenizer)
        self._counts_ids = bool(self._leave_ids)
        self._inside = reasons_first
        self._thought: list[str] = []

        self._prose: Kind = d.ReasoningDelta if reasons_first else d.TextDelta
        self._open = False  # prose of this kind was given out since the last block
        self._after_block = reasons_first
        self._at_start = True  # only whitespace since the turn, or its last block, began
        self._gap: list[tuple[int, str]] = []  # whitespace that may belong to a block
        self._alignment: LogprobAlignment | None = None
        # The delta that a step's text simply becomes, where nothing is pending.
        self._quick: Kind | None = None
        self._reading = self._read()
        next(self._reading)

    @property
    def is_well_formed(self) -> bool:  # type: ignore[override]  # the calls know a part of it
        return not self._mended and not self._calls.dropped

    def feed(self, step: Step) -> list[d.Delta]:
        text, quick = step.text, self._quick
        if self._counts_ids:
            self._count(step.token_ids)
        if quick is None or step.logprobs is not None or not text or self._catch(text):
            return self._feed(step)
        if quick is d.ReasoningDelta and not self._counts_ids:
            self._thought.append(text)
        return [quick(text)]

    def _feed(self, step: Step) -> list[d.Delta]:
        if step.logprobs is not None and self._alignment is None:
            self._alignment = LogprobAlignment(self._tape.origin + len(self._tape.text))
        if self._alignment:
            self._alignment.feed(step.text, step.logprobs)
        if step.text:
            self._quick = None
            self._tape.write(step.text)
            next(self._reading, None)
        if self._alignment:
            self._out.extend(self._alignment.ready())
        return self._out.take()

    def end(self) -> list[d.Delta]:
        self._tape.closed = True
        next(self._reading, None)
        if self._open:
            self._give_gap()
        if self._alignment:
            self._out.extend(self._alignment.flush())
        if not self._counts_ids and self._thought:
            thought = "".join(self._thought)
            self.reasoning_tokens = len(self._tokenizer.encode(thought, special=False))
        return self._out.take()

    def _count(self, token_ids: Sequence[int]) -> None:
        if not self._inside and self._think_id not in token_ids:
            return
        for token in token_ids:
            if self._inside:
                if token in self._leave_ids:
                    self._inside = False
                elif token != self._think_id:
                    self.reasoning_tokens += 1
            elif token == self._think_id:
                self._inside = True

    # --- reading ----------------------------------------------------------------------------------

    def _read(self) -> Resumable[None]:
        tape = self._tape
        while True:
            if self._bare and self._at_start and (yield from self._bare_call()):
                continue
            finder = self._finder
            start, end = finder.find(tape.text, tape.pos)
            if end < 0 and tape.closed:
                start = len(tape.text)
            self._give(tape.text[tape.pos : start], tape.origin + tape.pos)
            tape.pos = start
            if finder is not self._finder:
                continue  # what was found is no marker any more
            if end >= 0:
                tape.pos = end
                yield from self._meet(tape.text[start:end])
            elif tape.closed:
                return
            else:
                tape.forget()
                if self._open and not self._gap and not tape.text and not self._alignment:
                    self._quick = self._prose
                yield

    def _meet(self, marker: str) -> Resumable[None]:
        origin, target = self._moves.get(marker, (None, None))
        if marker in self._regions:
            yield from self._call(self._regions[marker], marker)
        elif target and self._prose is not target and origin in (None, self._prose):
            self._leave(target)
        else:
            self._drop()

    def _call(self, region: Region, marker: str) -> Resumable[None]:
        self._tape.pin()
        if (yield from READERS[region.reader](self._tape, self._calls, region)):
            return
        self._tape.back()
        if self._prose is d.ReasoningDelta:
            # Reasoning about markup is reasoning; it is not for us to take it out.
            self._give(marker, self._tape.origin + self._tape.pos - len(marker))
        else:
            self._mended = True
            self._drop()

    def _bare_call(self) -> Resumable[bool]:
        if self._prose is not d.TextDelta:
            return False
        self._tape.pin()
        yield from self._tape.space()
        region = self._bare.get((yield from self._tape.peek()))
        if region and (yield from READERS[region.reader](self._tape, self._calls, region)):
            return True
        self._tape.back()
        # Before anything else it may still be a marker, and a call may follow that.
        self._at_start = region is None
        return False

    def _call_begins(self) -> None:
        self._tape.release()
        self._leave(d.TextDelta)

    # --- prose ------------------------------------------------------------------------------------

    def _leave(self, target: Kind) -> None:
        """End the prose that is open; the next will be of kind `target`."""
        self._gap.clear()
        if self._alignment:
            self._out.extend(self._alignment.flush())
        # A refusal is a part of the message that it stands in.
        if self._open and d.RefusalDelta not in (self._prose, target):
            self._out.add(d.ItemEnd())
        self._prose = target
        self._open = False
        self._after_block = self._at_start = True

    def _drop(self) -> None:
        self._after_block = self._after_block or not self._open

    def _give(self, text: str, at: int) -> None:
        """Give out prose from place `at`, but for whitespace at its end, which may be markup."""
        body = text.rstrip()
        if body:
            end = at + len(body)
            if self._open or not self._after_block:
                self._give_gap()
            else:
                self._gap.clear()
                body = body.lstrip()
            self._emit(body, end - len(body))
            if not self._open and self._prose is d.TextDelta:
                self._message_begins(body)
            self._open = True
            self._at_start = False
            at = end
            text = text[len(text.rstrip()) :]
        if text:
            self._gap.append((at, text))

    def _message_begins(self, text: str) -> None:
        if self._json_ends is not None and text.lstrip()[0] in JSON_BEGINNINGS:
            self._finder, self._catch = _search(self._json_ends)

    def _give_gap(self) -> None:
        for at, space in self._gap:
            self._emit(space, at)
        self._gap.clear()

    def _emit(self, text: str, at: int) -> None:
        if self._prose is d.ReasoningDelta:
            self._thought.append(text)
        if self._alignment and self._prose is d.TextDelta:
            self._out.extend(self._alignment.show(text, at))
        else:
            self._out.write(self._prose, text)


class _OfferedCalls(Calls):
    """The calls of a turn, as far as it allows them."""

    def __init__(self, turn: Turn, out: _Deltas, *, begins: Callable[[], None]) -> None:
        self.tools = callable_tools(turn)
        self._parallel = turn.parallel_tool_calls
        self._out = out
        self._begins = begins
        self._began = False
        self._silent = False
        self.dropped = False

    def offered(self, name: str) -> ToolSpec | None:
        return self.tools.get(name) or self.tools.get(name.strip())

    def begin(self, tool: ToolSpec, call_id: str | None = None) -> None:
        self._begins()
        self._silent = self._began and not self._parallel
        self._began = True
        self.dropped = self.dropped or self._silent
        if not self._silent:
            self._out.add(call_start(tool, call_id))

    def write(self, text: str) -> None:
        if not self._silent:
            self._out.write(d.ArgumentsDelta, text)

    def end(self) -> None:
        if not self._silent:
            self._out.add(d.ItemEnd())


class _Deltas:
    """The deltas of one step; texts of a kind that follow each other are one delta."""

    def __init__(self) -> None:
        self._settled: list[d.Delta] = []
        self._kind: Kind = d.TextDelta
        self._pieces: list[str] = []

    def write(self, kind: Kind, text: str) -> None:
        if kind is not self._kind:
            self._settle()
            self._kind = kind
        if text:
            self._pieces.append(text)

    def add(self, delta: d.Delta) -> None:
        self._settle()
        self._settled.append(delta)

    def extend(self, deltas: Iterable[d.Delta]) -> None:
        for delta in deltas:
            self.add(delta)

    def take(self) -> list[d.Delta]:
        self._settle()
        settled, self._settled = self._settled, []
        return settled

    def _settle(self) -> None:
        if self._pieces:
            self._settled.append(self._kind("".join(self._pieces)))
            self._pieces = []


@lru_cache
def _search(markers: tuple[str, ...]) -> tuple[MarkerFinder, Callable[[str], object]]:
    """Return a finder of the markers, and a search for what keeps text from being passed on as it
    is: the first character of a marker anywhere, or whitespace at the end.
    """
    finder = MarkerFinder(markers)
    firsts = f"[{re.escape(finder.firsts)}]|" if finder.firsts else ""
    return finder, re.compile(rf"{firsts}\s\Z").search


def _moves(family: Family) -> Mapping[str, tuple[Kind | None, Kind]]:
    """Return, by marker, the only prose it ends (None: any) and the prose that it begins."""
    moves: dict[str, tuple[Kind | None, Kind]] = {}
    for markers, kind in ((family.think, d.ReasoningDelta), (family.refusal, d.RefusalDelta)):
        if markers:
            moves[markers[0]] = (None, kind)
            moves[markers[1]] = (kind, d.TextDelta)
    return moves


def _ids(family: Family, tokenizer: Tokenizer) -> tuple[int | None, frozenset[int]]:
    """Return the token that opens reasoning and those that leave it, if its end is a token."""
    if family.think is None or tokenizer.token_id(family.think[1]) is None:
        return None, frozenset()
    leaving = (family.think[1], *family.calls, *family.ends)
    ids = (tokenizer.token_id(marker) for marker in leaving)
    return tokenizer.token_id(family.think[0]), frozenset(i for i in ids if i is not None)
