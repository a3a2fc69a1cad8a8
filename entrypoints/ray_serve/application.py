"""The Serve application: one deployment, whose replicas all get the settings that are read here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta, Struct

from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.ray_serve.checks import check_nodes, check_settings
from antiphon.entrypoints.ray_serve.scaling import POLICY
from antiphon.entrypoints.settings import SETTINGS, Settings, find_file, load

if TYPE_CHECKING:
    from ray.serve import Application

NAME = "Antiphon"
SETTINGS_FILE = "settings_file"
ANY_ADDRESS = "0.0.0.0"
MAX_ONGOING_REQUESTS = 10_000
"""Open requests of one replica. Admission, quotas and limits decide earlier; Serve's default, 5, is
for models that run inside a replica."""

HEALTH_CHECK_S = 10.0
FAILED_CHECKS = 3
"""Health checks in a row after which Serve replaces a replica."""
MIN_DRAINING_S = 30.0
"""What Serve itself waits behind HAProxy, before it looks whether a replica is idle."""
CLOSING_S = 10.0
"""Seconds to cancel what still runs, and to close stores and models."""


class Replicas(Struct, frozen=True, kw_only=True):
    """How many replicas there are. `max_replicas` is `min_replicas` unless it is set."""

    min_replicas: Annotated[int, Meta(ge=1)] = 1
    max_replicas: Annotated[int, Meta(ge=1)] | None = None
    target_ongoing_requests: Annotated[float, Meta(gt=0)] = 32.0

    def autoscaling(self) -> dict[str, Any]:
        """Return the configuration of Serve's autoscaling. Raises: SettingsError."""
        most = self.min_replicas if self.max_replicas is None else self.max_replicas
        if most < self.min_replicas:
            raise SettingsError(f"max_replicas is {most}, less than min_replicas.")
        return {
            "min_replicas": self.min_replicas,
            "max_replicas": most,
            "target_ongoing_requests": self.target_ongoing_requests,
            "policy": {"policy_function": POLICY},
        }


def build(args: dict[str, Any]) -> Application:
    """Return the application. Raises: SettingsError.

    `args` are settings, named as in a settings file, and besides `settings_file`, `min_replicas`,
    `max_replicas` and `target_ongoing_requests`.
    """
    names = Replicas.__struct_fields__
    replicas = read_replicas({name: args[name] for name in names if name in args})
    options = {name: value for name, value in args.items() if name not in names}
    settings = load_settings(options, os.environ)
    check_nodes(settings)

    # Imported late: only replicas need the server, and Serve's controller imports this package.
    from ray import serve

    from antiphon.entrypoints.ray_serve.replica import Replica

    deployment = serve.deployment(
        serve.ingress()(Replica),
        name=NAME,
        autoscaling_config=replicas.autoscaling(),
        max_ongoing_requests=MAX_ONGOING_REQUESTS,
        # An outage of the store that runs survive must not end them.
        health_check_period_s=max(HEALTH_CHECK_S, settings.store_retry_s / (FAILED_CHECKS - 1)),
        graceful_shutdown_timeout_s=max(settings.graceful_shutdown_s, MIN_DRAINING_S) + CLOSING_S,
        graceful_shutdown_wait_loop_s=1.0,
        logging_config={"enable_access_log": False},  # each request has a line of ours
    )
    return deployment.bind(settings)


def load_settings(args: Mapping[str, Any], environ: Mapping[str, str]) -> Settings:
    """Return the checked settings: those of the file, the environment and `args`.

    Raises: SettingsError, also for settings that cannot work behind Serve.
    """
    options = dict(args)
    path = options.pop(SETTINGS_FILE, None)
    unknown = sorted(options.keys() - SETTINGS.keys())
    if unknown:
        raise SettingsError(
            f"{unknown[0]!r} is not a setting; `antiphon serve --help-all` lists them all."
        )
    file = find_file(None if path is None else Path(path), environ)
    # With this host, `auth` asks for keys unless it is off.
    settings = load(file, environ, {**options, "host": ANY_ADDRESS})
    check_settings(settings)
    return settings


def read_replicas(args: Mapping[str, Any]) -> Replicas:
    """Return the numbers of replicas. Raises: SettingsError."""
    try:
        return msgspec.convert(args, Replicas, strict=False)
    except msgspec.ValidationError as error:
        raise SettingsError(f"The number of replicas is invalid: {error}.") from None
