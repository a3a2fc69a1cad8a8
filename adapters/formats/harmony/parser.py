"""Read what the model writes in one turn: tokens → deltas.

A state machine over the special tokens; only `<|start|>`, `<|channel|>`, `<|constrain|>`,
`<|message|>` and the three ends mean anything to it. It never raises, and it never loses text:

1. A header (header.py) holds until its `<|message|>`. Text in it that is no part of a header is
   shown: as the message's own text if no `<|message|>` follows, as reasoning if the channel is
   analysis, else as a commentary message of its own before.
2. Text without a header, or in no known channel, is the answer: a final message.
3. A call is a call in whatever channel, with its recipient anywhere in the header, whatever its
   content type and its end. Its name must be that of a tool that this turn may call. Every other
   recipient's message is shown as commentary, after `to=…`: a client can make nothing of a call of
   a tool that it does not have.
4. `<|start|>` and `<|channel|>` end a message that was not ended. Other special tokens within a
   message are dropped; they are no text.
5. Without `parallel_tool_calls`, calls after the first are dropped.
6. A header that is cut short is dropped, as far as it is one.

Each of 1 to 4 that had something to mend counts in `recovered`.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from antiphon.adapters.formats.harmony import encoding as h
from antiphon.adapters.formats.harmony.container_exec import ExecReader
from antiphon.adapters.formats.harmony.encoding import Encoding
from antiphon.adapters.formats.harmony.header import (
    ASSISTANT,
    CONTENT_TYPES,
    CONTINUED,
    REFUSAL,
    Header,
    Piece,
    is_unfinished,
    may_be_header,
    read_header,
)
from antiphon.adapters.formats.harmony.input_unwrapper import Unwrapper
from antiphon.adapters.formats.harmony.tools import Recipients
from antiphon.adapters.formats.tools import call_start, callable_tools, text_property
from antiphon.application.ports import Parser, Step, Turn
from antiphon.domain import deltas as d
from antiphon.domain.content import Logprob
from antiphon.domain.tools import CONTAINER, ToolSpec

LONGEST_HEADER = 128
"""Tokens without `<|message|>` after which a header is taken for text."""

COMMENTARY = "commentary"
FINAL_ANSWER = "final_answer"

# Recipients that are no tools.
_NOBODY = frozenset({ASSISTANT, "user", "all"})
_ENDS = frozenset(h.STOPS) | {h.END}


class HarmonyParser(Parser):
    """`recovered` counts how often text had to be rescued from malformed markup."""

    def __init__(self, encoding: Encoding, turn: Turn) -> None:
        self.reasoning_tokens = 0
        self.is_well_formed = True
        self.recovered = 0
        self._encoding = encoding
        self._tools = Recipients(callable_tools(turn).values())
        self._parallel = turn.parallel_tool_calls
        self._calls = 0
        self._out: list[d.Delta] = []
        # A header is open or a message is.
        self._pieces: list[tuple[int, bytearray]] = [(CONTINUED, bytearray())]
        self._header_tokens = 0
        self._message: _Message | None = None
        self._is_started = True  # by the prompt, or by a `<|start|>` of the model's
        self._unfinished = b""  # the first bytes of a character
        self._logprobs: list[Logprob] = []

    def feed(self, step: Step) -> list[d.Delta]:
        ids, logprobs = step.token_ids, step.logprobs or ()
        position, end = 0, len(ids)
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
        return self._taken()

    def end(self) -> list[d.Delta]:
        if self._message is None:
            self._open(explicit=False, cut=True)
        if self._message is not None:
            self._flush()
            self._end(self._message, ended=False)
            self._message = None
        return self._taken()

    def _taken(self) -> list[d.Delta]:
        out, self._out = self._out, []
        return out

    # --- special tokens -------------------------------------------------------------------------

    def _read_special(self, token: int) -> None:
        if token in _ENDS:
            self._end_message()
        elif token == h.MESSAGE and self._message is None:
            self._open(explicit=True)
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
            self._open(explicit=False)
        if self._message is not None:
            self._close()
        else:
            self.is_well_formed = False
        self._reset_header(CONTINUED)
        self._is_started = False

    def _start_header(self, introducer: int) -> None:
        if self._message is not None:
            self._repair()
            self._close()
        elif any(text.strip() for _, text in self._pieces):
            self._open(explicit=False)
            if self._message is not None:
                self._close()
        self._reset_header(introducer)

    def _reset_header(self, introducer: int) -> None:
        self._pieces = [(introducer, bytearray())]
        self._header_tokens = 0
        self._is_started = introducer == h.START

    def _repair(self) -> None:
        self.recovered += 1
        self.is_well_formed = False

    # --- words ----------------------------------------------------------------------------------

    def _read_header_word(self, token: int) -> None:
        introducer, text = self._pieces[-1]
        text += self._encoding.spell((token,))
        self._header_tokens += 1
        if self._header_tokens > LONGEST_HEADER:
            self._open(explicit=False, forced=True)
        elif introducer == CONTINUED and not may_be_header(_whole(text)[0]):
            self._open(explicit=False)

    def _read_words(self, ids: Sequence[int], logprobs: Sequence[Logprob]) -> None:
        message = self._message
        assert message is not None
        if message.is_reasoning:
            self.reasoning_tokens += len(ids)
        self._logprobs += logprobs
        spelled = self._unfinished + self._encoding.spell(ids)
        text, length = _whole(spelled)
        self._unfinished = spelled[length:]
        if text:
            self._add(text)

    def _add(self, text: str) -> None:
        assert self._message is not None
        logprobs, self._logprobs = tuple(self._logprobs), []
        self._put_all(self._message.add(text, logprobs))

    def _flush(self) -> None:
        if self._unfinished:
            self._add(self._unfinished.decode("utf-8", "replace"))
            self._unfinished = b""
        self._logprobs = []

    # --- messages -------------------------------------------------------------------------------

    def _open(self, *, explicit: bool, forced: bool = False, cut: bool = False) -> None:
        """Open the message that the header announces; none if there is no sign of a message.

        `explicit`: by `<|message|>`. `forced`: open one in any case. `cut`: the output ends here.
        """
        pieces = [(introducer, _whole(text)[0]) for introducer, text in self._pieces]
        last_introducer, last_text = self._pieces[-1]
        unfinished = b"" if explicit else bytes(last_text[_whole(last_text)[1] :])
        header = read_header(pieces)
        rest = _rest_of(header, pieces, explicit=explicit)
        is_addressed = header.recipient is not None and not cut
        if not (explicit or forced or rest or unfinished or is_addressed):
            return
        if cut and last_introducer != CONTINUED and is_unfinished(rest):
            return
        message = self._message_of(header)
        if rest or message.is_mended:
            self._repair()
        if not self._is_started or isinstance(message, _Dropped):
            self.is_well_formed = False
        if rest and explicit and not message.is_reasoning:
            self._put_all([d.TextDelta(rest.strip(), phase=COMMENTARY), d.ItemEnd()])
            rest = ""
        self._put_all(message.open())
        if rest:
            self._put_all(message.add(rest.strip() + "\n" if explicit else rest, ()))
        self._unfinished = unfinished
        self._message = message

    def _message_of(self, header: Header) -> _Message:
        tool = self._tool(header.recipient)
        if tool is not None:
            self._calls += 1
            return _Call(tool) if self._parallel or self._calls == 1 else _Dropped()
        if header.role != ASSISTANT:
            return _Said(COMMENTARY, is_mended=True)
        if header.recipient is not None and header.recipient not in _NOBODY:
            return _Said(COMMENTARY, opening=f"to={header.recipient} ", is_mended=True)
        if header.content_type == REFUSAL:
            return _Said(REFUSAL, is_mended=header.channel is None)
        return _Said(header.channel or "final", is_mended=header.channel is None)

    def _tool(self, recipient: str | None) -> ToolSpec | None:
        if recipient is None:
            return None
        glued = (word for word in (*CONTENT_TYPES, *h.CHANNELS) if recipient.endswith(word))
        names = (recipient, *(recipient.removesuffix(word) for word in glued))
        return next(filter(None, map(self._tools.find, names)), None)

    def _close(self) -> None:
        message = self._message
        assert message is not None
        self._flush()
        self._end(message, ended=True)
        self._message = None

    def _end(self, message: _Message, *, ended: bool) -> None:
        was_mended = message.is_mended
        self._put_all(message.end(ended=ended))
        if message.is_mended and not was_mended:
            self._repair()

    def _put_all(self, deltas: Sequence[d.Delta]) -> None:
        for delta in deltas:
            if self._out and (merged := _merged(self._out[-1], delta)) is not None:
                self._out[-1] = merged
            else:
                self._out.append(delta)


def _whole(text: bytes | bytearray) -> tuple[str, int]:
    """Return the text without an unfinished last character, and its length in bytes."""
    return codecs.utf_8_decode(text, "replace", False)


def _rest_of(header: Header, pieces: Sequence[Piece], *, explicit: bool) -> str:
    """Return what a message says before its `<|message|>`, or in its place."""
    if not explicit and header.recipient is None and [kind for kind, _ in pieces] == [CONTINUED]:
        return pieces[0][1]  # no markup at all: "assistant" and "json" are words like others
    rest = header.rest if header.role == ASSISTANT else header.role + header.rest
    return rest if rest.strip() else ""


def _merged(last: d.Delta, delta: d.Delta) -> d.Delta | None:
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
    """A message that is open; `texts` is what it says."""

    def __init__(self, kind: str | None = None, *, is_mended: bool = False) -> None:
        self.kind = kind
        self.texts: list[str] = []
        self.is_mended = is_mended
        self.is_reasoning = kind == "analysis"

    def open(self) -> list[d.Delta]:
        return []

    def add(self, text: str, logprobs: tuple[Logprob, ...]) -> list[d.Delta]:
        raise NotImplementedError

    def end(self, *, ended: bool) -> list[d.Delta]:
        """`ended` is False where the output was cut; what is open then stays so."""
        return [d.ItemEnd()] if ended and self.texts else []


class _Said(_Message):
    """A message for the reader; `opening` is text that its header stands for."""

    def __init__(self, kind: str, *, opening: str = "", is_mended: bool = False) -> None:
        super().__init__(kind, is_mended=is_mended)
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


class _Call(_Message):
    def __init__(self, tool: ToolSpec) -> None:
        super().__init__()
        self._tool = tool
        key = text_property(tool)
        self._unwrapper: Unwrapper | ExecReader | None = None
        if key is not None:
            self._unwrapper = Unwrapper(key)
        elif tool.kind == CONTAINER:
            self._unwrapper = ExecReader()

    def open(self) -> list[d.Delta]:
        return [call_start(self._tool)]

    def add(self, text: str, logprobs: tuple[Logprob, ...]) -> list[d.Delta]:  # noqa: ARG002
        return self._hand(self._unwrapper.feed(text) if self._unwrapper else text)

    def end(self, *, ended: bool) -> list[d.Delta]:
        deltas: list[d.Delta] = []
        stray = ""
        if self._unwrapper:
            text, stray = self._unwrapper.end()
            deltas += self._hand(text)
        elif ended and not "".join(self.texts).strip():
            # No arguments at all: in JSON, which clients parse, that is an empty object.
            deltas += self._hand("{}")
        if ended or stray:
            deltas.append(d.ItemEnd())
        if stray:
            self.is_mended = True
            deltas.append(d.TextDelta(stray, phase=COMMENTARY))
            deltas += [d.ItemEnd()] if ended else []
        return deltas

    def _hand(self, text: str) -> list[d.Delta]:
        if not text:
            return []
        self.texts.append(text)
        return [d.ArgumentsDelta(text)]


class _Dropped(_Message):
    def add(self, text: str, logprobs: tuple[Logprob, ...]) -> list[d.Delta]:  # noqa: ARG002
        return []
