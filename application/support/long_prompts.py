"""Prompts that are so long that they are shortened: how long that is, unless a request says it."""

from __future__ import annotations

from antiphon.application.ports import Model, Turn
from antiphon.domain.errors import CONTEXT_EXCEEDED, RequestError

DEFAULT_SHARE = 0.8
"""The fraction of the context length from which on a prompt is shortened by default."""


def default_limit(model: Model) -> int:
    """Return the number of tokens above which a prompt is shortened by default."""
    return int(model.context_length * DEFAULT_SHARE)


async def count_or_none(model: Model, turn: Turn) -> int | None:
    """Return the tokens of the turn's prompt, None if they are too many even to be counted.

    Raises: RequestError.
    """
    try:
        return await model.count(turn)
    except RequestError as error:
        if error.code != CONTEXT_EXCEEDED:
            raise
        return None
