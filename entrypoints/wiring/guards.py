"""Build the guards that the settings choose."""

from __future__ import annotations

from antiphon.application.model.guards.ask_guards import Guards, GuardTerms, NamedGuard
from antiphon.application.ports import AuditLog, Guard
from antiphon.domain.access.limits import NO_GUARDS
from antiphon.domain.errors import SettingsError
from antiphon.domain.responses.guards import PLACES
from antiphon.entrypoints.settings import Settings
from antiphon.entrypoints.settings.options import OWN_CLASSES
from antiphon.entrypoints.wiring.own_classes import check_port, load_instance


def guards(settings: Settings, audit_log: AuditLog | None) -> Guards:
    """Return the guards, in the order in which they are asked. Raises: SettingsError."""
    named = [_guard_of(settings, entry) for entry in settings.guard]
    names = [each.name for each in named]
    for name in names:
        if names.count(name) > 1:
            raise SettingsError(f"Two guards have the name {name!r}.")
    if NO_GUARDS in names:
        raise SettingsError(f"A guard cannot have the name {NO_GUARDS!r}: it stands for no guard.")
    for name in settings.options.of("guard"):
        if name not in names:
            raise SettingsError(
                f"The table [options.guard.{name}] is for no guard of yours: `guard` names no "
                "class with that name."
            )
    terms = GuardTerms(
        window=settings.guards.window,
        check_s=settings.guards.timeout_s,
        fails_open=settings.guards.failure == "open",
    )
    return Guards(named, terms, audit_log)


def _guard_of(settings: Settings, entry: str) -> NamedGuard:
    """Return the guard that `[NAME=]package.module:Class` names."""
    name, _, path = entry.rpartition("=")
    name, what = name or path.rpartition(":")[2], OWN_CLASSES["guard"]
    guard: Guard = load_instance(path, what=what, options=settings.options.of("guard").get(name))
    check_port(guard, Guard, what=f"{what} {path!r}")
    if unknown := [place for place in guard.places if place not in PLACES]:
        raise SettingsError(
            f"{what} {path!r} has an unknown place: {unknown[0]!r}. Its places are among "
            f"{', '.join(PLACES)}."
        )
    return NamedGuard(name=name, guard=guard)
