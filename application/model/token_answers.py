"""Answers of one token: the labels that stand for them, and how likely each of them is.

An answer may have many tokens, and models are more likely to begin a short one. So each gets a
label of one token, and the model's probabilities of these tokens are those of the answers: exactly,
and with one step of the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from antiphon.application.ports import Parser, Step, Turn
from antiphon.domain.deltas import Delta
from antiphon.domain.kinds.message import Message

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
LABELS = (*LETTERS, *map("".join, product(LETTERS, repeat=2)))
"""What may be labels, if each is one token of the model: A to Z, then AA to ZZ."""

PROBE = Turn(model="", items=(Message(role="user", content="?"),), begins_answer=True)
"""A turn whose prompt ends as all prompts of the model do."""


def distinct(texts: Sequence[str], tokens: Sequence[int | None]) -> list[str]:
    """Return the texts that are one token each, and no other one's.

    >>> distinct("ABCD", [7, None, 7, 8])
    ['A', 'D']
    """
    found: dict[int, str] = {}
    for text, token in zip(texts, tokens, strict=True):
        if token is not None:
            found.setdefault(token, text)
    return list(found.values())


class AnswerReader(Parser):
    """Reads the run of an answer: not its text, but how likely each of the tokens is.

    `logs` are the logarithms of the probabilities, as far as the engine tells.
    """

    reasoning_tokens = 0
    is_well_formed = True

    def __init__(self) -> None:
        self.logs: Sequence[float] = ()

    def feed(self, step: Step) -> list[Delta]:
        if step.logprobs and not self.logs:
            self.logs = [each.logprob for each in step.logprobs[0].top_logprobs]
        return []

    def end(self) -> list[Delta]:
        return []
