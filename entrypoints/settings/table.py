"""The table of settings, drawn from the schema: names, defaults, what is allowed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from msgspec import Meta, Struct
from msgspec import inspect as mi
from msgspec.structs import fields

from antiphon.entrypoints.settings.schema import Settings

PREFIX = "ANTIPHON_"


class Setting(NamedTuple):
    """One leaf of the tree: `path` is its name in TOML, dots between table and key."""

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
        return isinstance(_bare(mi.type_info(self.type)), mi.BoolType)

    @property
    def is_list(self) -> bool:
        return isinstance(_bare(mi.type_info(self.type)), mi.VarTupleType)

    @property
    def choices(self) -> tuple[str, ...]:
        return _literals(self.type)


def _settings_of(struct: type[Struct], prefix: str = "") -> Iterator[Setting]:
    hints = get_type_hints(struct, include_extras=True)
    for field in fields(struct):
        hint = hints[field.name]
        if get_origin(hint) is tuple:  # tables of the file, which no option or variable can hold
            continue
        if get_origin(hint) is not Annotated:
            yield from _settings_of(hint, f"{prefix}{field.name}.")
            continue
        about = next(each for each in get_args(hint) if isinstance(each, Meta))
        extra = about.extra or {}
        yield Setting(
            path=prefix + field.name,
            type=hint,
            default=extra["shown_default"] or _shown(field.default),
            group=extra["group"],
            text=about.description or "",
            allowed=extra["allowed"] or _one_of(_literals(hint)) or _allowed(mi.type_info(hint)),
            is_secret=extra["is_secret"],
        )


def _shown(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
        case _:
            return str(value)


def _literals(hint: Any) -> tuple[str, ...]:
    # Not from msgspec.inspect, which sorts them: log levels have an order of their own.
    bare = get_args(hint)[0]
    return get_args(bare) if get_origin(bare) is Literal else ()


def _one_of(names: tuple[str, ...]) -> str:
    return " or ".join((", ".join(names[:-1]), names[-1])) if names else ""


def _bare(kind: mi.Type) -> mi.Type:
    while isinstance(kind, mi.Metadata):
        kind = kind.type
    return kind


def _allowed(kind: mi.Type) -> str:
    """Say what a value of this type may be, to stand after "must be"."""
    match _bare(kind):
        case mi.BoolType():
            return "true or false"
        case mi.IntType(ge=low, le=high):
            return "a whole number" + _limits(low, high)
        case mi.FloatType(gt=above, ge=low, le=high):
            return "a number" + (f" above {above:g}" if above is not None else _limits(low, high))
        case mi.VarTupleType():
            return "a list of texts"
        case mi.UnionType(types=types):
            return next(_allowed(each) for each in types if not isinstance(each, mi.NoneType))
        case mi.CustomType(cls=cls) if cls is Path:
            return "a path"
        case mi.StrType(min_length=length):
            return "a text that is not empty" if length else "a text"
        case other:
            raise TypeError(f"no words for settings of type {other!r}")


def _limits(low: float | None, high: float | None) -> str:
    if low is None:
        return ""
    return f" from {low:g} to {high:g}" if high is not None else f" of at least {low:g}"


SETTINGS: Mapping[str, Setting] = {each.path: each for each in _settings_of(Settings)}
SECTIONS = frozenset(path.rpartition(".")[0] for path in SETTINGS) - {""}
