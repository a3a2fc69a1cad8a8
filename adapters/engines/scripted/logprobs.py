"""Invented log probabilities: deterministic for each token, and consistent with each other."""

from __future__ import annotations

from itertools import islice
from math import log

from antiphon.domain.content import Logprob, TopLogprob

_OTHERS = tuple(
    (word, tuple(word.encode()))
    for word in (
        *(" the", " of", " and", " to", " a", " in", " is", " that", " it", " for", " on"),
        *(" as", " with", " was", " be", " by", " at", " or", " this", " from", " an"),
    )
)
"""One more than a request can ask for, since the sampled token may be one of them."""


def logprob(token_id: int, text: str, alternatives: int) -> Logprob:
    """Return the sampled token's log probability, and the alternatives with that token first.

    It is always the likeliest. Probabilities add up to less than 1: each alternative takes half of
    the remaining probability.

    >>> logprob(7, " of", 2).logprob == logprob(7, " of", 0).logprob < 0
    True
    >>> [top.token for top in logprob(7, " of", 3).top_logprobs]
    [' of', ' the', ' and']
    """
    chance = 0.5 + (token_id * 2654435761 % 4096) / 8400
    own = TopLogprob(token=text, logprob=log(chance), bytes=tuple(text.encode()))
    others = ((word, octets) for word, octets in _OTHERS if word != text)
    top = (
        own,
        *(
            TopLogprob(token=word, logprob=log((1 - chance) / 2**rank), bytes=octets)
            for rank, (word, octets) in enumerate(islice(others, max(0, alternatives - 1)), start=1)
        ),
    )
    return Logprob(
        token=text, logprob=own.logprob, bytes=own.bytes, top_logprobs=top[:alternatives]
    )
