"""Segments of a turn: its tokens in order, with the delays and faults between them.

Token limits shorten the segments before they are played.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from operator import itemgetter

from msgspec import Struct
from msgspec.structs import replace

from antiphon.adapters.engines.scripted.logprobs import logprob
from antiphon.adapters.engines.scripted.script import FAULTS, Part
from antiphon.application.ports import Step
from antiphon.domain.content import Logprob

Token = tuple[int, str]
_ID, _TEXT = itemgetter(0), itemgetter(1)

MAX_LOGPROBS_PER_STEP = 256
"""With 20 alternatives each, they take some 3 ms, in which nobody else has the event loop."""


class Segment(Struct, frozen=True, kw_only=True):
    """Tokens at one pace after a delay, or a fault instead of tokens.

    `logprobs` are those of the tokens, if they are not invented.
    """

    tokens: list[Token]
    step_tokens: int = 1
    delay_s: float = 0.0
    tick_s: float = 0.0
    fault: Part | None = None
    logprobs: tuple[Logprob, ...] = ()


def to_segments(
    parts: Sequence[Part], written: Sequence[list[Token]], *, step_tokens: int = 1
) -> list[Segment]:
    """Return the segments of a turn, from the lists that `Markup.write` returns.

    Parts at the same pace without a delay between them form one segment, so that a step of
    `step_tokens` can span them. Steps of a larger `chunk` stay within their part.
    """
    if not parts:
        return [Segment(tokens=written[-1], step_tokens=step_tokens)]
    segments: list[Segment] = []
    for part, tokens in zip(parts, (*written[:-2], written[-2] + written[-1]), strict=True):
        chunk = part.get("chunk", 1)
        segment = Segment(
            tokens=tokens,
            step_tokens=max(step_tokens, len(tokens) if chunk == "all" else chunk),
            delay_s=part.get("delay", 0) + part.get("hang", 0),
            tick_s=part.get("tick", 0),
            fault=None if FAULTS.isdisjoint(part) else part,
        )
        if segments and _can_join(segments[-1], segment, step_tokens):
            last = segments.pop()
            segment = replace(segment, tokens=last.tokens + tokens, delay_s=last.delay_s)
        segments.append(segment)
    return segments


def _can_join(first: Segment, second: Segment, step_tokens: int) -> bool:
    return (
        not second.delay_s
        and first.fault is second.fault is None
        and first.step_tokens == second.step_tokens == step_tokens
        and first.tick_s == second.tick_s
    )


def cut(segments: Sequence[Segment], limit: int) -> tuple[list[Segment], bool]:
    """Return the segments up to `limit` tokens, and whether any tokens were left out."""
    kept: list[Segment] = []
    for segment in segments:
        if limit <= 0:
            return kept, True  # also a mishap that would come after the last token
        if len(segment.tokens) > limit:
            return [*kept, replace(segment, tokens=segment.tokens[:limit])], True
        kept.append(segment)
        limit -= len(segment.tokens)
    return kept, False


def without_first(segments: Sequence[Segment], count: int) -> list[Segment]:
    """Return the segments without their first `count` tokens, which were played before."""
    rest: list[Segment] = []
    for segment in segments:
        if count >= len(segment.tokens) > 0:
            count -= len(segment.tokens)
        elif count:
            rest.append(replace(segment, tokens=segment.tokens[count:], delay_s=0.0))
            count = 0
        else:
            rest.append(segment)
    return rest


def steps(
    segment: Segment, *, finish: str | None, cached_tokens: int, alternatives: int | None
) -> Iterator[Step]:
    """Yield the segment's steps, the last with `finish`. Without tokens, it is an empty step."""
    tokens = segment.tokens
    if segment.step_tokens == 1 and alternatives is None:
        # The hot path: a stream with one token per step.
        for token_id, text in islice(tokens, max(0, len(tokens) - (finish is not None))):
            yield Step(text=text, token_ids=(token_id,), cached_tokens=cached_tokens)
        if finish is None:
            return
        tokens = tokens[-1:]
    step_tokens = segment.step_tokens
    if alternatives is not None:
        step_tokens = min(step_tokens, MAX_LOGPROBS_PER_STEP)
    for start in range(0, len(tokens) or finish is not None, step_tokens):
        end = start + step_tokens
        batch = tokens[start:end]
        yield Step(
            text="".join(map(_TEXT, batch)),
            token_ids=list(map(_ID, batch)),
            logprobs=None
            if alternatives is None
            else segment.logprobs[start:end]
            or tuple([logprob(token_id, text, alternatives) for token_id, text in batch]),
            finish=finish if end >= len(tokens) else None,
            cached_tokens=cached_tokens,
        )
