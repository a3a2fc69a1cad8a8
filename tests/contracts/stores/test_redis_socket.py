"""Redis at a Unix socket is the store that it is at a port."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon.adapters.stores.redis.store import RedisStore
from antiphon.adapters.stores.self_test import round_trips
from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.settings import Settings
from antiphon.entrypoints.wiring.stores import store_kind
from antiphon.testing.stores.calls import wait_until


@pytest.fixture
def path() -> Iterator[Path]:
    if shutil.which("redis-server") is None:
        pytest.skip("no redis-server is installed")
    # The path of a socket may have 107 bytes.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "redis.sock"
        place = ("--port", "0", "--unixsocket", str(path), "--dir", folder)
        process = subprocess.Popen(
            ["redis-server", *place, "--save", ""], stdout=subprocess.DEVNULL
        )
        yield path
        process.kill()
        process.wait(timeout=30)


async def test_a_socket_is_as_good_as_a_port(path: Path) -> None:
    async def is_there() -> bool:
        return await asyncio.to_thread(path.exists)

    await wait_until(is_there)
    settings = Settings(store=f"unix://{path}?db=0")
    assert store_kind(settings) == "redis"
    store = RedisStore(settings.store)
    await store.start()
    try:
        assert await round_trips(store)
        await store.check()
    finally:
        await store.aclose()


async def test_a_socket_that_is_missing_is_named(tmp_path: Path) -> None:
    store = RedisStore(f"unix://{tmp_path}/none.sock")
    with pytest.raises(SettingsError, match=r"unix://.*none\.sock.* cannot be reached"):
        await store.start()
    await store.aclose()
