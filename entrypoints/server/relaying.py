"""Let the servers of a store relay requests to each other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack

from litestar.types import ASGIApp
from msgspec.structs import replace

from antiphon.application.resources.server_addresses import ServerAddresses
from antiphon.domain.errors import StoreError
from antiphon.entrypoints.http.api.forms import FORM_BYTES
from antiphon.entrypoints.http.wire.dialects import DIALECTS
from antiphon.entrypoints.services import App
from antiphon.entrypoints.settings import Settings

logger = logging.getLogger("antiphon.servers")

WITHDRAW_S = 0.5
"""Seconds to tell the others that this server stops. Otherwise its address expires."""


async def start_relay(
    app: App,
    settings: Settings,
    stack: AsyncExitStack,
    served: ASGIApp,
    authenticate: Callable[[ASGIApp], ASGIApp],
) -> ASGIApp:
    """Return what is served behind authentication, with a relay if this server has an address.

    Raises: StoreError.
    """
    relaying = app.relaying
    vouchers, client = relaying.vouchers, relaying.client
    if vouchers is None or client is None:
        return authenticate(served)
    from antiphon.entrypoints.http.relay.relay import AcceptRelayed, Relay  # with its HTTP client

    limits = app.services.options.limits
    largest = max(limits.max_bytes, settings.max_file_bytes + FORM_BYTES)
    limits = replace(limits, max_bytes=largest)
    dialect = DIALECTS[settings.dialect]
    relay = Relay(
        served,
        client,
        tag=relaying.tag,
        stopping=app.services.stopping,
        limits=limits,
        dialect=dialect,
    )
    stack.push_async_callback(client.aclose)
    if relaying.addresses is not None:
        await _announce(relaying.addresses, stack)
    return AcceptRelayed(
        authenticate(relay),
        relay,
        vouchers,
        client,
        tag=relaying.tag,
        limits=limits,
        dialect=dialect,
    )


async def _announce(addresses: ServerAddresses, stack: AsyncExitStack) -> None:
    await addresses.announce()
    stack.push_async_callback(_withdraw, addresses)
    announcing = asyncio.create_task(addresses.announce_forever())
    stack.callback(announcing.cancel)


async def _withdraw(addresses: ServerAddresses) -> None:
    try:
        async with asyncio.timeout(WITHDRAW_S):
            await addresses.withdraw()
    except (StoreError, TimeoutError) as exc:
        logger.warning("this server's address stays in the store until it expires: %s", exc)
