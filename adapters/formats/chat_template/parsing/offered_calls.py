"""Receives the calls that a reader finds, and writes those that the turn allows."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from typing import Any, Protocol

from antiphon.adapters.formats.chat_template.parsing.text_buffer import DeltaBuffer, MarkerFinder
from antiphon.adapters.formats.chat_template.payloads import Calls
from antiphon.adapters.formats.chat_template.payloads.json_values import parse_json
from antiphon.adapters.formats.chat_template.payloads.schema_types import ArgumentSchemas
from antiphon.adapters.formats.tools import ToolNames, call_start, callable_tools
from antiphon.application.ports import Turn
from antiphon.domain import deltas as d
from antiphon.domain.tools import ToolSpec
from antiphon.domain.vocabulary.repairs import Repair


class Prose(Protocol):
    """The text around the calls."""

    def start_call(self) -> None:
        """End the text before a call that is about to be written."""

    def write_prose(self, text: str, offset: int) -> None: ...


class OfferedCalls(Calls):
    """Writes the calls that the turn allows, and drops the others.

    Calls inside reasoning are written, too. If the reasoning is closed after them, a call that is
    the same as one of them is held back until it is complete, and dropped.
    """

    def __init__(
        self,
        turn: Turn,
        markers: MarkerFinder,
        openers: tuple[str, ...],
        deltas: DeltaBuffer,
        prose: Prose,
    ) -> None:
        self.tools = callable_tools(turn) if turn.tools else {}
        self.markers = markers
        self.openers = openers
        self._turn = turn
        self._parallel = turn.parallel_tool_calls
        self._deltas = deltas
        self._prose = prose
        self.repairs: set[Repair] = set()
        self._respelled: ToolSpec | None = None
        self._schemas: dict[int, ArgumentSchemas] = {}
        """By the `id()` of the tool, which the turn keeps."""
        self.has_started = False
        self._is_dropped = False
        self.has_dropped_calls = False
        # The calls since reasoning that was not closed, and those that may be repeated after it.
        self._in_reasoning: list[_Call] | None = None
        self._repeatable: list[_Call] = []
        self._held: _Call | None = None

    @cached_property
    def _names(self) -> ToolNames:
        return ToolNames(self._turn.tools, self._turn.choice)

    @property
    def names(self) -> Collection[str]:
        return self.tools.keys()

    def find_tool(self, name: str) -> ToolSpec | None:
        if (tool := self.tools.get(name)) is not None:
            return tool
        tool = self._names.find_respelled(name.strip())
        is_known = tool is not None and self._names.find(name.strip()) is not None
        self._respelled = None if is_known else tool
        return tool

    def schemas_of(self, tool: ToolSpec) -> ArgumentSchemas:
        if id(tool) not in self._schemas:
            self._schemas[id(tool)] = ArgumentSchemas(tool.parameters or {})
        return self._schemas[id(tool)]

    def is_name(self, name: str) -> bool:
        return (self.tools.get(name) or self._names.find(name.strip())) is not None

    def write_prose(self, text: str, offset: int) -> None:
        self._prose.write_prose(text, offset)

    def note(self, repair: Repair) -> None:
        self.repairs.add(repair)

    def start(self, tool: ToolSpec, call_id: str | None = None) -> None:
        if tool is self._respelled:
            self.note("tool_name")
        self._prose.start_call()
        self._is_dropped = self.has_started and not self._parallel
        self.has_started = True
        self.has_dropped_calls = self.has_dropped_calls or self._is_dropped
        if self._is_dropped:
            self.note("dropped_call")
            return
        call = _Call(tool, call_id)
        if self._in_reasoning is not None:
            self._in_reasoning.append(call)
        elif self._repeatable:
            self._held = call
            return
        self._deltas.add(call_start(tool, call_id))

    def write(self, text: str) -> None:
        if self._is_dropped:
            return
        if self._in_reasoning:
            self._in_reasoning[-1].pieces.append(text)
        if self._held:
            self._held.pieces.append(text)
        else:
            self._deltas.write(d.ArgumentsDelta, text)

    def end(self) -> None:
        if self._is_dropped:
            return
        if self._held and self._is_repetition(self._held):
            self.has_dropped_calls = True
            self.note("dropped_call")
            self._held = None
            return
        self.flush()
        self._deltas.add(d.ItemEnd())

    def flush(self) -> None:
        """Write a call that was held back, as far as it is known."""
        if self._held:
            self._deltas.add(call_start(self._held.tool, self._held.call_id))
            self._deltas.write(d.ArgumentsDelta, self._held.arguments)
            self._held = None

    def open_reasoning(self) -> None:
        """Remember the calls from here on: they are inside reasoning, or follow it unclosed."""
        self._in_reasoning = []
        self.note("call_in_reasoning")

    def close_reasoning(self) -> None:
        """Expect the calls inside the reasoning to be repeated after its end."""
        self._repeatable += self._in_reasoning or ()
        self._in_reasoning = None

    def _is_repetition(self, call: _Call) -> bool:
        """Whether the call repeats one, which may not be repeated once more."""
        for earlier in self._repeatable:
            if earlier.is_same(call):
                self._repeatable.remove(earlier)
                return True
        return False


class _Call:
    """A call as it was written so far."""

    def __init__(self, tool: ToolSpec, call_id: str | None) -> None:
        self.tool = tool
        self.call_id = call_id
        self.pieces: list[str] = []

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)

    def is_same(self, other: _Call) -> bool:
        """Whether the other calls the same tool with the same arguments, spaces aside."""
        if self.tool.name != other.tool.name:
            return False
        if self._text == other._text:
            return True
        return self._value is not None and self._value == other._value

    # Calls are compared once nothing more is written to them, and perhaps with many others.

    @cached_property
    def _text(self) -> str:
        return self.arguments.strip()

    @cached_property
    def _value(self) -> Any:
        return parse_json(self._text)
