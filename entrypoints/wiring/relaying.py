"""Build what lets the servers of a store relay requests to each other."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from msgspec import Struct

from antiphon.adapters.sealing import Sealer
from antiphon.application.ports import SharedValues
from antiphon.application.resources.server_addresses import ServerAddresses, server_tag
from antiphon.application.runs.active_runs import ActiveRuns
from antiphon.entrypoints.http.relayed_requests import Vouchers
from antiphon.entrypoints.http.responses import Relay
from antiphon.entrypoints.settings import Settings

if TYPE_CHECKING:
    from antiphon.entrypoints.http.server_client import ServerClient


class Relaying(Struct, frozen=True, kw_only=True):
    """What this server relays with; all is None if it has no address for the others."""

    tag: str
    addresses: ServerAddresses | None = None
    vouchers: Vouchers | None = None
    client: ServerClient | None = None


def relaying(settings: Settings, owner: str, store: SharedValues, sealer: Sealer) -> Relaying:
    """Return what the server called `owner` relays with. It announces nothing yet."""
    tag = server_tag(owner)
    if settings.advertise_url is None:
        return Relaying(tag=tag)
    from antiphon.entrypoints.http.server_client import ServerClient  # with its HTTP client

    addresses = ServerAddresses(store, tag=tag, url=settings.advertise_url, now=time.time)
    vouchers = Vouchers(sealer.sign, tag)
    return Relaying(
        tag=tag,
        addresses=addresses,
        vouchers=vouchers,
        client=ServerClient(addresses, vouchers),
    )


def relay_of(relaying: Relaying, runs: ActiveRuns) -> Relay | None:
    """Return what relays requests for responses, or None if nothing is relayed."""
    if relaying.client is None:
        return None
    from antiphon.entrypoints.http.relay import RelayResponses

    return RelayResponses(relaying.client, runs)
