"""By which names clients know a model that was not given any."""

from __future__ import annotations

from pathlib import Path


def names_of(model: str) -> tuple[str, ...]:
    """Return the names of a model: its folder's name and the path as it was given.

    What is no folder here is a name already, of a model that the engine fetches.

    >>> names_of("Qwen/Qwen3-8B")
    ('Qwen/Qwen3-8B',)
    """
    folder = Path(model)
    if not folder.is_dir():
        return (model,)
    name = folder.resolve().name
    return (name, model) if name and name != model else (model,)
