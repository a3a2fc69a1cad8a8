"""Build the guards that the settings choose."""

from __future__ import annotations

from collections.abc import Callable

from antiphon.adapters.upstreams.moderations_api import (
    MAX_BYTES,
    ModerationGuard,
    ModerationTerms,
)
from antiphon.application.model.guards.ask_guards import Guards, GuardTerms, NamedGuard
from antiphon.application.model.guards.model_guard import ModelGuard, StatementTerms
from antiphon.application.model.models import Models
from antiphon.application.ports import AuditLog, Guard, Moderator
from antiphon.domain.access.limits import NO_GUARDS
from antiphon.domain.errors import FetchRefused, SettingsError
from antiphon.domain.responses.guards import PLACES
from antiphon.entrypoints.settings import Settings
from antiphon.entrypoints.settings.options import OWN_CLASSES
from antiphon.entrypoints.wiring.fetching import egress, http_fetcher
from antiphon.entrypoints.wiring.own_classes import check_port, load_instance
from antiphon.entrypoints.wiring.webhooks import operator_policy


def guards(settings: Settings, audit_log: AuditLog | None, models: Callable[[], Models]) -> Guards:
    """Return the guards, in the order in which they are asked. Raises: SettingsError."""
    moderator = _moderator(settings)
    named = [_guard_of(settings, models, moderator, entry) for entry in settings.guard]
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
    return Guards(named, terms, audit_log, moderator)


def _guard_of(
    settings: Settings, models: Callable[[], Models], moderator: Moderator | None, entry: str
) -> NamedGuard:
    """Return the guard of an entry of the setting `guard`."""
    name, _, kind = entry.rpartition("=")
    if kind == "moderation":
        if moderator is None:
            raise SettingsError("The guard moderation needs moderation.url.")
        return NamedGuard(name=name or kind, guard=moderator)
    if kind == "model":
        return NamedGuard(name=name or kind, guard=_model(settings, models))
    name, what = name or kind.rpartition(":")[2], OWN_CLASSES["guard"]
    guard: Guard = load_instance(kind, what=what, options=settings.options.of("guard").get(name))
    check_port(guard, Guard, what=f"{what} {kind!r}")
    if unknown := [place for place in guard.places if place not in PLACES]:
        raise SettingsError(
            f"{what} {kind!r} has an unknown place: {unknown[0]!r}. Its places are among "
            f"{', '.join(PLACES)}."
        )
    return NamedGuard(name=name, guard=guard)


def _moderator(settings: Settings) -> Moderator | None:
    server = settings.moderation
    if server.url is None:
        return None
    try:
        policy = operator_policy([server.url])
    except FetchRefused as error:
        raise SettingsError(
            f"The moderations API at moderation.url cannot be used: {error}"
        ) from None
    fetcher = http_fetcher(
        policy,
        max_bytes=MAX_BYTES,
        timeout_s=settings.guards.timeout_s,
        max_redirects=0,
        reads=("POST",),
        egress=egress(settings),
    )
    pairs = (each.partition("=") for each in server.threshold)
    terms = ModerationTerms(
        places=server.place,
        thresholds={category: float(score) for category, _, score in pairs},
        stops=server.verdict == "stop",
    )
    return ModerationGuard(server.url, fetcher, terms, model=server.model, api_key=server.api_key)


def _model(settings: Settings, models: Callable[[], Models]) -> Guard:
    guards = settings.guards
    if guards.model is None:
        raise SettingsError("The guard model needs guards.model.")
    if guards.model not in (known := models().by_name):
        raise SettingsError(
            f"guards.model names {guards.model!r}, but this server's models are {', '.join(known)}."
        )
    terms = StatementTerms(
        places=guards.place,
        statement=guards.statement,
        threshold=guards.threshold,
        stops=guards.verdict == "stop",
    )
    return ModelGuard(models, guards.model, terms)
