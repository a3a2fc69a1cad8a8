"""Find out to which family a model belongs: by what its template writes, not by a text in it.

The strongest evidence is the template's own call. A family that writes this call the same way comes
first, then one that reads it. Among equals, reasoning, the family's `signs` and its end markers
decide. Only where a template writes no call, `signs` decide alone.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any

from msgspec import Struct

from antiphon.adapters.formats.chat_template.argument_styles import find_style
from antiphon.adapters.formats.chat_template.call_writer import write_calls
from antiphon.adapters.formats.chat_template.families import FAMILIES, CallForm, Family
from antiphon.adapters.formats.chat_template.parsing.parser import ChatTemplateParser
from antiphon.adapters.formats.chat_template.template import ChatTemplate
from antiphon.adapters.formats.chat_template.template_probes import (
    ARGUMENTS,
    NAME,
    PROBE_TOOL,
    THOUGHT,
    CallSample,
    Probes,
    probe,
)
from antiphon.adapters.formats.chat_template.tokenizer import Tokenizer
from antiphon.adapters.formats.chat_template.word_tokenizer import WordTokenizer
from antiphon.application.ports import Step, Turn
from antiphon.domain import deltas as d

logger = logging.getLogger("antiphon.formats")

HARMONY = "harmony"
"""What is detected for gpt-oss. It is no family: a format of its own reads and writes it."""

HARMONY_TEXTS = ("<|channel|>", f"to=functions.{NAME}", "<|message|>")

UNDETECTED = frozenset({"scripted"})
"""Families of no real model."""

WITHOUT_CALLS = "plain"

PROBE_TURN = Turn(model="", items=(), tools=[PROBE_TOOL])

TOKENIZER = WordTokenizer([NAME])
"""It only counts the tokens of reasoning, so any tokenizer will do."""

MAX_CANDIDATES = 3

MAX_SHOWN_CHARACTERS = 300

_END_MARKERS = re.compile(r"(<[^<>\s]+>|\s)*")
"""What may follow a call: markers that end a turn, which a family need not know."""


class Detection(Struct, frozen=True, kw_only=True):
    """The family that was recognized, and why.

    `reasons` are sentences about what was seen. `candidates` are other families that fit nearly as
    well, the best first. `knows_calls` says whether a way of calling tools was recognized; if not,
    the family is one without calls.
    """

    family: str
    reasons: Sequence[str]
    candidates: Sequence[str] = ()
    knows_calls: bool


def log(detection: Detection) -> None:
    """Say in the log what was recognized, with a warning if tools cannot be called."""
    reasons = "; ".join(detection.reasons)
    if detection.knows_calls:
        logger.info("The model's format is chat:%s: %s.", detection.family, reasons)
        return
    logger.warning(
        "No way of calling tools was recognized, so requests with tools are refused (format "
        "chat:%s: %s). If the model calls tools, name its format with --format; `antiphon formats` "
        "lists them.",
        detection.family,
        reasons,
    )


class Fit(IntEnum):
    """How well a family fits the template's calls."""

    NONE = 0
    BARE = 1
    """The family reads the call, which has no marker, but it would write it differently."""
    SIGNS = 2
    """The template writes no call, or one without markers; it shows the family's signs."""
    NAME = 3
    """The call begins as the family writes it, but its arguments cannot be read."""
    READ = 4
    """The family reads the call, by a marker."""
    BEGIN = 5
    """The family reads the call, which begins as the family writes it."""
    EXACT = 6
    """The family reads the call, and writes it so."""


FIT_REASONS: Mapping[Fit, str] = {
    Fit.BARE: "the template writes calls without markers, which this family reads",
    Fit.SIGNS: "the template does not show how a call is written",
    Fit.NAME: "the template's calls begin as this family writes them",
    Fit.READ: "the family reads the call that the template writes, but writes calls differently",
    Fit.BEGIN: "the family reads the call that the template writes, and begins it in the same way",
    Fit.EXACT: "the template writes a call exactly as this family does",
}


class Evidence(Struct, frozen=True, kw_only=True):
    """The evidence for a family, in the order of its weight."""

    family: str
    fit: Fit
    explained: int
    """The length of the call's text that the family writes in the same way."""
    reasoning: int
    """1 if the template writes reasoning as the family does, -1 if it does so differently."""
    signs: Sequence[str]
    verbatim: int
    """1 if the template writes each argument as the family does, to the last newline."""
    own_signs: int
    """How many of the signs the template's call does not show already."""
    has_think_marker: int
    """-1 if the family's reasoning has markers that are nowhere in the template."""
    end_markers: int

    @property
    def rank(self) -> tuple[int, ...]:
        return (
            self.fit,
            self.explained,
            self.reasoning,
            self.verbatim,
            self.own_signs,
            self.has_think_marker,
            self.end_markers,
        )


def detect(
    template: ChatTemplate,
    tokenizer: Tokenizer | None = None,
    config: Mapping[str, Any] = {},
    *,
    families: Mapping[str, Family] = FAMILIES,
) -> Detection:
    """Return the family of a template, with its model's tokenizer and config.json if known.

    Never fails, however strange the template.
    """
    source = _Source(template, tokenizer, config, probe(template))
    if source.writes_harmony:
        reason = "the template writes messages in channels, as gpt-oss does"
        return Detection(family=HARMONY, reasons=[reason], knows_calls=True)
    rows = {name: row for name, row in families.items() if name not in UNDETECTED}
    with_calls = [_weigh(name, row, source) for name, row in rows.items() if has_calls(row)]
    fitting = sorted(
        (each for each in with_calls if each.fit), key=lambda each: each.rank, reverse=True
    )
    if fitting:
        return _recognized(fitting, source)
    return _without_calls(
        [_weigh(name, row, source) for name, row in rows.items() if not has_calls(row)], source
    )


def has_calls(row: Family) -> bool:
    """Whether models of the family call tools in a way that can be read."""
    return bool(row.calls or row.bare_calls)


def _recognized(fitting: Sequence[Evidence], source: _Source) -> Detection:
    best, *others = fitting
    candidates = [each.family for each in others if each.fit == best.fit or each.fit >= Fit.READ]
    reasons = [FIT_REASONS[best.fit], *_side_reasons(best)]
    if source.refusal and best.fit is Fit.SIGNS:
        reasons.append(
            f"the template refused to write a call: {source.refusal[:MAX_SHOWN_CHARACTERS]}"
        )
    return Detection(
        family=best.family,
        reasons=reasons,
        candidates=candidates[:MAX_CANDIDATES],
        knows_calls=True,
    )


def _without_calls(rows: Sequence[Evidence], source: _Source) -> Detection:
    reasoning = max(
        (each for each in rows if each.signs or each.reasoning > 0),
        key=lambda each: each.rank,
        default=None,
    )
    return Detection(
        family=reasoning.family if reasoning else WITHOUT_CALLS,
        reasons=[_why_no_calls(source), *(_side_reasons(reasoning) if reasoning else [])],
        knows_calls=False,
    )


def _why_no_calls(source: _Source) -> str:
    if source.probes.calls:
        call = source.probes.calls[0].written.strip()[:MAX_SHOWN_CHARACTERS]
        return f"no family reads the call that the template writes: {call!r}"
    if source.refusal:
        return f"the template refused to write a call: {source.refusal[:MAX_SHOWN_CHARACTERS]}"
    if source.probes.describes_tools:
        return "the template describes tools, but not in a way of a family that is known"
    return "the template neither describes tools nor writes calls"


def _side_reasons(evidence: Evidence) -> list[str]:
    reasons = []
    if evidence.reasoning > 0:
        reasons.append("the template writes reasoning as this family does")
    if evidence.signs:
        reasons.append(f"it shows this family's signs: {', '.join(evidence.signs)}")
    return reasons


class _Source:
    """A template with what is known about its model."""

    def __init__(
        self,
        template: ChatTemplate,
        tokenizer: Tokenizer | None,
        config: Mapping[str, Any],
        probes: Probes,
    ) -> None:
        self.probes = probes
        self.refusal = probes.refusal
        self.model_type = config.get("model_type")
        self._tokenizer = tokenizer
        # Markers are often written in a string of the template, with its escapes.
        self._text = template.source.replace('\\"', '"').replace("\\n", "\n") + probes.with_tools

    @property
    def writes_harmony(self) -> bool:
        return self.model_type == "gpt_oss" or any(
            all(text in call.reply for text in HARMONY_TEXTS) for call in self.probes.calls
        )

    def shows_in_call(self, text: str) -> bool:
        return any(text in call.written for call in self.probes.calls)

    def has_text(self, text: str) -> bool:
        return text in self._text

    def has_token(self, text: str) -> bool:
        return self._tokenizer is not None and self._tokenizer.token_id(text) is not None


def _weigh(name: str, row: Family, source: _Source) -> Evidence:
    signs = _signs_of(row, source)
    fit, explained = max((_fit_of(row, call) for call in source.probes.calls), default=(0, 0))
    if fit < Fit.SIGNS and signs and not _is_contradicted(row, source):
        fit = Fit.SIGNS
    return Evidence(
        family=name,
        fit=Fit(fit),
        explained=explained,
        reasoning=_fit_of_reasoning(row, source.probes.thoughts),
        signs=signs,
        verbatim=max((_is_verbatim(row, call) for call in source.probes.calls), default=0),
        own_signs=sum(not source.shows_in_call(sign) for sign in signs),
        has_think_marker=_seen(row.think_markers, source),
        end_markers=_fit_of_ends(row, source),
    )


def _is_contradicted(row: Family, source: _Source) -> bool:
    """Whether the template writes calls, but not as the family may.

    Some templates leave the markers out. Then a family with markers can still be meant.
    """
    calls = [call.written.lstrip() for call in source.probes.calls]
    return bool(calls) and (
        bool(row.bare_calls) or not all(call.startswith(("{", "[{")) for call in calls)
    )


def _signs_of(row: Family, source: _Source) -> list[str]:
    """Return the signs that the model shows. Tokens alone say nothing if there are no tools."""
    signs = row.signs
    groups = [list(group) for group in signs.templates if all(map(source.has_text, group))]
    seen = max(groups, key=len, default=[])
    if seen or source.probes.describes_tools or source.probes.calls or not has_calls(row):
        if signs.tokens and all(map(source.has_token, signs.tokens)):
            seen += [f"the token {token}" for token in signs.tokens]
        if source.model_type in signs.model_types:
            seen.append(f"model_type {source.model_type}")
    return seen


def _fit_of(row: Family, call: CallSample) -> tuple[Fit, int]:
    """Return how well the family fits the call, and how much of the call it explains."""
    form = row.call_form
    written, reply = _without_space(call.written), _without_space(call.reply)
    own = _without_space(write_calls(form, [(NAME, ARGUMENTS)])) if form else ""
    is_exact = bool(own) and own in reply
    begin = _begin_of(form).search(reply) if form and "{name}" in form.begin else None
    begin_length = len(begin[0]) if begin else 0
    name, arguments, has_rest = _read(row, call.written)
    if begin and arguments != ARGUMENTS and written.startswith(begin[0]):
        return Fit.NAME, begin_length  # some templates write texts without quotes
    if name != NAME or has_rest:
        # Text around the call may be the template's; a marker that always starts a call is enough.
        return (Fit.READ, len(own)) if is_exact and form and form.trigger else (Fit.NONE, 0)
    if arguments != ARGUMENTS:
        return Fit.NONE, 0
    if is_exact:
        return Fit.EXACT, len(own)
    if begin:
        return Fit.BEGIN, begin_length
    is_marked = any(marker in call.written for marker in row.calls)
    return (Fit.READ if is_marked else Fit.BARE), _common_length(form, reply)


def _is_verbatim(row: Family, call: CallSample) -> int:
    if row.call_form is None:
        return 0
    write = find_style(row.call_form.arguments).write
    texts = (write({key: value}).strip() for key, value in ARGUMENTS.items())
    return int(all(text in call.reply for text in texts))


def _begin_of(form: CallForm) -> re.Pattern[str]:
    """Return a pattern of the beginning of a call, with any number for `{index}`."""
    begin = re.escape(_without_space(form.open + form.begin.replace("{name}", NAME)))
    return re.compile(re.sub(r"\\\{\w+\\\}", r"\\d+", begin))


def _common_length(form: CallForm | None, reply: str) -> int:
    """Return the length of the texts around a call's name and arguments that are in `reply`."""
    if form is None:
        return 0
    texts = (form.open, *re.split(r"\{\w+\}", form.begin), form.end, form.close)
    return sum(len(text) for text in map(_without_space, texts) if text in reply)


def _without_space(text: str) -> str:
    return "".join(text.split())


def _read(row: Family, text: str) -> tuple[str, Any, bool]:
    """Return the call that the family reads in `text`, and whether other text is left."""
    if not any(marker in text for marker in (*row.calls, *row.bare_calls)):
        return "", None, True
    parser = ChatTemplateParser(row, TOKENIZER, turn=PROBE_TURN)
    name = written = rest = ""
    for delta in [*parser.feed(Step(text=text)), *parser.end()]:
        match delta:
            case d.CallStart(name=called):
                name = called if not name else "several calls"
            case d.ArgumentsDelta(piece):
                written += piece
            case d.TextDelta(piece):
                rest += piece if name else f"text before the call: {piece}"
    return name, _parse_json(written), not _END_MARKERS.fullmatch(rest)


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _fit_of_reasoning(row: Family, thoughts: Iterable[str]) -> int:
    pairs = [tuple(text.split(THOUGHT, 1)) for text in thoughts]
    if not pairs:
        return 0
    fits = any(
        before.rstrip().endswith(begin.strip()) and after.lstrip().startswith(end.strip())
        for before, after in pairs
        for begin, end in row.thinks
    )
    return 1 if fits else -1


def _seen(markers: Sequence[str], source: _Source) -> int:
    """Return 1 if one of the markers is in the template or is a token, -1 if none of them is."""
    if not markers:
        return 0
    return 1 if any(source.has_text(each) or source.has_token(each) for each in markers) else -1


def _fit_of_ends(row: Family, source: _Source) -> int:
    after = source.probes.after_answer.strip()
    if after.startswith(row.end_markers):
        return 2
    return 1 if _seen(row.end_markers, source) > 0 else 0
