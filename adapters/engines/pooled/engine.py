"""The part of the engine port that all engines on a pool have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from antiphon.adapters.engines.pooled.pool import Pool
from antiphon.application.ports import Engine
from antiphon.domain.errors import EngineDead


class PooledEngine(Engine):
    """Serves the model of a pool under `names`; `_folder` has its tokenizer, once it is known."""

    def __init__(self, names: Sequence[str], pool: Pool) -> None:
        self._names = tuple(names)
        self._pool = pool
        self._folder: Path | None = None
        self._context_length = 0

    @property
    def models(self) -> Sequence[str]:
        return self._names

    @property
    def context_length(self) -> int:
        """The shortest context of all servers, also while none is there: a run may get any.

        Raises: EngineDead before the first start.
        """
        profiles = self._pool.profiles
        if profiles:
            self._context_length = min(each.context_length for each in profiles)
        if not self._context_length:
            raise EngineDead("No model server is available.")
        return self._context_length

    @property
    def model_folder(self) -> Path | None:
        return self._folder

    @property
    def health(self) -> Mapping[str, bool]:
        """Whether each server takes runs, by its URL; for the operator."""
        return self._pool.health

    @property
    def resumes(self) -> bool:
        return True
