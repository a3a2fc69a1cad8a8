"""The default names of a model."""

from __future__ import annotations

from pathlib import Path


def names_of(model: str) -> tuple[str, ...]:
    """Return the default names of a model: its folder's or file's name, and `model` itself.

    If `model` is neither, it is the name of a model that the engine downloads.

    >>> names_of("Qwen/Qwen3-8B"), names_of("models/Qwen3-8B-Q4_K_M.gguf")
    (('Qwen/Qwen3-8B',), ('Qwen3-8B-Q4_K_M', 'models/Qwen3-8B-Q4_K_M.gguf'))
    """
    place = Path(model)
    if place.suffix.lower() == ".gguf":
        return (place.stem, model)
    if not place.is_dir():
        return (model,)
    name = place.resolve().name
    return (name, model) if name and name != model else (model,)
