"""A written turn as acts: its tokens in order, with the pauses and mishaps among them.

Everything that shortens a turn (a token limit, a stop string) shortens its acts before they are
played, so that playing knows nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from operator import itemgetter

from msgspec import Struct
from msgspec.structs import replace

from antiphon.adapters.engines.scripted.logprobs import logprob
from antiphon.adapters.engines.scripted.script import FAULTS, Part
from antiphon.application.model.stop_strings import beginning_of_stop
from antiphon.application.ports import Step

Token = tuple[int, str]
_ID, _TEXT = itemgetter(0), itemgetter(1)


class Segment(Struct, frozen=True, kw_only=True):
    """Tokens that come at one pace after a delay, or a mishap in their place.

    `shown` is the tokens' text as it may be given, where that lags behind.
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
    """Return the acts of a turn that was written as Markup says: one list a part, one for its end.

    Parts without a delay between them join into one act if their pace is the same, so that steps
    of `step_tokens` may cross from one into the next; those of a larger `chunk` stay in their part.
    """
    if not parts:
        return [Segment(tokens=written[-1], step_tokens=step_tokens)]
    acts: list[Segment] = []
    for part, tokens in zip(parts, (*written[:-2], written[-2] + written[-1]), strict=True):
        wanted = part.get("chunk", 1)
        act = Segment(
            tokens=tokens,
            step_tokens=max(step_tokens, len(tokens) if wanted == "all" else wanted),
            delay_s=part.get("delay", 0) + part.get("hang", 0),
            tick_s=part.get("tick", 0),
            fault=None if FAULTS.isdisjoint(part) else part,
        )
        if acts and _continues(acts[-1], act, step_tokens):
            act = replace(act, tokens=acts[-1].tokens + tokens, delay_s=acts.pop().delay_s)
        acts.append(act)
    return acts


def _continues(act: Segment, after: Segment, step_tokens: int) -> bool:
    return (
        not after.delay_s
        and act.fault is after.fault is None
        and act.step_tokens == after.step_tokens == step_tokens
        and act.tick_s == after.tick_s
    )


def cut(acts: Sequence[Segment], limit: int) -> tuple[list[Segment], bool]:
    """Return the acts up to so many tokens, and whether anything is left out by that."""
    kept: list[Segment] = []
    for act in acts:
        if limit <= 0:
            return kept, True  # also a mishap that would come after the last token
        if len(act.tokens) > limit:
            return [*kept, replace(act, tokens=act.tokens[:limit])], True
        kept.append(act)
        limit -= len(act.tokens)
    return kept, False


def cut_at_stop(
    acts: Sequence[Segment], stops: Sequence[str], *, include: bool
) -> tuple[list[Segment], bool]:
    """Return the acts as far as the first stop string, and whether there is one.

    The string ends the text unless `include` leaves it in. What may become one is held back.
    """
    texts, met = hold_back([text for act in acts for _, text in act.tokens], stops, include=include)
    if met:
        acts, _ = cut(acts, len(texts))
    rest = iter(texts)
    return [replace(act, shown=list(islice(rest, len(act.tokens)))) for act in acts], met


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
    reach = max(map(len, stops), default=1) - 1
    given: list[str] = []
    read = sent = 0
    for text in texts:
        read += len(text)
        if found and read >= end:
            return [*given, visible[sent:]], True
        ready = read - beginning_of_stop(whole[max(0, read - reach) : read], stops)
        given.append(whole[sent:ready])
        sent = ready
    if given:
        given[-1] += whole[sent:]
    return given, False


def steps(
    act: Segment, *, finish: str | None, cached_tokens: int, alternatives: int | None
) -> Iterator[Step]:
    """Yield the act's steps, the last with `finish`: an empty one where it has no tokens."""
    tokens = act.tokens
    if act.step_tokens == 1 and alternatives is None and act.shown is None:
        # The hot path: a stream, one token a step.
        for token_id, text in tokens if finish is None else tokens[:-1]:
            yield Step(text=text, token_ids=(token_id,), cached_tokens=cached_tokens)
        if finish is None:
            return
        tokens = tokens[-1:]
    shown = act.shown
    for start in range(0, len(tokens) or finish is not None, act.step_tokens):
        end = start + act.step_tokens
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
