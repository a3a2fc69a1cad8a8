"""Import and instantiate the operator's own classes, `package.module:Class`."""

from __future__ import annotations

import importlib
import inspect
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from traceback import extract_tb
from typing import Any, get_type_hints

import msgspec

from antiphon.domain.errors import SettingsError

logger = logging.getLogger("antiphon.own_classes")


def load_instance(
    path: str, *, what: str, options: Mapping[str, Any] | None = None, **arguments: Any
) -> Any:
    """Return an instance of the class that `package.module:Class` names.

    It is constructed with the `arguments` that its constructor has parameters for. If it has a
    parameter `options`, whose annotation is a type that msgspec can decode, usually a Struct, it
    also gets the `options` of the settings file, decoded and checked. `options` of a class without
    that parameter are an error.

    Raises: SettingsError, as `load_value`; it names an option that the class does not accept.
    """
    own_class = load_value(path, what=what)
    with _as_settings_error(f"{what} {path!r} cannot be constructed"):
        parameters = inspect.signature(own_class).parameters
        known = {name: value for name, value in arguments.items() if name in parameters}
        if "options" in parameters:
            known["options"] = convert_options(options or {}, _options_type(own_class))
        elif options:
            raise SettingsError(
                f"it has no options, but the settings have {', '.join(map(repr, options))}."
            )
        return own_class(**known)


def convert_options(options: Mapping[str, Any], kind: Any) -> Any:
    """Return the options as an instance of `kind`.

    Raises: SettingsError, which names the option and no value: it may be secret.
    """
    try:
        return msgspec.convert(dict(options), kind, dec_hook=_to_path)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{error}.") from None


def _options_type(own_class: Any) -> Any:
    constructor = inspect.getattr_static(own_class, "__init__", own_class)
    return get_type_hints(constructor, include_extras=True).get("options", dict[str, Any])


def _to_path(kind: type, value: Any) -> Any:
    if kind is Path and isinstance(value, str) and value:
        return Path(value).expanduser()
    raise ValueError(f"not a {kind.__name__}")


def load_value(path: str, *, what: str) -> Any:
    """Return the value that `package.module:NAME` names.

    The working folder is searched first, then the installed packages. Raises: SettingsError, one
    sentence that starts with `what`, for example "The store", and names the value and the error.
    """
    module_name, _, name = path.partition(":")
    with _working_folder_first(), _as_settings_error(f"{what} {path!r} cannot be loaded"):
        return getattr(importlib.import_module(module_name), name)


@contextmanager
def _working_folder_first() -> Iterator[None]:
    """Search the working folder first for modules inside the block, and last after it.

    First, so that an installed package named `tools` does not hide the operator's module. Last, so
    that the operator's files do not hide packages that the server imports later.
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
def _as_settings_error(failure: str) -> Iterator[None]:
    try:
        yield
    except SettingsError as error:
        raise SettingsError(f"{failure}: {error}") from error
    except Exception as error:  # the operator's code can raise anything
        logger.debug("%s", failure, exc_info=error)
        raise SettingsError(
            f"{failure}: {type(error).__name__}: {str(error).rstrip('.')}{_location(error)}."
        ) from error


def _location(error: Exception) -> str:
    """Return the file and line where the operator's code failed, or "" if it did not run."""
    frames = [
        frame
        for frame in extract_tb(error.__traceback__)
        if frame.filename not in (__file__, importlib.__file__) and "<frozen" not in frame.filename
    ]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
