"""Build what lets the servers of a store relay requests to each other."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from antiphon.adapters.sealing import Sealer
from antiphon.application.ports import SharedValues
from antiphon.application.resources.server_addresses import ServerAddresses, server_tag
from antiphon.application.runs.active_runs import ActiveRuns
from antiphon.entrypoints.http.api.services import Relay
from antiphon.entrypoints.http.relay.relayed_requests import Vouchers
from antiphon.entrypoints.process.peers import Peers
from antiphon.entrypoints.process.sockets import WorkerSockets
from antiphon.entrypoints.settings import Settings

if TYPE_CHECKING:
    from antiphon.entrypoints.http.relay.server_client import ServerClient


class Relaying(Struct, frozen=True, kw_only=True):
    """The parts that relay requests; all are None if this server has no address for the others.

    `addresses` are those of the store's servers, and `sockets` those of this server's workers.
    """

    tag: str
    addresses: ServerAddresses | None = None
    sockets: WorkerSockets | None = None
    vouchers: Vouchers | None = None
    client: ServerClient | None = None


def relaying(
    settings: Settings, owner: str, store: SharedValues, sealer: Sealer, peers: Peers | None
) -> Relaying:
    """Return what the server called `owner` relays with. It announces nothing yet."""
    tag = server_tag(owner)
    addresses = _addresses(settings, tag, store)
    sockets = _sockets(settings, tag, peers)
    if addresses is None and sockets is None:
        return Relaying(tag=tag)
    from antiphon.entrypoints.http.relay.server_client import ServerClient  # with its HTTP client

    async def others() -> Mapping[str, str]:
        stored = {} if addresses is None else await addresses.others()
        return stored if sockets is None else {**stored, **sockets.others()}

    vouchers = Vouchers(sealer.sign, tag, workers=tuple if sockets is None else sockets.others)
    return Relaying(
        tag=tag,
        addresses=addresses,
        sockets=sockets,
        vouchers=vouchers,
        client=ServerClient(others, vouchers),
    )


def _addresses(settings: Settings, tag: str, store: SharedValues) -> ServerAddresses | None:
    if settings.advertise_url is None:
        return None
    return ServerAddresses(store, tag=tag, url=settings.advertise_url, now=time.time)


def _sockets(settings: Settings, tag: str, peers: Peers | None) -> WorkerSockets | None:
    has_containers = settings.code_interpreter or settings.shell
    if peers is None or not has_containers:
        return None
    return WorkerSockets(peers.folder, number=peers.number, tag=tag)


def relay_of(relaying: Relaying, runs: ActiveRuns) -> Relay | None:
    """Return what relays requests for responses, or None if nothing is relayed."""
    if relaying.client is None:
        return None
    from antiphon.entrypoints.http.relay.relay import RelayResponses

    return RelayResponses(relaying.client, runs)
