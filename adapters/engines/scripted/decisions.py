"""Invented answers to decisions (docs/reference/scripts.md): they follow from words alone.

An answer is as likely as one more than the number of its words in the conversation before the
question, without system messages, which formats write of their own. So `true` in an input makes a
predicate likelier, and a choice whose name or description the input repeats is chosen.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from math import log

from antiphon.adapters.engines.scripted.markup import Markup
from antiphon.adapters.engines.scripted.segments import Segment
from antiphon.application.ports import EngineRequest
from antiphon.domain.content import Logprob, TopLogprob

_find_words = re.compile(r"\w+").findall
_find_options = re.compile(r"^([A-Z]{1,2}): (.*)$", re.MULTILINE).findall


def weigh(request: EngineRequest, markup: Markup) -> Segment:
    """Return the only token of a run with `answer_tokens`, with the log probabilities of all."""
    tokens = request.sampling.answer_tokens
    labels = [markup.text([token]) for token in tokens]
    messages = markup.read(request.prompt.token_ids)
    asked = max((place for place, (role, _) in enumerate(messages) if role == "user"), default=-1)
    question = messages[asked][1] if messages else ""
    before = [text for role, text in messages[:asked] if role != "system"]
    chances = _chances(labels, question, before)
    best = max(range(len(tokens)), key=chances.__getitem__)
    tops = [
        TopLogprob(token=label, logprob=log(chance), bytes=tuple(label.encode()))
        for label, chance in zip(labels, chances, strict=True)
    ]
    chosen = tops[best]
    logprob = Logprob(
        token=chosen.token, logprob=chosen.logprob, bytes=chosen.bytes, top_logprobs=tuple(tops)
    )
    return Segment(tokens=[(tokens[best], labels[best])], logprobs=(logprob,))


def _chances(labels: Sequence[str], question: str, before: Sequence[str]) -> Sequence[float]:
    """Return how likely each label is, all together 1.

    >>> _chances("AB", "Is it so?\\n\\nA: true\\nB: false", ["True, true!"])
    [0.75, 0.25]
    """
    counts = Counter(word for text in before for word in _find_words(text.casefold()))
    options = dict(_find_options(question))
    words = [set(_find_words(options.get(label, "").casefold())) for label in labels]
    weights = [1 + sum(counts[word] for word in each) for each in words]
    return [weight / sum(weights) for weight in weights]
