"""Families that are not in the table: from a TOML file, or from the operator's own module."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import msgspec

from antiphon.adapters.formats.chat_template.argument_styles import STYLES
from antiphon.adapters.formats.chat_template.families.family import Family
from antiphon.adapters.formats.chat_template.payloads import READERS
from antiphon.domain.errors import SettingsError


def read_family(file: Path) -> Family:
    """Return the family that a TOML file describes; its keys are the fields of `Family`.

    Raises: SettingsError that names the file and the field.
    """
    try:
        family = msgspec.toml.decode(file.read_bytes(), type=Family)
    except OSError as error:
        raise SettingsError(f"The format {str(file)!r} cannot be read: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"The format {str(file)!r} is not valid: {error}") from error
    return check_family(family, name=str(file))


def check_family(family: object, *, name: str) -> Family:
    """Return the family if the parser can use it. Raises: SettingsError with the first fault."""
    if not isinstance(family, Family):
        raise SettingsError(f"The format {name!r} is no Family but a {type(family).__name__}.")
    fault = next(_faults(family), None)
    if fault:
        raise SettingsError(f"The format {name!r} is not valid: {fault}.")
    return family


def markers_of_family(family: Family) -> list[str]:
    """Return all markers between which the parser splits a text."""
    pairs = [*family.think_markers, *(family.refusal or ()), *(family.text or ())]
    pairs += family.citations or ()
    header = [family.header.strip()] if family.header else []
    return [*pairs, *header, *family.calls, *family.hidden_markers, *family.end_markers]


def _has_header(family: Family, marker: str) -> bool:
    """Whether a marker is a whole header: it is found before what stands inside it."""
    return bool(family.header) and marker.startswith(str(family.header).strip())


def _faults(family: Family) -> Iterator[str]:
    markers = markers_of_family(family)
    if not all(markers):
        yield "a marker is empty"
    for inner, outer in permutations(dict.fromkeys(markers), 2):
        if outer.find(inner) > 0 and not _has_header(family, outer):
            yield f"the marker {inner!r} stands inside {outer!r}"
    if family.more_thinks and family.think is None:
        yield "`more_thinks` is set, but `think` is not"
    if any(len(character) != 1 for character in family.bare_calls):
        yield "a key of `bare_calls` is not one character"
    for region in (*family.calls.values(), *family.bare_calls.values()):
        if isinstance(region.reader, str) and region.reader not in READERS:
            yield f"there is no reader {region.reader!r}; choose one of {', '.join(READERS)}"
        elif not isinstance(region.reader, str) and not callable(region.reader):
            yield "a `reader` is neither a name nor a function"
    if (form := family.call_form) is not None:
        if "{name}" not in form.begin:
            yield "`call_form.begin` does not contain {name}"
        if isinstance(form.arguments, str) and form.arguments not in STYLES:
            styles = ", ".join(STYLES)
            yield f"there is no style of arguments {form.arguments!r}; choose one of {styles}"
        if form.trigger and not f"{form.open}{form.begin}".startswith(form.trigger):
            yield "a call does not start with `call_form.trigger`"
