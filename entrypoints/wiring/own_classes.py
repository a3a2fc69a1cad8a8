"""Import and instantiate the operator's own classes, `package.module:Class`."""

from __future__ import annotations

import difflib
import importlib
import inspect
import logging
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from traceback import extract_tb
from typing import Any, NamedTuple, get_type_hints

import msgspec
from msgspec import Struct
from msgspec import inspect as mi
from msgspec.structs import fields

from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.settings.invalid_values import in_words

logger = logging.getLogger("antiphon.own_classes")
SHORTEST_SECRET = 4
"""Shorter texts are in many messages by chance."""


class Section(NamedTuple):
    """A table of settings of ours, such as `[web]`, that a class may read."""

    name: str
    settings: Struct


def load_instance(
    path: str,
    *,
    what: str,
    options: Mapping[str, Any] | None = None,
    section: Section | None = None,
    **arguments: Any,
) -> Any:
    """Return an instance of the class that `package.module:Class` names.

    It is constructed with the `arguments`, and the settings of the `section`, that its constructor
    has parameters for. A setting of the section that has no parameter must have its default.

    If the constructor has a parameter `options`, whose annotation is a type that msgspec can
    decode, usually a Struct, it also gets the `options` of the settings file, decoded and checked.
    `options` of a class without that parameter are an error.

    Raises: SettingsError, as `load_value`; it names all methods that a class with a port as base
    lacks, or an option that the class does not accept, and shows no value of an option.
    """
    own_class = load_value(path, what=what)
    if missing := getattr(own_class, "__abstractmethods__", ()):
        raise SettingsError(
            f"{what} {path!r} is incomplete: it has no {', '.join(sorted(missing))}."
        )
    secrets = tuple(_texts_of(options))
    with _as_settings_error(f"{what} {path!r} cannot be constructed", secrets):
        parameters = inspect.signature(own_class).parameters
        known = {name: value for name, value in arguments.items() if name in parameters}
        if section is not None:
            known |= _known_settings(section, parameters)
        parameter = parameters.get("options")
        if parameter is None and options:
            raise SettingsError(
                f"it has no options, but the settings have {', '.join(map(repr, options))}."
            )
        if parameter is not None and (options or parameter.default is parameter.empty):
            known["options"] = convert_options(options or {}, _options_type(own_class))
        return own_class(**known)


def check_port(own: object, port: type, *, what: str) -> None:
    """Check an instance whose class may not have the port as base.

    Raises: SettingsError, which names all methods and properties of the port that it lacks, or the
    first method that does not take the port's arguments.
    """
    members = {
        name: member
        for name in dir(port)
        if not name.startswith("_")
        and (callable(member := getattr(port, name)) or isinstance(member, property))
    }
    if missing := [name for name in members if not _has(own, name)]:
        raise SettingsError(
            f"{what} does not implement {port.__name__}: it has no {', '.join(missing)}."
        )
    for name, promised in members.items():
        if callable(promised) and (refusal := _refusal(getattr(own, name), promised)):
            raise SettingsError(
                f"{what} does not implement {port.__name__}: {name}() has {refusal}."
            )


def _has(own: object, name: str) -> bool:
    """Return whether it has the member. A property is not read: `start` may have to come first."""
    try:
        inspect.getattr_static(own, name)
    except AttributeError:
        return hasattr(own, name)  # from `__getattr__`
    return True


def _refusal(method: Callable[..., Any], promised: Callable[..., Any]) -> str:
    """Return how the method differs if it does not take the promised arguments, or else ""."""
    _self, *parameters = inspect.signature(promised).parameters.values()
    by_name = {each.name for each in parameters if each.kind is each.KEYWORD_ONLY}
    places = [each for each in parameters if each.name not in by_name]
    try:
        inspect.signature(method).bind(*places, **dict.fromkeys(by_name))
    except TypeError as error:
        return f"other parameters: {error}"
    return ""


def convert_options(options: Mapping[str, Any], kind: Any) -> Any:
    """Return the options as an instance of `kind`.

    Raises: SettingsError, which names the option and no value: it may be secret. An option that the
    type does not have is an error, even if the type would ignore it.
    """
    names = _fields_of(mi.type_info(kind))
    for option in options:
        if names is not None and option not in names:
            raise SettingsError(_unknown(option, names))
    try:
        return msgspec.convert(dict(options), kind, dec_hook=_to_path)
    except msgspec.ValidationError as error:
        reason = _SHOWN_VALUE.sub("Invalid value", in_words(error, kind))
        raise SettingsError(f"{reason}.") from None


# What msgspec says of a value that is none of several shows that value, and no other message does.
_SHOWN_VALUE = re.compile(r"\AInvalid (enum )?value .*?(?=( - at `[^`]*`)?\Z)", re.DOTALL)


def _fields_of(kind: mi.Type) -> Sequence[str] | None:
    """Return the names of a type's fields, or None for a type that can have any."""
    if isinstance(kind, mi.UnionType):
        kinds = [each for each in kind.types if not isinstance(each, mi.NoneType)]
        kind = kinds[0] if len(kinds) == 1 else kind
    fields_of_kind = getattr(kind, "fields", None)
    return None if fields_of_kind is None else [field.encode_name for field in fields_of_kind]


def _unknown(option: str, names: Sequence[str]) -> str:
    """Return what msgspec says of an unknown field, with advice."""
    if matches := difflib.get_close_matches(option, names, n=1):
        advice = f"did you mean `{matches[0]}`?"
    else:
        advice = f"it can have {', '.join(f'`{name}`' for name in names) or 'none'}."
    return f"Object contains unknown field `{option}`; {advice}"


def _known_settings(section: Section, parameters: Collection[str]) -> dict[str, Any]:
    known = {}
    for field in fields(section.settings):
        value = getattr(section.settings, field.name)
        if field.name in parameters:
            known[field.name] = value
        elif value != field.default:
            raise SettingsError(
                f"{section.name}.{field.name} is set, but its constructor has no parameter "
                f"{field.name!r}."
            )
    return known


def _texts_of(options: Any) -> Iterator[str]:
    """Yield the texts in the options that a message must not repeat."""
    if isinstance(options, str) and len(options) >= SHORTEST_SECRET:
        yield options
    elif isinstance(options, Mapping):
        for value in options.values():
            yield from _texts_of(value)
    elif isinstance(options, list):
        for value in options:
            yield from _texts_of(value)


def _options_type(own_class: Any) -> Any:
    is_class = isinstance(own_class, type)
    constructor = inspect.getattr_static(own_class, "__init__") if is_class else own_class
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
def _as_settings_error(failure: str, secrets: Iterable[str] = ()) -> Iterator[None]:
    try:
        yield
    except SettingsError as error:
        raise SettingsError(f"{failure}: {error}") from error
    except Exception as error:  # the operator's code can raise anything
        message = reduce(lambda text, secret: text.replace(secret, "***"), secrets, str(error))
        if message == str(error):
            logger.debug("%s", failure, exc_info=error)
        raise SettingsError(
            f"{failure}: {type(error).__name__}: {message.rstrip('.')}{_location(error)}."
        ) from error


def _location(error: Exception) -> str:
    """Return the file and line where the operator's code failed, or "" if it did not run."""
    frames = [
        frame
        for frame in extract_tb(error.__traceback__)
        if frame.filename not in (__file__, importlib.__file__) and "<frozen" not in frame.filename
    ]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
