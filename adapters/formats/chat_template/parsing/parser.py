"""Reads what a model of a chat-template family writes, as deltas.

The rules are the same for every family; the family's row says which markers there are:

- Prose is visible text, reasoning or a refusal, depending on the marker before it. Whitespace
  between prose and a block (reasoning, a call) belongs to the markup; whitespace alone is not
  prose. A message with nothing before it keeps its leading whitespace.
- A call must name a tool that this turn offers. Anything else between call markers, and anything
  malformed before its arguments start, is prose, with its markers, as the model wrote it.
- A message that starts with the name of a tool, a call's marker and its arguments is a call.
- A call inside reasoning ends the reasoning: models forget to close it. If the marker that closes
  it comes after all, the same call after it is a repetition, and dropped.
- Without parallel calls, all calls after the first are read and dropped.
- Markers that end a turn, or that close something that is not open, are never text. Those that end
  an answer end the message. Nor is the beginning of a marker where the tokens ran out.
- A marker that ends a turn of another family is no text at the end of the turn, and else it is.
- If the text's format is JSON, a message that starts as JSON goes on to the end of the turn, or to
  the marker that ends text: any other marker in it is part of a string.
- The line that labels reasoning, after the marker that opens it, is markup. So is the header of a
  message: a name directly before the marker that says what the message is. If what follows is no
  call that can be made, the header is prose, too.
- A marker that may open a call or other prose opens the prose if no call follows and there is no
  header.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache

from antiphon.adapters.formats.chat_template.families import Family, Region
from antiphon.adapters.formats.chat_template.parsing.family_markers import sort_markers
from antiphon.adapters.formats.chat_template.parsing.logprob_alignment import LogprobAlignment
from antiphon.adapters.formats.chat_template.parsing.offered_calls import OfferedCalls
from antiphon.adapters.formats.chat_template.parsing.text_buffer import (
    DeltaBuffer,
    DeltaType,
    Resumable,
    TextBuffer,
)
from antiphon.adapters.formats.chat_template.payloads import find_reader, read_name_first
from antiphon.adapters.formats.chat_template.payloads.calls import MAX_NAME_LENGTH, is_name
from antiphon.adapters.formats.chat_template.tokenizer import Tokenizer
from antiphon.application.ports import Parser, Step, Turn
from antiphon.domain import deltas as d
from antiphon.domain.tools import ToolSpec
from antiphon.domain.vocabulary.repairs import Repair

JSON_FORMATS = ("json_schema", "json_object")
SOURCES = "0123456789:,[] "
"""The characters of `0:[1,2],1:[3]`."""
JSON_START_CHARACTERS = '{["'

TokenId = Callable[[str], int | None]
"""Returns the token of a marker, None if it is not one token."""


class ChatTemplateParser(Parser):
    """Reads one turn. `starts_in_reasoning` says that the prompt already opened the reasoning.

    `tools` are the tools that may be called, by name, if they are not the turn's.
    """

    def __init__(
        self,
        family: Family,
        tokenizer: Tokenizer,
        *,
        turn: Turn,
        starts_in_reasoning: bool = False,
        tools: Mapping[str, ToolSpec] | None = None,
    ) -> None:
        self.reasoning_tokens = 0
        self._is_repaired = False
        self._tokenizer = tokenizer
        self._buffer = TextBuffer()
        self._deltas = DeltaBuffer()
        self._markers = sort_markers(family)
        # What the parser has must not keep the parser: only the garbage collector finds such a
        # cycle, and until then a few small objects keep the memory that a long request had.
        this = weakref.proxy(self)
        self._calls = OfferedCalls(
            turn, self._markers.finder, self._markers.call_openers, self._deltas, this
        )
        if tools is not None:
            self._calls.tools = tools
        self._finder, self._needs_reading = self._markers.search
        self._think_label = family.think_label
        # Some models forget the marker before it.
        self._may_be_label = bool(family.think_label) and not starts_in_reasoning
        self._message_start = family.message_start
        self._has_plain_header = family.header == ""
        self._expects_header = self._has_plain_header
        self._header = ""  # of the message whose marker comes next
        self._may_be_json = turn.text.format.get("type") in JSON_FORMATS

        # Reasoning tokens are counted between the markers' ids or, if the closing marker is no
        # token, by encoding the reasoning. Both ways are independent of the steps, in which text
        # may lag behind its tokens.
        self._open_ids, self._close_ids = _reasoning_ids(family, tokenizer.token_id)
        # Of several pairs of markers, some may be tokens and some not.
        self._plain_openings = _plain_openings(family, tokenizer.token_id)
        may_be_plain = starts_in_reasoning and bool(self._plain_openings)
        self._counts_by_ids = bool(self._close_ids) and not may_be_plain
        self._in_reasoning = starts_in_reasoning
        self._reasoning_texts: list[str] = []

        self._prose_type: DeltaType = d.ReasoningDelta if starts_in_reasoning else d.TextDelta
        self._has_prose = False  # prose of this type was written since the last block
        self._after_block = starts_in_reasoning
        self._at_start = True  # only whitespace since the turn or its last block started
        # Whitespace that may belong to a block.
        self._pending_whitespace: list[tuple[int, str]] = []
        # Markers of a section of calls, which are markup if a call follows.
        self._pending_openers: list[tuple[int, str]] = []
        # The markers that close what was no call: they are prose, too.
        self._markup_ends: list[str] = []
        self._alignment: LogprobAlignment | None = None
        # Set while nothing is pending, so that a step's text can become a delta as it is.
        self._pass_through_type: DeltaType | None = None
        self._reader = ChatTemplateParser._read(this)
        next(self._reader)

    @property
    def is_well_formed(self) -> bool:  # type: ignore[override]  # computed from the calls, too
        return not self._is_repaired and not self._calls.has_dropped_calls

    @property
    def repairs(self) -> Collection[Repair]:  # type: ignore[override]  # calls have them
        return self._calls.repairs

    def _repair(self, repair: Repair) -> None:
        self._is_repaired = True
        self._calls.note(repair)

    def feed(self, step: Step) -> list[d.Delta]:
        text, pass_through_type = step.text, self._pass_through_type
        if self._counts_by_ids and (
            self._in_reasoning or not self._open_ids.isdisjoint(step.token_ids)
        ):
            self._count_reasoning(step.token_ids)
        if (
            pass_through_type is None
            or step.logprobs is not None
            or not text
            or self._needs_reading(text)
        ):
            return self._feed(step)
        if pass_through_type is d.ReasoningDelta and not self._counts_by_ids:
            self._reasoning_texts.append(text)
        return [pass_through_type(text)]

    def _feed(self, step: Step) -> list[d.Delta]:
        if step.logprobs is not None and self._alignment is None:
            self._alignment = LogprobAlignment(self._buffer.offset + len(self._buffer.text))
        if self._alignment:
            self._alignment.feed(step.text, step.logprobs)
        if step.text:
            self._pass_through_type = None
            self._buffer.write(step.text)
            next(self._reader, None)
        if self._alignment:
            self._deltas.extend(self._alignment.take_whole_tokens())
        return self._deltas.take()

    def end(self) -> list[d.Delta]:
        self._buffer.closed = True
        next(self._reader, None)
        if self._has_prose:
            self._write_pending_whitespace()
        if self._alignment:
            self._deltas.extend(self._alignment.flush())
        self._calls.flush()
        if not self._counts_by_ids and self._reasoning_texts:
            reasoning = "".join(self._reasoning_texts)
            self.reasoning_tokens += len(self._tokenizer.encode(reasoning, special=False))
        return self._deltas.take()

    def _count_reasoning(self, token_ids: Sequence[int]) -> None:
        for token in token_ids:
            if self._in_reasoning:
                if token in self._close_ids:
                    self._in_reasoning = False
                elif token not in self._open_ids:
                    self.reasoning_tokens += 1
            elif token in self._open_ids:
                self._in_reasoning = True

    # --- reading ----------------------------------------------------------------------------------

    def _read(self) -> Resumable[None]:
        buffer = self._buffer
        while True:
            if self._at_start and (yield from self._read_start()):
                continue
            if self._may_be_label:
                self._may_be_label = False
                if (yield from buffer.read_literal(self._think_label)):
                    self._end_prose(d.ReasoningDelta)
            if self._expects_header:
                self._expects_header = False
                yield from self._read_header("")
            finder = self._finder
            start, end = finder.find(buffer.text, buffer.pos, is_whole=buffer.closed)
            if end < 0 and buffer.closed:
                start = finder.find_cut(buffer.text, buffer.pos)
            self.write_prose(buffer.text[buffer.pos : start], buffer.offset + buffer.pos)
            buffer.pos = start
            if finder is not self._finder:
                continue  # the text just written switched to JSON, in which this is no marker
            if end >= 0:
                buffer.pos = end
                yield from self._read_marker(buffer.text[start:end])
            elif buffer.closed:
                return
            else:
                buffer.discard_read()
                if (
                    self._has_prose
                    and not (self._pending_whitespace or self._pending_openers)
                    and not buffer.text
                    and not self._alignment
                ):
                    self._pass_through_type = self._prose_type
                yield

    def _read_marker(self, marker: str) -> Resumable[None]:
        header, self._header = self._header, ""
        region = self._markers.regions.get(marker)
        if region and (yield from self._reads_region(region)):
            return
        ended_type, next_type = self._markers.prose_changes.get(marker, (None, None))
        if marker in self._plain_openings and self._counts_by_ids:
            self._counts_by_ids = False
            self._reasoning_texts.clear()
        if region and (header or not next_type):
            self._keep_unread_call(region, marker, header)
        elif (
            next_type
            and self._prose_type is not next_type
            and ended_type in (None, self._prose_type)
        ):
            self._end_prose(next_type)
        elif marker in self._markers.text_ends and self._prose_type is d.TextDelta:
            self._finder, self._needs_reading = self._markers.search
            if ended_type is d.ReasoningDelta and not self._has_prose:
                self._calls.close_reasoning()
            self._end_prose(d.TextDelta)
        elif marker in self._markers.respelled_openers:
            yield from self._read_respelled_opener(marker)
        elif marker in self._markers.respelled_closers:
            # After a call it is markup; after anything else it is prose.
            if self._has_prose or not self._calls.has_started:
                self._write_markup(marker)
        elif marker in self._markers.foreign_ends:
            yield from self._read_foreign_ends(marker)
        elif marker == self._markers.header:
            if not (yield from self._read_header(marker)):
                self.write_prose(marker, self._place_of(marker)[0])
        elif marker in self._markers.citations:
            if marker != self._markers.citations[0] and not (yield from self._skip_sources()):
                self.write_prose(marker, self._place_of(marker)[0])
        elif self._markup_ends and marker in self._markers.call_markers:
            self._write_markup(marker)
        else:
            if ended_type is d.ReasoningDelta:
                self._calls.close_reasoning()
            self._drop_marker(marker)
            self._expects_header = self._has_plain_header and marker == self._message_start
        if next_type is d.ReasoningDelta and self._think_label:
            yield from self._skip_label()

    def _read_respelled_opener(self, marker: str) -> Resumable[None]:
        """Read what may be a call; a marker before anything else is prose."""
        buffer, start = self._buffer, self._buffer.pos
        yield from buffer.skip_space()
        follower = yield from buffer.read_marker(self._finder)
        buffer.pos = start
        if follower in self._markers.regions:
            self._pending_openers.append(self._place_of(marker))
            return
        region = self._markers.respelled_openers[marker]
        if region and (yield from self._reads_region(region)):
            self._repair("call_marker")
        else:
            self._write_markup(marker)

    def _read_foreign_ends(self, marker: str) -> Resumable[None]:
        """Drop the markers of other families that end the turn; if it goes on, they are prose."""
        buffer = self._buffer
        found = [marker]
        while True:
            space_start = buffer.pos
            yield from buffer.skip_space()
            found.append(buffer.text[space_start : buffer.pos])
            if not (end := (yield from buffer.read_marker(self._markers.ends))):
                break
            found.append(end)
        if buffer.at_end:
            self._drop_marker(marker)
            return
        offset = buffer.offset + buffer.pos - sum(map(len, found))
        for text in found:
            if text.isspace() or text in self._markers.foreign_ends:
                self.write_prose(text, offset)
            elif text:
                self._drop_marker(text)
            offset += len(text)

    def _skip_label(self) -> Resumable[None]:
        """Skip the label, and not a longer word that only starts like it."""
        label = self._think_label.strip()
        if (yield from self._buffer.read_literal(label)):
            following = yield from self._buffer.peek()
            if following.isalnum():
                self._buffer.unread(label)

    def _read_header(self, begin: str) -> Resumable[bool]:
        """Read the name in a header if the marker of a block follows; else read nothing."""
        buffer, start = self._buffer, self._buffer.pos
        name = ""
        while len(name) < MAX_NAME_LENGTH and is_name(char := (yield from buffer.peek())) and char:
            name += yield from buffer.read_char()
        marker = yield from buffer.read_marker(self._finder)
        if name and marker in self._markers.block_openers:
            buffer.unread(marker)
            self._header = f"{begin}{name}"
            return True
        buffer.pos = start
        return False

    def _skip_sources(self) -> Resumable[bool]:
        """Skip the numbers of the sources of a citation; read nothing else."""
        buffer, start = self._buffer, self._buffer.pos
        while buffer.pos - start < MAX_NAME_LENGTH:
            char = yield from buffer.read_char()
            if char == ">":
                return True
            if not char or char not in SOURCES:
                break
        buffer.pos = start
        return False

    def _keep_unread_call(self, region: Region, marker: str, header: str) -> None:
        """Write as prose what opens a region without a call that can be made."""
        buffer = self._buffer
        if self._prose_type is not d.ReasoningDelta:
            self._repair("unread_call")
            if buffer.closed and not buffer.text[buffer.pos :].strip():
                self._drop_marker(marker)
                return
        self._write_pending_openers()
        self._write_markup(f"{header}{marker}")
        self._expect_markup_end(
            region.tags.call_end if region.tags and marker == region.tags.call else region.end
        )

    def _reads_region(self, region: Region) -> Resumable[bool]:
        """Read the calls of a region; if there is none, read nothing."""
        self._buffer.pin()
        if (yield from find_reader(region.reader)(self._buffer, self._calls, region)):
            return True
        self._buffer.rewind()
        return False

    def _expect_markup_end(self, end: str) -> None:
        if end in self._markers.call_markers and end not in self._markup_ends:
            self._markup_ends.append(end)

    def _write_markup(self, marker: str) -> None:
        """Write a marker that was just read as prose. What it ends is no call, but text."""
        self.write_prose(marker, self._place_of(marker)[0], is_markup=True)
        if marker in self._markup_ends:
            del self._markup_ends[self._markup_ends.index(marker) :]

    def _place_of(self, marker: str) -> tuple[int, str]:
        """Return where the marker that was just read starts, and the marker."""
        return self._buffer.offset + self._buffer.pos - len(marker), marker

    def _write_pending_openers(self) -> None:
        if not self._pending_openers:
            return
        self._expect_markup_end(self._markers.section_end)
        pending = sorted(self._pending_openers + self._pending_whitespace)
        self._pending_openers.clear()
        self._pending_whitespace.clear()
        for offset, text in pending:
            self.write_prose(text, offset, is_markup=True)

    def _read_start(self) -> Resumable[bool]:
        """Read a call that only the start of a message may be; return whether there is one."""
        if self._prose_type is not d.TextDelta or not self._calls.tools:
            return False
        if self._markers.bare_calls and (yield from self._read_bare_call()):
            return True
        if self._markers.regions_after_names:
            return (yield from self._read_call_after_name())
        return False

    def _read_call_after_name(self) -> Resumable[bool]:
        self._buffer.pin()
        yield from self._buffer.skip_space()
        regions = self._markers.regions_after_names
        if (yield from read_name_first(self._buffer, self._calls, regions)):
            self._repair("name_before_marker")
            return True
        self._buffer.rewind()
        return False

    def _read_bare_call(self) -> Resumable[bool]:
        self._buffer.pin()
        yield from self._buffer.skip_space()
        region = self._markers.bare_calls.get((yield from self._buffer.peek()))
        if region and (yield from find_reader(region.reader)(self._buffer, self._calls, region)):
            return True
        self._buffer.rewind()
        # Unless a region started here, a marker may come first, and a bare call after it.
        self._at_start = region is None
        return False

    def start_call(self) -> None:
        self._buffer.unpin()
        if self._prose_type is d.ReasoningDelta:
            self._calls.open_reasoning()
        self._end_prose(d.TextDelta)

    # --- prose ------------------------------------------------------------------------------------

    def _end_prose(self, next_type: DeltaType) -> None:
        """End the current prose; what follows is of `next_type`."""
        self._pending_whitespace.clear()
        self._pending_openers.clear()
        self._markup_ends.clear()
        if self._alignment:
            self._deltas.extend(self._alignment.flush())
        # A refusal is part of the message around it.
        if self._has_prose and d.RefusalDelta not in (self._prose_type, next_type):
            self._deltas.add(d.ItemEnd())
        self._prose_type = next_type
        self._has_prose = False
        self._after_block = self._at_start = True

    def _drop_marker(self, marker: str) -> None:
        self._after_block = self._after_block or not self._has_prose
        if marker in self._markers.section_openers:
            self._pending_openers.append(self._place_of(marker))
        elif marker not in self._markers.call_markers:
            self._markup_ends.clear()

    def write_prose(self, text: str, offset: int, *, is_markup: bool = False) -> None:
        """Write prose that starts at `offset`; hold back trailing whitespace: it may be markup."""
        body = text.rstrip()
        if body:
            end = offset + len(body)
            if self._has_prose or not self._after_block:
                self._write_pending_whitespace()
            else:
                self._pending_whitespace.clear()
                body = body.lstrip()
            self._pending_openers.clear()
            self._write(body, end - len(body))
            if not self._has_prose and self._prose_type is d.TextDelta and not is_markup:
                self._on_message_start(body)
            self._has_prose = True
            self._at_start = False
            offset = end
            text = text[len(text.rstrip()) :]
        if text:
            self._pending_whitespace.append((offset, text))

    def _on_message_start(self, text: str) -> None:
        if self._may_be_json and text.lstrip()[0] in JSON_START_CHARACTERS:
            self._finder, self._needs_reading = self._markers.json_search

    def _write_pending_whitespace(self) -> None:
        for offset, space in self._pending_whitespace:
            self._write(space, offset)
        self._pending_whitespace.clear()

    def _write(self, text: str, offset: int) -> None:
        if self._prose_type is d.ReasoningDelta:
            self._reasoning_texts.append(text)
        if self._alignment and self._prose_type is d.TextDelta:
            self._deltas.extend(self._alignment.add_visible(text, offset))
        else:
            self._deltas.write(self._prose_type, text)


@lru_cache
def _reasoning_ids(family: Family, id_of: TokenId) -> tuple[frozenset[int], frozenset[int]]:
    """Return the tokens that open reasoning and those that end it; none if no end is a token."""
    pairs = [pair for pair in family.thinks if id_of(pair[1]) is not None]
    if not pairs:
        return frozenset(), frozenset()
    closing = [end for _, end in pairs]
    closing += (*family.text_starts, *family.calls, *family.end_markers)
    return _ids_of((begin for begin, _ in pairs), id_of), _ids_of(closing, id_of)


def _ids_of(markers: Iterable[str], id_of: TokenId) -> frozenset[int]:
    return frozenset(token for token in map(id_of, markers) if token is not None)


@lru_cache
def _plain_openings(family: Family, id_of: TokenId) -> frozenset[str]:
    """Return the markers that open reasoning whose end is no token."""
    return frozenset(begin for begin, end in family.thinks if id_of(end) is None)
