"""Write a turn's calls as deltas, one after another, while their pieces may come in any order."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from antiphon.adapters.formats.input_unwrapper import InputUnwrapper
from antiphon.adapters.formats.tools import ToolNames, call_start, text_property
from antiphon.adapters.models.chat_completions.call_pieces import CallPieces, StreamedCall
from antiphon.adapters.models.chat_completions.chunks import CallPiece
from antiphon.application.ports import Turn
from antiphon.domain import deltas as d
from antiphon.domain.items import answered_call_id, call_id_of
from antiphon.domain.tools import ToolSpec

MAX_ID_LENGTH = 64


class CallWriter:
    """Writes the calls that the turn allows; what it does not allow becomes text.

    The first call is written as it comes. What follows an incomplete call waits for its end, since
    a response has one open item at a time.
    """

    def __init__(self, turn: Turn) -> None:
        self._names = ToolNames(turn.tools, turn.choice)
        self._pieces = CallPieces(ToolNames(turn.tools))
        self._parallel = turn.parallel_tool_calls
        self._used_ids = _ids_in(turn)
        self._next = 0
        self._open: _OpenCall | None = None
        self._waiting: list[tuple[int, d.Delta]] = []
        self.has_calls = False

    @property
    def calls(self) -> Sequence[StreamedCall]:
        return self._pieces.calls

    def feed(self, pieces: Sequence[CallPiece]) -> list[d.Delta]:
        """Raises: EngineError for far too many pieces."""
        self._pieces.feed(pieces)
        deltas: list[d.Delta] = []
        while self._next < len(self.calls):
            call = self.calls[self._next]
            is_last = self._next == len(self.calls) - 1
            if is_last and not self._has_whole_name(call):
                break
            deltas += self._write(call)
            if is_last or not call.is_complete:
                break
            deltas += self._close()
        return deltas

    def _has_whole_name(self, call: StreamedCall) -> bool:
        """Whether the name of the last call is known: it may come in pieces."""
        if not call.name or call.has_arguments:
            return bool(call.name)
        is_tool = self._names.find(call.name.strip()) is not None
        return is_tool and not self._names.starts_name(call.name, is_whole=False)

    def add_text(self, deltas: Sequence[d.Delta]) -> list[d.Delta]:
        """Return the deltas of a text, after the call before it; [] while that is incomplete."""
        if self._next == len(self.calls):
            return list(deltas)
        if self._next == len(self.calls) - 1 and self.calls[self._next].is_complete:
            return [*self._write(self.calls[self._next]), *self._close(), *deltas]
        self._waiting += ((len(self.calls), delta) for delta in deltas)
        return []

    def end(self, *, is_cut: bool) -> list[d.Delta]:
        """Return the rest of the calls; `is_cut`: the last one was not written to its end."""
        deltas: list[d.Delta] = []
        while self._next < len(self.calls):
            call = self.calls[self._next]
            is_last = self._next == len(self.calls) - 1
            deltas += self._write(call)
            if is_cut and is_last and not call.is_complete:
                return deltas
            deltas += self._close()
        return deltas

    def _write(self, call: StreamedCall) -> list[d.Delta]:
        """Return what is new of the next call."""
        deltas: list[d.Delta] = []
        if self._open is None:
            self._open = self._start(call)
            deltas += self._open.start
        return [*deltas, *self._open.write(call.take())]

    def _start(self, call: StreamedCall) -> _OpenCall:
        tool = self._names.find(call.name.strip()) if call.name else None
        if tool is None:
            return _UnknownCall(call)
        if self.has_calls and not self._parallel:
            return _OpenCall()
        self.has_calls = True
        return _ToolCall(tool, self._own_id(call.id))

    def _own_id(self, call_id: str) -> str | None:
        """Return the server's id of a call, or None if it cannot be the id in a conversation."""
        is_usable = 0 < len(call_id) <= MAX_ID_LENGTH and call_id.isprintable()
        if not is_usable or call_id in self._used_ids:
            return None
        self._used_ids.add(call_id)
        return call_id

    def _close(self) -> list[d.Delta]:
        """Return the end of the next call, and the text that waited for it."""
        assert self._open is not None
        deltas = [*self._open.end()]
        self._open = None
        self._next += 1
        ready = [delta for place, delta in self._waiting if place <= self._next]
        self._waiting = [(place, delta) for place, delta in self._waiting if place > self._next]
        return [*deltas, *ready]


class _OpenCall:
    """A call that is left out."""

    start: Sequence[d.Delta] = ()

    def write(self, arguments: str) -> Sequence[d.Delta]:  # noqa: ARG002 - nothing is written
        return ()

    def end(self) -> Sequence[d.Delta]:
        return ()


class _ToolCall(_OpenCall):
    def __init__(self, tool: ToolSpec, call_id: str | None) -> None:
        self.start = [call_start(tool, call_id)]
        key = text_property(tool)
        self._unquoter = InputUnwrapper(None)
        self._unwrapper = None if key is None else InputUnwrapper(key)
        self._held = ""
        self._is_empty = True

    def write(self, arguments: str) -> Sequence[d.Delta]:
        return self._write(self._unquoter.feed(arguments))

    def _write(self, arguments: str) -> Sequence[d.Delta]:
        if self._unwrapper:
            arguments = self._unwrapper.feed(arguments)
        elif self._is_empty:
            arguments = (self._held + arguments).lstrip()
            if any(empty.startswith(arguments.rstrip()) for empty in _EMPTY):
                self._held = arguments.rstrip()
                return []
            self._is_empty = False
        return [d.ArgumentsDelta(arguments)] if arguments else []

    def end(self) -> Sequence[d.Delta]:
        held, stray = self._unquoter.end()
        deltas = [*self._write(held)]
        if self._unwrapper:
            text, after = self._unwrapper.end()
            deltas += [d.ArgumentsDelta(text)] if text else []
            stray = after + stray
        elif self._is_empty:
            # Clients parse arguments as JSON, so a call without any gets an empty object.
            is_empty = self._held in _EMPTY
            deltas.append(d.ArgumentsDelta("{}" if is_empty else self._held))
        return [*deltas, d.ItemEnd(), *([d.TextDelta(stray), d.ItemEnd()] if stray else [])]


_EMPTY = ("", "null", '""')
"""What servers write for the arguments of a call that has none."""


class _UnknownCall(_OpenCall):
    """A call of a tool that was not offered: the client reads it as text."""

    def __init__(self, call: StreamedCall) -> None:
        self._call = call

    def end(self) -> Sequence[d.Delta]:
        if not self._call.name and not self._call.arguments:
            return ()
        text = json.dumps(
            {"name": self._call.name, "arguments": self._call.arguments}, ensure_ascii=False
        )
        return [d.TextDelta(text), d.ItemEnd()]


def _ids_in(turn: Turn) -> set[str]:
    ids: Collection[str | None] = {
        found for item in turn.items for found in (call_id_of(item), answered_call_id(item))
    }
    return {each for each in ids if each is not None}
