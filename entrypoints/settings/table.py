"""The table of settings, derived from the schema: names, defaults, allowed values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from msgspec import Meta, Struct
from msgspec import inspect as mi
from msgspec.structs import fields

from antiphon.entrypoints.settings.about import GROUPS
from antiphon.entrypoints.settings.options import OwnOptions
from antiphon.entrypoints.settings.schema import Settings

PREFIX = "ANTIPHON_"


class Setting(NamedTuple):
    """One setting. `path` is its name in TOML, with a dot between table and key."""

    path: str
    type: Any
    default: str
    group: str
    text: str
    allowed: str
    is_secret: bool

    @property
    def variable(self) -> str:
        return PREFIX + self.path.upper().replace(".", "__")

    @property
    def option(self) -> str:
        return "--" + self.path.replace(".", "-").replace("_", "-")

    @property
    def is_flag(self) -> bool:
        return isinstance(_strip_metadata(mi.type_info(self.type)), mi.BoolType)

    @property
    def is_list(self) -> bool:
        return isinstance(_strip_metadata(mi.type_info(self.type)), mi.VarTupleType)

    @property
    def choices(self) -> tuple[str, ...]:
        return _choices_of(self.type)


def _settings_of(struct: type[Struct], prefix: str = "") -> Iterator[Setting]:
    hints = get_type_hints(struct, include_extras=True)
    for field in fields(struct):
        hint = hints[field.name]
        if get_origin(hint) is tuple or hint is OwnOptions:  # tables: only the file can hold them
            continue
        if get_origin(hint) is not Annotated:
            yield from _settings_of(hint, f"{prefix}{field.name}.")
            continue
        about = next(each for each in get_args(hint) if isinstance(each, Meta))
        extra = about.extra or {}
        yield Setting(
            path=prefix + field.name,
            type=hint,
            default=extra["shown_default"] or format_default(field.default),
            group=extra["group"],
            text=about.description or "",
            allowed=extra["allowed"] or describe_values(hint),
            is_secret=extra["is_secret"],
        )


def format_default(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
        case _:
            return str(value)


def _choices_of(hint: Any) -> tuple[str, ...]:
    # msgspec.inspect would sort them, and log levels have their own order.
    bare = get_args(hint)[0]
    return get_args(bare) if get_origin(bare) is Literal else ()


def _join_choices(names: tuple[str, ...]) -> str:
    return " or ".join((", ".join(names[:-1]), names[-1])) if names else ""


def _strip_metadata(kind: mi.Type) -> mi.Type:
    while isinstance(kind, mi.Metadata):
        kind = kind.type
    return kind


def describe_values(hint: Any) -> str:
    """Describe the values of an annotated type in words that follow "must be".

    >>> describe_values(Annotated[Literal["fast", "slow"], Meta()])
    'fast or slow'
    >>> describe_values(Annotated[int, Meta(ge=3)])
    'a whole number of at least 3'
    """
    return _join_choices(_choices_of(hint)) or _describe_type(mi.type_info(hint))


def _describe_type(kind: mi.Type) -> str:
    match _strip_metadata(kind):
        case mi.BoolType():
            return "true or false"
        case mi.IntType(ge=low, le=high):
            return "a whole number" + _describe_limits(low, high)
        case mi.FloatType(gt=above, ge=low, le=high):
            above_limit = f" above {above:g}" if above is not None else ""
            return "a number" + (above_limit or _describe_limits(low, high))
        case mi.DictType():
            return "a table"
        case mi.VarTupleType():
            return "a list of strings"
        case mi.UnionType(types=types):
            return next(_describe_type(each) for each in types if not isinstance(each, mi.NoneType))
        case mi.CustomType(cls=cls) if cls is Path:
            return "a path"
        case mi.StrType(min_length=length):
            return "a non-empty string" if length else "a string"
        case other:
            raise TypeError(f"no words for settings of type {other!r}")


def _describe_limits(low: float | None, high: float | None) -> str:
    if low is None:
        return ""
    return f" from {low:g} to {high:g}" if high is not None else f" of at least {low:g}"


SETTINGS: Mapping[str, Setting] = {
    each.path: each
    for each in sorted(_settings_of(Settings), key=lambda each: GROUPS.index(each.group))
}
SECTIONS = frozenset(path.rpartition(".")[0] for path in SETTINGS) - {""}
