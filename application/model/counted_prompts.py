"""Prompts that were counted before their turns start, so that none is rendered twice."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import ref

from antiphon.application.ports import Prompt, Turn


class CountedPrompts:
    """The prompts of counted turns. Each is kept as long as its turn, and taken once.

    A refused turn is dropped by its request, and its prompt with it. So this holds no memory.
    """

    def __init__(self) -> None:
        self._prompts: dict[int, tuple[ref[Turn], Prompt]] = {}
        """By the id of the turn, since turns have no hash."""

    def __len__(self) -> int:
        return len(self._prompts)

    def keep(self, turn: Turn, prompt: Prompt) -> None:
        key = id(turn)
        forget: Callable[[Any], None] = partial(self._forget, key)
        self._prompts[key] = ref(turn, forget), prompt

    def take(self, turn: Turn) -> Prompt | None:
        """Return the prompt of this very turn, if it was counted."""
        counted = self._prompts.pop(id(turn), None)
        return counted[1] if counted is not None and counted[0]() is turn else None

    def _forget(self, key: int, _turn: object) -> None:
        self._prompts.pop(key, None)
