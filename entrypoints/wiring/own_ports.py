"""Build an adapter of the operator's own, which a setting names as `package.module:Class`."""

from __future__ import annotations

from typing import Any

from antiphon.entrypoints.settings import Settings
from antiphon.entrypoints.settings.options import OWN_CLASSES
from antiphon.entrypoints.wiring.own_classes import Section, check_port, load_instance


def load_port(settings: Settings, setting: str, port: type, **arguments: Any) -> Any:
    """Return an instance of the class that the setting names, with its `[options.SETTING]`.

    The arguments are those of `load_own`. Raises: SettingsError, also for a class that lacks a
    method of the port.
    """
    own = load_own(settings, setting, **arguments)
    check_port(own, port, what=f"{OWN_CLASSES[setting]} {str(getattr(settings, setting))!r}")
    return own


def load_own(
    settings: Settings, setting: str, *, section: Section | None = None, **arguments: Any
) -> Any:
    """Return the instance, whatever it is. Its constructor takes of the arguments what it needs."""
    return load_instance(
        str(getattr(settings, setting)),
        what=OWN_CLASSES[setting],
        options=settings.options.of(setting),
        section=section,
        **arguments,
    )
