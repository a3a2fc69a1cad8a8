"""Segments of a turn: its tokens in order, with the delays and faults between them.

Token limits and stop strings shorten the segments before they are played.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from operator import itemgetter

from msgspec import Struct
from msgspec.structs import replace

from antiphon.adapters.engines.scripted.logprobs import logprob
from antiphon.adapters.engines.scripted.script import FAULTS, Part
from antiphon.application.model.stop_strings import StopPrefixes
from antiphon.application.ports import Step

Token = tuple[int, str]
_ID, _TEXT = itemgetter(0), itemgetter(1)

MAX_LOGPROBS_PER_STEP = 256
"""With 20 alternatives each, they take some 3 ms, in which nobody else has the event loop."""


class Segment(Struct, frozen=True, kw_only=True):
    """Tokens at one pace after a delay, or a fault instead of tokens.

    `shown` is the text to give with each token, if stop strings delay it.
    """

    tokens: list[Token]
    step_tokens: int = 1
    delay_s: float = 0.0
    tick_s: float = 0.0
    fault: Part | None = None
    shown: list[str] | None = None


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
            shown = None if segment.shown is None else segment.shown[count:]
            rest.append(replace(segment, tokens=segment.tokens[count:], shown=shown, delay_s=0.0))
            count = 0
        else:
            rest.append(segment)
    return rest


def cut_at_stop(
    segments: Sequence[Segment], stops: Sequence[str], *, include: bool
) -> tuple[list[Segment], bool]:
    """Return the segments up to the first stop string, and whether there is one.

    The stop string is removed unless `include` is true. Text that may become one is held back.
    """
    texts, has_stopped = hold_back(
        [text for segment in segments for _, text in segment.tokens], stops, include=include
    )
    if has_stopped:
        segments, _ = cut(segments, len(texts))
    rest = iter(texts)
    return [
        replace(segment, shown=list(islice(rest, len(segment.tokens)))) for segment in segments
    ], has_stopped


def hold_back(
    texts: Sequence[str], stops: Sequence[str], *, include: bool = False
) -> tuple[list[str], bool]:
    """Return the text to give with each token, up to the one that completes a stop string.

    >>> hold_back(["a b", "c S", "TO", "P d"], ["STOP"])
    (['a b', 'c ', '', ''], True)
    >>> hold_back(["a b", "c S", "TO", "Y"], ["STOP"])
    (['a b', 'c ', '', 'STOY'], False)
    """
    whole = "".join(texts)
    stops = [stop for stop in stops if stop]
    found = [(at + len(stop), at) for stop in stops if (at := whole.find(stop)) >= 0]
    end, start = min(found, default=(-1, -1))
    visible = whole[: end if include else start] if found else whole
    prefixes = StopPrefixes(stops)
    visible_texts: list[str] = []
    read = sent = 0
    for text in texts:
        read += len(text)
        if found and read >= end:
            return [*visible_texts, visible[sent:]], True
        ready = read - prefixes.feed(text)
        visible_texts.append(whole[sent:ready])
        sent = ready
    if visible_texts:
        visible_texts[-1] += whole[sent:]
    return visible_texts, False


def steps(
    segment: Segment, *, finish: str | None, cached_tokens: int, alternatives: int | None
) -> Iterator[Step]:
    """Yield the segment's steps, the last with `finish`. Without tokens, it is an empty step."""
    tokens = segment.tokens
    if segment.step_tokens == 1 and alternatives is None and segment.shown is None:
        # The hot path: a stream with one token per step.
        for token_id, text in tokens if finish is None else tokens[:-1]:
            yield Step(text=text, token_ids=(token_id,), cached_tokens=cached_tokens)
        if finish is None:
            return
        tokens = tokens[-1:]
    shown, step_tokens = segment.shown, segment.step_tokens
    if alternatives is not None:
        step_tokens = min(step_tokens, MAX_LOGPROBS_PER_STEP)
    for start in range(0, len(tokens) or finish is not None, step_tokens):
        end = start + step_tokens
        batch = tokens[start:end]
        yield Step(
            text="".join(map(_TEXT, batch) if shown is None else shown[start:end]),
            token_ids=list(map(_ID, batch)),
            logprobs=None
            if alternatives is None
            else tuple([logprob(token_id, text, alternatives) for token_id, text in batch]),
            finish=finish if end >= len(tokens) else None,
            cached_tokens=cached_tokens,
        )
