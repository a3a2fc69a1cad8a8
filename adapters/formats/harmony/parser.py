"""Reads what the model writes in one turn: tokens → deltas.

A state machine over the special tokens; it only knows `<|start|>`, `<|channel|>`, `<|constrain|>`,
`<|message|>` and the three tokens that end a message. It never raises, and it never loses text:

1. A header (header.py) ends with its `<|message|>`. Words in it that are no part of a header are
   never a message: they become reasoning. If no `<|message|>` follows, they are the message's text.
2. Text without a header, or in an unknown channel, is the answer: a final message. It is known to
   have none after MAX_STRAY_TOKENS.
3. A call is a call in any channel, with its recipient anywhere in the header, and with any content
   type and end. It must name a tool that this turn may call. A message to any other recipient is
   shown as commentary, after `to=…`: a client cannot run a tool that it does not have. In the
   channel final, it is the answer.
4. `<|start|>` and `<|channel|>` end a message that has not ended. Other special tokens within a
   message are dropped; they are no text.
5. Without `parallel_tool_calls`, calls after the first are dropped.
6. If the output ends within a header, the header is dropped.

`repair_count` counts how often rules 1 to 4 had to repair something.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from msgspec.structs import replace

from antiphon.adapters.formats.harmony import encoding as h
from antiphon.adapters.formats.harmony.arguments_reader import ArgumentsReader
from antiphon.adapters.formats.harmony.container_exec import ExecReader
from antiphon.adapters.formats.harmony.encoding import Encoding
from antiphon.adapters.formats.harmony.header import (
    ASSISTANT,
    CONTINUED,
    REFUSAL,
    WORDS,
    Header,
    Piece,
    is_unfinished,
    may_be_header,
    read_header,
    split_headers,
)
from antiphon.adapters.formats.harmony.tools import NOT_TOOLS, Recipients
from antiphon.adapters.formats.input_unwrapper import InputUnwrapper
from antiphon.adapters.formats.tools import call_start, text_property
from antiphon.application.ports import Parser, Step, Turn
from antiphon.domain import deltas as d
from antiphon.domain.content import Logprob
from antiphon.domain.tools import CONTAINER, ToolSpec
from antiphon.domain.vocabulary.repairs import Repair

MAX_HEADER_TOKENS = 128
"""A header with more tokens before its `<|message|>` is text."""

MAX_HEADER_PIECES = 16
"""A `<|start|>` after more of them ends a header, so that no header is read again and again."""

MAX_STRAY_TOKENS = 8
"""So many tokens without a header wait for a `<|channel|>` or `<|message|>` that makes them one."""

COMMENTARY = "commentary"
FINAL_ANSWER = "final_answer"

_ENDS = frozenset(h.STOPS) | {h.END}


class HarmonyParser(Parser):
    """Reads one turn; `repair_count` counts the repairs of malformed markup."""

    def __init__(self, encoding: Encoding, turn: Turn) -> None:
        self.reasoning_tokens = 0
        self.is_well_formed = True
        self.repair_count = 0
        self.repairs: set[Repair] = set()
        self._encoding = encoding
        self._tools = Recipients(turn)
        self._parallel = turn.parallel_tool_calls
        self._call_count = 0
        self._deltas: list[d.Delta] = []
        # Either a header or a message is open.
        self._pieces: list[tuple[int, bytearray]] = [(CONTINUED, bytearray())]
        self._header_tokens = 0
        self._message: _Message | None = None
        self._is_started = True  # by the prompt, or by a `<|start|>` in the output
        self._partial_character = b""  # the first bytes of a character
        self._logprobs: list[Logprob] = []

    def feed(self, step: Step) -> list[d.Delta]:
        ids, logprobs = step.token_ids, step.logprobs or ()
        position, end = 0, len(ids)
        if end == 1 and self._message is not None and 0 <= ids[0] < h.FIRST_SPECIAL:
            self._read_words(ids, logprobs)  # as nearly every step of a stream
            return self._take_deltas()
        while position < end:
            token = ids[position]
            if not 0 <= token < h.FIRST_SPECIAL:
                self._read_special(token)
                position += 1
            elif self._message is None:
                self._read_header_word(token)
                position += 1
            else:
                start = position
                position += 1
                while position < end and 0 <= ids[position] < h.FIRST_SPECIAL:
                    position += 1
                self._read_words(ids[start:position], logprobs[start:position])
        return self._take_deltas()

    def end(self) -> list[d.Delta]:
        if self._message is None:
            self._open_message(has_marker=False, is_cut=True)
        if self._message is not None:
            self._flush_character()
            self._append_end(self._message, has_end=False)
            self._message = None
        return self._take_deltas()

    def _take_deltas(self) -> list[d.Delta]:
        deltas, self._deltas = self._deltas, []
        return deltas

    # --- special tokens -------------------------------------------------------------------------

    def _read_special(self, token: int) -> None:
        if token in _ENDS:
            self._end_message()
        elif token == h.MESSAGE and self._message is None:
            self._open_message(has_marker=True)
        elif token == h.START:
            self._start_header(token)
        elif token == h.CHANNEL and self._message is not None:
            self._start_header(token)
            self._is_started = False
        elif token in (h.CHANNEL, h.CONSTRAIN) and self._message is None:
            self._pieces.append((token, bytearray()))
        else:
            self._repair()

    def _end_message(self) -> None:
        if self._message is None:
            self._open_message(has_marker=False)
        if self._message is not None:
            self._close_message()
        else:
            self.is_well_formed = False
        self._reset_header(CONTINUED)
        self._is_started = False

    def _start_header(self, introducer: int) -> None:
        if self._message is not None:
            self._repair("open_call" if isinstance(self._message, _CallMessage) else "header")
            self._close_message()
        elif any(text.strip() for _, text in self._pieces):
            if len(self._pieces) < MAX_HEADER_PIECES and not self._has_stray_text():
                self._pieces.append((introducer, bytearray()))
                self._header_tokens = 0
                self._is_started = True
                return
            self._open_message(has_marker=False)
            if self._message is not None:
                self._close_message()
        self._reset_header(introducer)

    def _has_stray_text(self) -> bool:
        """Whether there is a message without a `<|message|>` since the last `<|start|>`."""
        last = max(
            (place for place, (kind, _) in enumerate(self._pieces) if kind == h.START), default=0
        )
        return bool(read_header(_decode(self._pieces[last:]), is_whole=True).rest)

    def _reset_header(self, introducer: int) -> None:
        self._pieces = [(introducer, bytearray())]
        self._header_tokens = 0
        self._is_started = introducer == h.START

    def _repair(self, repair: Repair = "header") -> None:
        self.repair_count += 1
        self.repairs.add(repair)
        self.is_well_formed = False

    # --- words ----------------------------------------------------------------------------------

    def _read_header_word(self, token: int) -> None:
        introducer, text = self._pieces[-1]
        text += self._encoding.decode_bytes((token,))
        self._header_tokens += 1
        if self._header_tokens > MAX_HEADER_TOKENS:
            self._open_message(has_marker=False, is_forced=True)
        elif (
            introducer == CONTINUED
            and self._header_tokens > MAX_STRAY_TOKENS
            and not may_be_header(_decode_complete(text)[0])
        ):
            self._open_message(has_marker=False)

    def _read_words(self, ids: Sequence[int], logprobs: Sequence[Logprob]) -> None:
        message = self._message
        assert message is not None
        if message.is_reasoning:
            self.reasoning_tokens += len(ids)
        self._logprobs += logprobs
        encoded = self._partial_character + self._encoding.decode_bytes(ids)
        text, length = _decode_complete(encoded)
        self._partial_character = encoded[length:]
        if text:
            self._add_text(text)

    def _add_text(self, text: str) -> None:
        assert self._message is not None
        logprobs, self._logprobs = tuple(self._logprobs), []
        self._append(self._message.add(text, logprobs))

    def _flush_character(self) -> None:
        if self._partial_character:
            self._add_text(self._partial_character.decode("utf-8", "replace"))
            self._partial_character = b""
        self._logprobs = []

    # --- messages -------------------------------------------------------------------------------

    def _open_message(
        self, *, has_marker: bool, is_forced: bool = False, is_cut: bool = False
    ) -> None:
        """Open the message that the header announces, unless there is no sign of a message.

        `has_marker`: there is a `<|message|>`. `is_forced`: open a message in any case. `is_cut`:
        the output ends here.
        """
        *earlier, pieces = split_headers(_decode(self._pieces))
        for header in earlier:
            self._open_one(header, has_marker=False)
            if self._message is not None:
                self._close_message()
        if sum(kind == h.START for kind, _ in pieces[1:]):
            self._repair()
        last_text = self._pieces[-1][1]
        self._open_one(
            pieces,
            b"" if has_marker else bytes(last_text[_decode_complete(last_text)[1] :]),
            has_marker=has_marker,
            is_forced=is_forced,
            is_cut=is_cut,
        )

    def _open_one(
        self,
        pieces: Sequence[Piece],
        partial_character: bytes = b"",
        *,
        has_marker: bool,
        is_forced: bool = False,
        is_cut: bool = False,
    ) -> None:
        header = read_header(pieces, is_whole=has_marker)
        is_marked_up = pieces[-1][0] != CONTINUED
        if not has_marker and is_marked_up and header.channel is None:
            whole = read_header(pieces, is_whole=True)
            header = header if whole.rest else whole  # its words are not the text of a message
        if has_marker and header.channel is None and self._find_tool(header.rest) is not None:
            header = replace(header, recipient=header.recipient or header.rest, rest="")
        rest = _stray_text(header, pieces, has_marker=has_marker)
        is_addressed = header.recipient is not None and not is_cut
        if not (has_marker or is_forced or rest or partial_character or is_addressed):
            return
        if is_cut and is_marked_up and is_unfinished(rest):
            return
        message = self._make_message(header)
        if has_marker and message.kind == "final" and _is_addressed(header):
            rest = f"to={header.recipient} {rest}".rstrip()
        if rest or header.is_damaged or message.is_repaired:
            self._repair()
        if not self._is_started or isinstance(message, _DroppedMessage):
            self.is_well_formed = False
            self.repairs.add("dropped_call" if self._is_started else "header")
        if rest and has_marker and not message.is_reasoning:
            self._append([d.ReasoningDelta(rest), d.ItemEnd()])
            rest = ""
        self._append(message.open())
        if rest:
            self._append(message.add(f"{rest}\n" if has_marker else rest, ()))
        self._partial_character = partial_character
        self._message = message

    def _make_message(self, header: Header) -> _Message:
        tool = self._find_tool(header.recipient)
        if tool is not None:
            self._call_count += 1
            is_allowed = self._parallel or self._call_count == 1
            return _CallMessage(tool) if is_allowed else _DroppedMessage()
        if header.role != ASSISTANT:
            return _TextMessage(COMMENTARY, is_repaired=True)
        if header.channel != "final" and _is_addressed(header):
            return _TextMessage(COMMENTARY, opening=f"to={header.recipient} ", is_repaired=True)
        if header.content_type == REFUSAL:
            return _TextMessage(REFUSAL, is_repaired=header.channel is None)
        return _TextMessage(header.channel or "final", is_repaired=header.channel is None)

    def _find_tool(self, recipient: str | None) -> ToolSpec | None:
        if recipient is None:
            return None
        # Other parts may follow the recipient without a space.
        names = [recipient]
        while names[-1].endswith(WORDS):
            names.append(next(names[-1].removesuffix(x) for x in WORDS if names[-1].endswith(x)))
        return next(filter(None, map(self._tools.find, names)), None)

    def _close_message(self) -> None:
        message = self._message
        assert message is not None
        self._flush_character()
        self._append_end(message, has_end=True)
        self._message = None

    def _append_end(self, message: _Message, *, has_end: bool) -> None:
        was_repaired = message.is_repaired
        self._append(message.end(has_end=has_end))
        if message.is_repaired and not was_repaired:
            self._repair("open_value")

    def _append(self, deltas: Sequence[d.Delta]) -> None:
        for delta in deltas:
            if self._deltas and (merged := _merge(self._deltas[-1], delta)) is not None:
                self._deltas[-1] = merged
            else:
                self._deltas.append(delta)


def _decode_complete(text: bytes | bytearray) -> tuple[str, int]:
    """Return the text without an incomplete last character, and its length in bytes."""
    return codecs.utf_8_decode(text, "replace", False)


def _decode(pieces: Sequence[tuple[int, bytearray]]) -> list[Piece]:
    """Return the pieces as text; only the last one may end within a character."""
    last = len(pieces) - 1
    return [
        (kind, codecs.utf_8_decode(text, "replace", place < last)[0])
        for place, (kind, text) in enumerate(pieces)
    ]


def _is_addressed(header: Header) -> bool:
    return header.recipient is not None and header.recipient not in NOT_TOOLS


def _stray_text(header: Header, pieces: Sequence[Piece], *, has_marker: bool) -> str:
    """Return the text of a message before its `<|message|>`, or without one."""
    if not has_marker and header.recipient is None and [kind for kind, _ in pieces] == [CONTINUED]:
        return pieces[0][1]  # without any markup, "assistant" and "json" are ordinary words
    rest = header.rest if header.role == ASSISTANT else header.role + header.rest
    return rest if rest.strip() else ""


def _merge(last: d.Delta, delta: d.Delta) -> d.Delta | None:
    match last, delta:
        case d.TextDelta(), d.TextDelta() if last.phase == delta.phase:
            return d.TextDelta(
                last.text + delta.text, last.logprobs + delta.logprobs, phase=last.phase
            )
        case d.ReasoningDelta(), d.ReasoningDelta():
            return d.ReasoningDelta(last.text + delta.text)
        case d.ArgumentsDelta(), d.ArgumentsDelta():
            return d.ArgumentsDelta(last.text + delta.text)
        case d.RefusalDelta(), d.RefusalDelta():
            return d.RefusalDelta(last.text + delta.text)
    return None


class _Message:
    """An open message; `texts` is its text so far."""

    def __init__(self, kind: str | None = None, *, is_repaired: bool = False) -> None:
        self.kind = kind
        self.texts: list[str] = []
        self.is_repaired = is_repaired
        self.is_reasoning = kind == "analysis"

    def open(self) -> list[d.Delta]:
        return []

    def add(self, text: str, logprobs: tuple[Logprob, ...]) -> list[d.Delta]:
        raise NotImplementedError

    def end(self, *, has_end: bool) -> list[d.Delta]:
        """Return the last deltas; without `has_end`, the output was cut and the item stays open."""
        return [d.ItemEnd()] if has_end and self.texts else []


class _TextMessage(_Message):
    """A message or reasoning; `opening` is text that stands for its header."""

    def __init__(self, kind: str, *, opening: str = "", is_repaired: bool = False) -> None:
        super().__init__(kind, is_repaired=is_repaired)
        self._opening = opening

    def open(self) -> list[d.Delta]:
        return self.add(self._opening, ()) if self._opening else []

    def add(self, text: str, logprobs: tuple[Logprob, ...]) -> list[d.Delta]:
        self.texts.append(text)
        match self.kind:
            case "analysis":
                return [d.ReasoningDelta(text)]
            case "refusal":
                return [d.RefusalDelta(text)]
            case "commentary":
                return [d.TextDelta(text, logprobs, COMMENTARY)]
            case _:
                return [d.TextDelta(text, logprobs, FINAL_ANSWER)]


class _CallMessage(_Message):
    def __init__(self, tool: ToolSpec) -> None:
        super().__init__()
        self._tool = tool
        key = text_property(tool)
        self._unwrapper: InputUnwrapper | ExecReader | ArgumentsReader = ArgumentsReader()
        if key is not None:
            self._unwrapper = InputUnwrapper(key)
        elif tool.kind == CONTAINER:
            self._unwrapper = ExecReader()

    def open(self) -> list[d.Delta]:
        return [call_start(self._tool)]

    def add(self, text: str, logprobs: tuple[Logprob, ...]) -> list[d.Delta]:  # noqa: ARG002
        return self._add_arguments(self._unwrapper.feed(text))

    def end(self, *, has_end: bool) -> list[d.Delta]:
        deltas: list[d.Delta] = []
        text, stray = self._unwrapper.end()
        deltas += self._add_arguments(text)
        takes_json = isinstance(self._unwrapper, ArgumentsReader)
        if takes_json and has_end and not "".join(self.texts).strip():
            # Clients parse arguments as JSON, so a call without any gets an empty object.
            deltas += self._add_arguments("{}")
        if has_end or stray:
            deltas.append(d.ItemEnd())
        if stray:
            self.is_repaired = True
            deltas.append(d.TextDelta(stray, phase=COMMENTARY))
            deltas += [d.ItemEnd()] if has_end else []
        return deltas

    def _add_arguments(self, text: str) -> list[d.Delta]:
        if not text:
            return []
        self.texts.append(text)
        return [d.ArgumentsDelta(text)]


class _DroppedMessage(_Message):
    def add(self, text: str, logprobs: tuple[Logprob, ...]) -> list[d.Delta]:  # noqa: ARG002
        return []
