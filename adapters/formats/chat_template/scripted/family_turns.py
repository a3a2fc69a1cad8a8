"""Write and read the turns of a model of any family, as its row of the table says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Literal

from msgspec import Struct

from antiphon.adapters.formats.chat_template.call_writer import write_calls, write_each_call
from antiphon.adapters.formats.chat_template.families import CallForm, Family
from antiphon.adapters.formats.chat_template.parsing.parser import ChatTemplateParser
from antiphon.adapters.formats.chat_template.tokenizer import Tokenizer
from antiphon.application.ports import Step, Turn
from antiphon.domain import deltas as d
from antiphon.domain.json import Json
from antiphon.domain.tools import ToolSpec

_is_tool_name = re.compile(r"[\w.:-]{1,128}").fullmatch


class Block(Struct, frozen=True):
    """A block of a turn. `arguments` are those of the call of `text`, or a text to be written."""

    kind: Literal["think", "text", "refusal", "call", "raw"]
    text: str
    arguments: Json | str = ""


class FamilyTurns:
    """The turns of one family.

    What the family cannot write is left out: reasoning or calls without markers for them, and text
    before a call that only the start of a text can be.
    """

    def __init__(self, family: Family, tokenizer: Tokenizer) -> None:
        self._family = family
        self._tokenizer = tokenizer
        self._around_calls = self._find_markers_after_text()

    @property
    def writes_text_before_calls(self) -> bool:
        """Whether a text may precede calls in a turn of this family."""
        return self._around_calls is not None

    def write(self, blocks: Sequence[Block]) -> list[str]:
        """Return the text of each block; a separator belongs to the block that it precedes.

        Calls in a row are one group, in what opens and closes it in this family.
        """
        texts = [""] * len(blocks)
        last, count = "", 0
        for kind, group in groupby(self._writable(blocks), lambda place: blocks[place].kind):
            places = list(group)
            if kind == "call":
                calls = [(blocks[place].text, blocks[place].arguments) for place in places]
                written = self._write_calls(calls, first_index=count, after_text=last == "text")
                count += len(calls)
                texts[places[0]] = _separator(last, kind)
                for place, text in zip(places, written, strict=True):
                    texts[place] += text
                last = kind
                continue
            for place in places:
                texts[place] = _separator(last, kind) + self._write_block(blocks[place])
                last = {"refusal": "text", "raw": ""}.get(kind, kind)
        return texts

    def read(self, text: str) -> Iterator[tuple[str, str]]:
        """Yield a turn's reasoning, then all its text as one message, then the names it calls."""
        turn = Turn(model="", items=())
        parser = ChatTemplateParser(self._family, self._tokenizer, turn=turn, tools=_AnyTool())
        texts: dict[type[d.Delta], list[str]] = {}
        calls: list[str] = []
        for delta in [*parser.feed(Step(text=text)), *parser.end()]:
            match delta:
                case d.ReasoningDelta() | d.TextDelta() | d.RefusalDelta():
                    kind = d.ReasoningDelta if isinstance(delta, d.ReasoningDelta) else d.TextDelta
                    texts.setdefault(kind, []).append(delta.text)
                case d.CallStart(name=name):
                    calls.append(name)
        if d.ReasoningDelta in texts:
            yield "reasoning", "".join(texts[d.ReasoningDelta])
        if d.TextDelta in texts:
            yield ("preamble" if calls else "assistant"), "".join(texts[d.TextDelta])
        yield from (("call", name) for name in calls)

    def _writable(self, blocks: Sequence[Block]) -> list[int]:
        """Return the places of the blocks that this family can write."""
        calls = [place for place, block in enumerate(blocks) if block.kind == "call"]
        last_call = calls[-1] if calls else -1
        return [
            place
            for place, block in enumerate(blocks)
            if block.text and self._can_write(block, precedes_call=place < last_call)
        ]

    def _can_write(self, block: Block, *, precedes_call: bool) -> bool:
        match block.kind:
            case "think":
                return self._family.think is not None
            case "call":
                return self._family.call_form is not None
            case "raw":
                return True
        return self.writes_text_before_calls or not precedes_call

    def _write_block(self, block: Block) -> str:
        if block.kind == "think" and self._family.think:
            begin, end = self._family.think
            label = self._family.think_label or "\n"
            return f"{begin}{label}{block.text}\n{end}"
        if block.kind == "refusal" and self._family.refusal:
            begin, end = self._family.refusal
            return f"{begin}{block.text}{end}"
        return block.text

    def _write_calls(
        self, calls: Sequence[tuple[str, Json | str]], *, first_index: int, after_text: bool
    ) -> list[str]:
        form = self._family.call_form
        assert form
        fitting = [(name, _fit_arguments(form, arguments)) for name, arguments in calls]
        written = write_each_call(form, fitting, first_index=first_index)
        if after_text and self._around_calls:
            begin, end = self._around_calls
            written[0] = begin + written[0]
            written[-1] += end
        return written

    def _find_markers_after_text(self) -> tuple[str, str] | None:
        """Return the markers around calls that follow a text, ("", "") if they need none.

        Return None if the family reads calls only where nothing precedes them.
        """
        form = self._family.call_form
        if form is None:
            return "", ""
        call = write_calls(form, [("f", {})])
        markers = [("", ""), *((begin, each.end) for begin, each in self._family.calls.items())]
        expected = [("preamble", "Text."), ("call", "f")]
        for begin, end in markers:
            if list(self.read(f"Text.\n{begin}{call}{end}")) == expected:
                return begin, end
        return None


def _separator(last: str, kind: str) -> str:
    """Return the whitespace between two blocks; it belongs to neither."""
    if not last or kind == "raw":
        return ""
    return "\n\n" if last == "think" or (last == "text" and kind in ("text", "refusal")) else "\n"


def _fit_arguments(form: CallForm, arguments: Json | str) -> Json | str:
    """Return arguments that a script spells as JSON for a family that writes them otherwise."""
    if form.arguments == "json" or not isinstance(arguments, str):
        return arguments
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


class _AnyTool(Mapping[str, ToolSpec]):
    """A tool of every name: a prompt may hold calls of tools that are no longer offered."""

    def __getitem__(self, name: str) -> ToolSpec:
        if not _is_tool_name(name):
            raise KeyError(name)
        return ToolSpec(name=name)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 1  # it is not empty
