"""Put calls together from the pieces in which servers stream them.

By the API, each call has an `index`, its first piece has the id and the name, and the others have
more of the arguments. Servers leave indexes out, send 0 for every call or start at 1, send an id or
the name again with each piece, the name in pieces, or all of a call at once with its arguments as
an object. What a name can be, the tools say that were offered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from antiphon.adapters.formats.input_unwrapper import unquote_object
from antiphon.adapters.formats.tools import ToolNames
from antiphon.adapters.models.chat_completions.chunks import CallPiece, FunctionPiece
from antiphon.application.model.output_bounds import MAX_TURN_CHARS
from antiphon.domain.errors import EngineError
from antiphon.domain.tools import parse_arguments
from antiphon.domain.vocabulary.shown import to_json_text

MAX_CALLS = 256
MAX_ARGUMENT_CHARS = MAX_TURN_CHARS
"""In all calls of a turn together: they are kept until the turn ends."""


class StreamedCall:
    """A call as far as it has come."""

    def __init__(self) -> None:
        self.name = ""
        self.id = ""
        self._pieces: list[str] = []
        self._taken = 0
        self._is_complete: bool | None = False  # None: not known since the last piece
        self.has_repeated_name = False
        self.has_nameless_pieces = False

    @property
    def arguments(self) -> str:
        return "".join(self._pieces)

    @property
    def has_arguments(self) -> bool:
        return bool(self._pieces)

    def write(self, arguments: str) -> None:
        if arguments:
            self._pieces.append(arguments)
            self._is_complete = None

    def take(self) -> str:
        """Return the arguments that came since the last time."""
        # Only the new pieces are joined: a call may have a hundred thousand of them.
        taken, self._taken = self._taken, len(self._pieces)
        return "".join(self._pieces[taken:])

    @property
    def is_complete(self) -> bool:
        """Whether the arguments are a whole JSON object; there may be none at all, or not yet."""
        if self._is_complete is None:
            self._is_complete = (
                self._ends_object and parse_arguments(unquote_object(self.arguments)) is not None
            )
        return self._is_complete

    @property
    def _ends_object(self) -> bool:
        first = next((piece for piece in self._pieces if not piece.isspace()), "")
        last = next((piece for piece in reversed(self._pieces) if not piece.isspace()), "")
        return last.rstrip().endswith('"' if first.lstrip().startswith('"') else "}")


class CallPieces:
    """Finds the call to which each piece belongs."""

    def __init__(self, names: ToolNames) -> None:
        self._names = names
        self.calls: list[StreamedCall] = []
        self._by_index: dict[int, StreamedCall] = {}
        self._size = 0

    def feed(self, pieces: Sequence[CallPiece]) -> None:
        """Add the pieces of one chunk. Raises: EngineError for far too many."""
        touched: list[StreamedCall] = []
        for piece in pieces:
            function = piece.function or FunctionPiece()
            name, call_id = _text(function.name), _text(piece.id)
            arguments = _json_text(function.arguments)
            index = piece.index if type(piece.index) is int else None
            call = self._find(index, call_id, name, arguments, touched)
            touched.append(call)
            if index is not None:
                self._by_index[index] = call
            call.has_repeated_name |= bool(name) and name == call.name
            call.has_nameless_pieces |= bool(call.name and not name)
            if self._goes_on_in(call, call_id, name):
                call.name = self._longer_name(call, name)
            call.name = call.name or name
            call.id = call.id or call_id
            self._size += len(arguments)
            if self._size > MAX_ARGUMENT_CHARS:
                raise EngineError("The model server sent arguments that are too long.")
            call.write(arguments)

    def _find(
        self,
        index: int | None,
        call_id: str,
        name: str,
        arguments: str,
        touched: Sequence[StreamedCall],
    ) -> StreamedCall:
        call = self._candidate(index, call_id, name)
        if call is None or (index is None and name and call in touched):
            return self._add()
        if not name or self._goes_on_in(call, call_id, name):
            return call
        return self._add() if _starts_another(call, call_id, name, arguments) else call

    def _goes_on_in(self, call: StreamedCall, call_id: str, name: str) -> bool:
        """Say whether a piece has more of a call's name, and not the name of another call."""
        longer = self._longer_name(call, name)
        if not longer or (self._names.find(call.name) and self._names.find(name)):
            return False
        is_other_id = bool(call_id and call.id and call_id != call.id)
        if is_other_id or self._names.starts_name(name):
            return self._names.starts_name(longer)
        return True

    def _longer_name(self, call: StreamedCall, name: str) -> str:
        """Return the name so far with its next piece, "" if there is no such thing.

        The piece may be the rest of the name, or the name as far as it has come by now.
        """
        if not call.name or not name or name == call.name or call.has_arguments:
            return ""
        joined = call.name + name
        is_repeated = name.startswith(call.name) and not self._names.starts_name(joined)
        return name if is_repeated else joined

    def _candidate(self, index: int | None, call_id: str, name: str) -> StreamedCall | None:
        """Return the call that the piece goes on with, unless its name says that it does not."""
        if index is not None and index in self._by_index:
            return self._by_index[index]
        if index is None and call_id:
            same_id = [call for call in self.calls if call.id == call_id]
            if same_id:
                return same_id[-1]
        is_first_of_call = bool(name) or (index is not None and bool(call_id))
        if index is not None and is_first_of_call:
            return None
        # Without a name, it goes on with the last call, whatever its index says.
        return self.calls[-1] if self.calls else None

    def _add(self) -> StreamedCall:
        if len(self.calls) >= MAX_CALLS:
            raise EngineError("The model server sent too many calls.")
        self.calls.append(StreamedCall())
        return self.calls[-1]


def _starts_another(call: StreamedCall, call_id: str, name: str, arguments: str) -> bool:
    """Say whether a piece with a name is the first one of another call."""
    if not call.name or (call_id and call_id == call.id):
        return False
    if name != call.name or call.has_nameless_pieces:
        return True
    if call_id and call.id and not arguments and not call.has_arguments:
        return True
    if not call.is_complete:
        return False  # the name is repeated with each piece
    return bool(arguments.strip()) or (bool(call_id) and not call.has_repeated_name)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _json_text(arguments: Any) -> str:
    if isinstance(arguments, str):
        return arguments
    # Servers in PHP send the empty object as an empty list.
    return to_json_text(arguments) if arguments or isinstance(arguments, dict) else ""
