"""The default names of a model."""

from __future__ import annotations

from pathlib import Path


def names_of(model: str) -> tuple[str, ...]:
    """Return the default names of a model: its folder's name, and `model` itself.

    If `model` is not a folder, it is the name of a model that the engine downloads.

    >>> names_of("Qwen/Qwen3-8B")
    ('Qwen/Qwen3-8B',)
    """
    folder = Path(model)
    if not folder.is_dir():
        return (model,)
    name = folder.resolve().name
    return (name, model) if name and name != model else (model,)
