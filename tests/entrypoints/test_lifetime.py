"""The order in which a server starts its adapters and stops them."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from dependency_injector import providers
from tests.conftest import settings_for

from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.container import Container
from antiphon.entrypoints.process.peers import Peers
from antiphon.entrypoints.server.lifetime import running_app
from antiphon.entrypoints.server.process import Process

ADAPTERS = ("store", "files", "vector_stores", "web", "peers")


class Observed:
    """An adapter whose starts and stops are written down; `real` does the rest, if there is one."""

    def __init__(self, name: str, seen: list[str], real: Any = None) -> None:
        self._name = name
        self._seen = seen
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    async def start(self) -> None:
        self._seen.append(f"{self._name} starts")
        if self._real is not None:
            await self._real.start()

    async def aclose(self) -> None:
        self._seen.append(f"{self._name} stops")
        if self._real is not None:
            await self._real.aclose()

    async def end_heartbeat(self, owner: str) -> None:
        self._seen.append("the server leaves")
        await self._real.end_heartbeat(owner)


class Broken(Observed):
    async def start(self) -> None:
        await super().start()
        raise SettingsError("It cannot start.")


def observed_ports(folder: Path, seen: list[str]) -> Container:
    ports = Container(settings=settings_for(folder))
    for name in ("store", "files", "vector_stores"):
        provider = getattr(ports, name)
        provider.override(providers.Object(Observed(name, seen, provider())))
    ports.web.override(providers.Object(Observed("web", seen)))
    peers = Peers(folder, number=1, count=1)
    ports.peers.override(providers.Object(Observed("peers", seen, peers)))
    return ports


async def test_what_has_started_stops_in_the_reverse_order(tmp_path: Path) -> None:
    seen: list[str] = []
    ports = observed_ports(tmp_path, seen)
    async with running_app(ports, Process(ports.settings())):
        assert seen == [f"{name} starts" for name in ADAPTERS]
        seen.clear()
    assert seen == ["the server leaves", *(f"{name} stops" for name in reversed(ADAPTERS))]


async def test_an_adapter_that_cannot_start_leaves_nothing_open(tmp_path: Path) -> None:
    seen: list[str] = []
    ports = observed_ports(tmp_path, seen)
    ports.web.override(providers.Object(Broken("web", seen)))
    with pytest.raises(SettingsError, match="It cannot start"):
        async with running_app(ports, Process(ports.settings())):
            raise AssertionError
    started = [f"{name} starts" for name in ADAPTERS[:-1]]
    assert seen == [*started, *(f"{name} stops" for name in reversed(ADAPTERS[:-1]))]


async def test_a_store_that_cannot_start_is_not_closed(tmp_path: Path) -> None:
    seen: list[str] = []
    ports = observed_ports(tmp_path, seen)
    ports.store.override(providers.Object(Broken("store", seen, ports.chosen_store())))
    with pytest.raises(SettingsError, match="It cannot start"):
        async with running_app(ports, Process(ports.settings())):
            raise AssertionError
    assert seen == ["store starts"]


def test_each_port_passes_its_adapter_what_that_takes() -> None:
    """Mypy does not check the arguments of providers, so this does."""
    ports = Container(settings=settings_for(Path()))
    for provider in ports.traverse():
        if isinstance(provider, (providers.Singleton, providers.Callable)):
            inspect.signature(provider.provides).bind(*provider.args, **provider.kwargs)
