"""Play the recorded output of a model as a turn of today's code, with recorded results of tools."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec.structs import replace

from antiphon.adapters.formats.chat_template import scripted_chat, scripted_family
from antiphon.adapters.formats.chat_template.parsing.parser import ChatTemplateParser
from antiphon.adapters.formats.chat_template.scripted.family_markup import tokenizer_of
from antiphon.adapters.formats.harmony import HarmonyFormat, HarmonyParser
from antiphon.adapters.formats.harmony.encoding import load_encoding
from antiphon.adapters.formats.unmarked_calls import search_of, with_unmarked_calls
from antiphon.adapters.models.chat_completions.reader import ChunkReader
from antiphon.adapters.models.chat_completions.turn import CHAT_COMPLETIONS, ChatTurn
from antiphon.adapters.models.chat_completions.usage import UsageMeter
from antiphon.application.model.reasoning_summaries import SummarizedTurn
from antiphon.application.model.stalls import TokenDeadlines
from antiphon.application.model.stop_strings import stop_strings_of
from antiphon.application.model.token_model import TokenTurn
from antiphon.application.ports import ModelTurn, Parser, Prompt, Sampling, Step, Turn
from antiphon.application.tools.calls import ToolCaller, ToolCallingTurn, ToolCalls
from antiphon.application.tools.citations import CitingTurn
from antiphon.application.tools.work import WorkOutput
from antiphon.domain import deltas as d
from antiphon.domain.content import Annotation
from antiphon.domain.errors import EngineError, SettingsError
from antiphon.domain.json import Json
from antiphon.domain.responses.response import TextConfig
from antiphon.domain.responses.traces import TracedCall, TurnTrace, from_traced
from antiphon.domain.responses.usage import TurnUsage

NOT_IN_BUNDLE = "This call is not in the bundle."
PLAYED_KINDS = ("answer",)
"""Turns of other kinds hide what the model wrote, or have no model: their deltas are played."""


def recorded_deltas(trace: TurnTrace) -> list[d.Delta]:
    return [from_traced(delta) for batch in trace.batches for delta in batch.deltas]


def can_play(trace: TurnTrace) -> bool:
    """Whether the turn has the whole output of a model in a format that is known here."""
    if trace.kind not in PLAYED_KINDS or trace.output is None or "output" in trace.cut:
        return False
    return _is_known(trace.format)


async def play(trace: TurnTrace) -> list[d.Delta]:
    """Return what today's code makes of the turn. Token counts are the recorded ones."""
    recorded = recorded_deltas(trace)
    turn = _wrap(_model_turn(trace), trace, recorded)
    deltas: list[d.Delta] = []
    try:
        async with aclosing(aiter(turn)) as batches:
            async for batch in batches:
                deltas += batch
    except EngineError:
        if trace.reason:
            raise
    ends = [delta for delta in recorded if isinstance(delta, d.TurnEnd)]
    return [
        replace(delta, usage=ends[-1].usage, other_usages=ends[-1].other_usages)
        if isinstance(delta, d.TurnEnd) and ends
        else delta
        for delta in deltas
    ]


def _is_known(name: str) -> bool:
    if name == "harmony" or name.startswith(f"{CHAT_COMPLETIONS}:"):
        return True
    try:
        scripted_family(name.removeprefix("chat:"))
    except SettingsError:
        return False
    return name.startswith("chat:")


# --- the output of the model ----------------------------------------------------------------------


def _model_turn(trace: TurnTrace) -> ModelTurn:
    turn = Turn(
        model=trace.model,
        items=(),
        tools=trace.tools,
        choice=trace.choice,
        parallel_tool_calls=trace.parallel_tool_calls,
        text=TextConfig(format=trace.text_format) if trace.text_format else TextConfig(),
        sampling=_sampling_of(trace),
    )
    if trace.format.startswith(CHAT_COMPLETIONS):
        return _chat_turn(trace, turn)
    if trace.format == "harmony":
        harmony = HarmonyFormat()
        parser = _extend(HarmonyParser(load_encoding(), turn), trace, turn)
        steps = _ReplayedSteps(_harmony_steps(trace), trace.reason)
        strings = stop_strings_of(turn.sampling)
        return TokenTurn(harmony, parser, turn, Prompt(token_ids=()), steps, strings)
    name = trace.format.removeprefix("chat:")
    chat_format = scripted_chat() if name == "scripted" else scripted_family(name)[0]
    family = chat_format.family
    text_parser = _extend(
        ChatTemplateParser(
            family,
            tokenizer_of(family),
            turn=turn,
            starts_in_reasoning=family.think is not None
            and family.opens_reasoning(trace.prompt or ""),
        ),
        trace,
        turn,
    )
    steps = _ReplayedSteps(_text_steps(trace), trace.reason)
    strings = stop_strings_of(turn.sampling)
    return TokenTurn(chat_format, text_parser, turn, Prompt(token_ids=()), steps, strings)


def _extend(parser: Parser, trace: TurnTrace, turn: Turn) -> Parser:
    return with_unmarked_calls(parser, turn) if trace.unmarked_calls else parser


def _sampling_of(trace: TurnTrace) -> Sampling:
    names = ("stop", "include_stop_str_in_output")
    return msgspec.convert(
        {name: trace.sampling[name] for name in names if name in trace.sampling}, Sampling
    )


def _text_steps(trace: TurnTrace) -> Iterator[Step]:
    """Yield the text as it came; text that was added to the bundle is in the last step."""
    text, start = trace.output or "", 0
    for step in trace.steps:
        yield Step(text=text[start : start + step.characters])
        start += step.characters
    yield Step(text=text[start:])


def _harmony_steps(trace: TurnTrace) -> Iterator[Step]:
    """Yield the tokens as they came, or those of the text if that was changed in the bundle."""
    encoding, start = load_encoding(), 0
    ids: Sequence[int] = trace.output_token_ids
    if encoding.text(ids) != trace.output:
        ids = encoding.encode_markup(trace.output or "")
    for step in trace.steps:
        yield Step(token_ids=ids[start : start + step.tokens])
        start += step.tokens
    yield Step(token_ids=ids[start:])


class _ReplayedSteps:
    """The steps of an engine that repeats what another one wrote."""

    def __init__(self, steps: Iterator[Step], reason: str) -> None:
        self._steps = list(steps)
        self._reason = reason

    async def __aiter__(self) -> AsyncIterator[Step]:
        for step in self._steps:
            if step.text or step.token_ids:
                yield step
        if self._reason:
            yield Step(finish="length" if self._reason == "length" else "stop")

    async def aclose(self) -> None:
        pass


def _chat_turn(trace: TurnTrace, turn: Turn) -> ModelTurn:
    think: Any = trace.format.partition(":")[2]
    meter = UsageMeter(trace.prompt_tokens, None)
    stream: Any = _ReplayedStream(trace)

    async def open_stream() -> Any:
        return stream

    return ChatTurn(
        turn,
        trace.upstream_request or {"messages": []},
        asyncio.ensure_future(open_stream()),
        ChunkReader(
            turn, meter, think=think, search=search_of(turn) if trace.unmarked_calls else None
        ),
        meter,
        deadlines=TokenDeadlines(),
        on_end=lambda _: None,
    )


class _ReplayedStream:
    """The stream of a Chat Completions server, as it came."""

    def __init__(self, trace: TurnTrace) -> None:
        self._trace = trace

    async def __aiter__(self) -> AsyncGenerator[list[bytes]]:
        for step in _text_steps(self._trace):
            if step.text:
                yield [line.encode() for line in step.text.removesuffix("\n").split("\n")]

    async def aclose(self) -> None:
        pass


# --- what is around it ----------------------------------------------------------------------------


def _wrap(turn: ModelTurn, trace: TurnTrace, recorded: Sequence[d.Delta]) -> ModelTurn:
    """Return the turn in the wrappers that it ran in, as runs/turns.py stacks them."""
    annotations = [delta.annotation for delta in recorded if isinstance(delta, d.AnnotationDelta)]
    if annotations and not trace.format.startswith(CHAT_COMPLETIONS):
        turn = CitingTurn(turn, [_RecordedCitations(annotations)])
    if trace.calls:
        calls = _RecordedCalls(trace.calls)
        turn = ToolCallingTurn(turn, ToolCalls(calls.callers(), None))
    ends = [delta for delta in recorded if isinstance(delta, d.TurnEnd)]
    if ends and ends[-1].other_usages:
        summaries = _RecordedSummaries(recorded)
        turn = SummarizedTurn(
            turn,
            Turn(model=trace.model, items=()),
            summaries.start_turn,
            length="auto",
            effort=None,
        )
    return turn


class _RecordedCitations:
    """Cites what was cited, at the places where it was."""

    def __init__(self, annotations: Sequence[Annotation]) -> None:
        self._annotations = list(annotations)

    def __call__(self, _words: str, start: int, end: int) -> Annotation | None:
        for annotation in self._annotations:
            place = getattr(annotation, "start_index", getattr(annotation, "index", None))
            if place is not None and start <= place <= end:
                self._annotations.remove(annotation)
                return annotation
        return None


class _RecordedCalls:
    """The calls of a turn, in the order in which the model made them."""

    def __init__(self, calls: Sequence[TracedCall]) -> None:
        self._calls = list(calls)
        self._opened: list[tuple[d.CallStart, TracedCall | None]] = []

    def callers(self) -> dict[str, ToolCaller]:
        return {
            kind: _RecordedCaller(self, call.step)
            for call in self._calls
            for kind in (call.kind, call.written_kind)
        }

    def open(self, start: d.CallStart) -> d.Delta:
        call = self._calls.pop(0) if self._calls else None
        opening: d.Delta = start
        if call is not None and call.opening is not None:
            opening = from_traced(call.opening)
        if isinstance(opening, d.CallStart) and call and call.written_name != start.name:
            opening = replace(opening, name=start.name)
        self._opened.append((opening if isinstance(opening, d.CallStart) else start, call))
        return opening

    def output_of(self, start: d.CallStart) -> Sequence[Sequence[d.Delta]]:
        for opened, call in self._opened:
            if opened is start and call is not None:
                return [[*map(from_traced, batch)] for batch in call.output]
        return [[d.ToolEnd("failed", {"error": NOT_IN_BUNDLE})]]


class _RecordedCaller(ToolCaller):
    """Answers calls as they were answered."""

    def __init__(self, calls: _RecordedCalls, step: str) -> None:
        self._calls = calls
        self.step = step

    def open_item(self, start: d.CallStart) -> d.Delta:
        return self._calls.open(start)

    async def call(self, start: d.CallStart, arguments: str) -> WorkOutput:  # noqa: ARG002
        for batch in self._calls.output_of(start):
            yield batch

    def refuse(
        self,
        start: d.CallStart,  # noqa: ARG002
        arguments: str,  # noqa: ARG002
        reason: str,
    ) -> Sequence[d.Delta]:
        return [d.ToolEnd("failed", {"error": reason})]


class _RecordedSummaries:
    """Writes the summaries of reasoning that were written."""

    def __init__(self, recorded: Sequence[d.Delta]) -> None:
        self._summaries: list[list[d.SummaryDelta]] = []
        before: d.Delta | None = None
        for delta in recorded:
            if isinstance(delta, d.SummaryDelta):
                if not isinstance(before, d.SummaryDelta):
                    self._summaries.append([])
                self._summaries[-1].append(delta)
            before = delta

    async def start_turn(self, _turn: Turn) -> ModelTurn:
        texts = self._summaries.pop(0) if self._summaries else []
        return _Written([d.TextDelta(delta.text) for delta in texts])


class _Written(ModelTurn):
    """A turn that writes these deltas."""

    def __init__(self, deltas: Sequence[d.Delta]) -> None:
        self._deltas = deltas

    async def __aiter__(self) -> AsyncGenerator[list[d.Delta]]:
        yield [*self._deltas, d.TurnEnd("stop", TurnUsage())]

    async def aclose(self) -> None:
        pass

    def messages(self) -> tuple[list[Json], list[Json]]:
        return [], []
