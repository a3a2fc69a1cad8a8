"""Refuse settings that cannot work behind Serve, or would not protect what they should."""

from __future__ import annotations

from msgspec.structs import fields

from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.settings import Settings

TRANSPORT = (
    "tls_cert",
    "tls_key",
    "max_connections",
    "max_connections_per_address",
    "write_stall_s",
    "drain_delay_s",
)
"""Settings of connections, which Serve's proxy accepts."""


def check_settings(settings: Settings) -> None:
    """Raises: SettingsError."""
    for field in fields(settings):
        if field.name in TRANSPORT and getattr(settings, field.name) != field.default:
            raise SettingsError(
                f"{field.name} has no effect on Ray Serve, whose proxy accepts the connections: "
                "remove it, and set up the proxy or what stands before it."
            )
    if settings.store == "memory":
        raise SettingsError(
            "The store memory is of one process, and the replicas of Ray Serve must share theirs: "
            "set store to postgresql://… or redis://…"
        )
    if not settings.data_dir.is_absolute():
        raise SettingsError(
            f"data_dir must be an absolute path on Ray Serve, not {str(settings.data_dir)!r}: "
            "replicas start in folders of Ray, which do not last."
        )
    if settings.trusted_proxy.addresses and settings.trusted_proxy.secret is None:
        raise SettingsError(
            "trusted_proxy.addresses needs trusted_proxy.secret on Ray Serve: its proxies believe "
            "X-Forwarded-For, so a client could claim the address of your proxy."
        )


def check_nodes(settings: Settings) -> None:
    """Raises: SettingsError if the store is a file, and the cluster has several machines."""
    import ray

    if settings.sqlite_file is None or not ray.is_initialized():
        return
    nodes = sum(bool(node["Alive"]) for node in ray.nodes())
    if nodes > 1:
        raise SettingsError(
            f"The store {settings.shown_store} is a file of one machine, and this Ray cluster has "
            f"{nodes}: set store to postgresql://… or redis://…"
        )
