"""Classes of the operator's own, `package.module:Class`: imported, and an instance made of each."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import extract_tb
from typing import Any

from antiphon.domain.errors import SettingsError

logger = logging.getLogger("antiphon.own_classes")


def instance_of(path: str, *, what: str) -> Any:
    """Return an instance of the class that `package.module:Class` names.

    The working folder is searched too, before the installed packages. Raises: SettingsError, one
    sentence that names the class and what went wrong; `what` begins it, "The store" for example.
    """
    module_name, _, class_name = path.partition(":")
    with _working_folder_first(), _told_as(f"{what} {path!r} cannot be loaded"):
        named = getattr(importlib.import_module(module_name), class_name)
    with _told_as(f"{what} {path!r} cannot be constructed"):
        return named()


@contextmanager
def _working_folder_first() -> Iterator[None]:
    """Find modules in the working folder: before all others while the block lasts, so that an
    installed package named `tools` is not taken for the operator's; after them from then on, so
    that a file of theirs hides no package that this server still imports.
    """
    folder = str(Path.cwd())
    was_there = folder in sys.path
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(folder)
        if not was_there:
            sys.path.append(folder)


@contextmanager
def _told_as(failure: str) -> Iterator[None]:
    try:
        yield
    except SettingsError as error:
        raise SettingsError(f"{failure}: {error}") from error
    except Exception as error:  # it is their code: anything can be raised
        logger.debug("%s", failure, exc_info=error)
        raise SettingsError(
            f"{failure}: {type(error).__name__}: {str(error).rstrip('.')}{_place(error)}."
        ) from error


def _place(error: Exception) -> str:
    """Return where the operator's code failed, or "" where it was not reached."""
    frames = [
        frame
        for frame in extract_tb(error.__traceback__)
        if frame.filename not in (__file__, importlib.__file__) and "<frozen" not in frame.filename
    ]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
