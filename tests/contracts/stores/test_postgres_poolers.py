"""The PostgreSQL store behind PgBouncer, and addresses as hosting services write them."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest
from tests.faults.support.replicas import free_port, wait_for

from antiphon.adapters.stores.postgres.store import PostgresStore
from antiphon.domain.errors import SettingsError
from antiphon.testing.samples import US, chunk, lease, response_with_log
from antiphon.testing.stores.calls import create_and_finish, last_number, log_of

Pooler = Callable[[str], str]
"""A pool mode -> the address of the database behind a PgBouncer of that mode."""


@pytest.fixture
def pooler(postgres: tuple[str, str], tmp_path: Path) -> Iterator[Pooler]:
    program = shutil.which("pgbouncer")
    if program is None:
        pytest.skip("there is no pgbouncer on this machine")
    running: list[subprocess.Popen[bytes]] = []

    def start(mode: str) -> str:
        at, port = urlsplit(postgres[0]), free_port()
        settings = tmp_path / "pgbouncer.ini"
        settings.write_text(
            f"[databases]\n* = host={at.hostname} port={at.port or 5432} user={at.username}\n"
            "[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            f"auth_type = any\npool_mode = {mode}\ndefault_pool_size = 40\n"
            "ignore_startup_parameters =\n",
            encoding="utf-8",
        )
        options = [str(settings)]
        if os.geteuid() == 0:  # PgBouncer does not run as root
            tmp_path.chmod(0o755)
            options = ["-u", pwd.getpwnam("nobody").pw_name, *options]
        running.append(subprocess.Popen([program, "-q", *options], stderr=subprocess.DEVNULL))
        address = f"postgresql://{at.username}@127.0.0.1:{port}{at.path}"
        wait_for(lambda: _listens(port))
        return address

    yield start
    for process in running:
        process.kill()
        process.wait(10)


def _listens(port: int) -> bool | None:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0 or None


async def test_a_store_works_behind_a_pooler_of_sessions(
    pooler: Pooler, postgres: tuple[str, str]
) -> None:
    address = pooler("session")
    stores = [PostgresStore(address, schema=postgres[1]) for _ in range(2)]
    for store in stores:
        await store.start()
    writer, reader = stores
    await writer.create_response(US, response_with_log("a"))
    waiting = asyncio.create_task(reader.wait_for_events(US, "resp_a", after=1, limit_s=30))
    assert await writer.append_events(lease("a"), chunk(2))
    await waiting
    assert last_number(await log_of(reader, "a")) == 2
    await create_and_finish(writer, "b")
    assert (await reader.get_response(US, "resp_b")).status == "completed"
    for store in stores:
        await store.aclose()


async def test_a_pooler_that_shares_sessions_among_transactions_is_refused(
    pooler: Pooler, postgres: tuple[str, str]
) -> None:
    for mode in ("transaction", "statement"):
        store = PostgresStore(pooler(mode), schema=postgres[1])
        with pytest.raises(SettingsError, match="pool_mode = session"):
            await store.start()
        await store.aclose()


async def test_an_address_of_a_hosting_service_is_understood(
    postgres: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    dsn, schema = postgres
    options = (
        "sslmode=prefer&channel_binding=require&connect_timeout=10&keepalives=1&pgbouncer=true"
    )
    store = PostgresStore(f"{dsn}?{options}", schema=schema)
    await store.start()
    await create_and_finish(store, "a")
    await store.aclose()
    assert "channel_binding=require" in caplog.text


async def test_a_session_has_the_settings_of_the_store(postgres: tuple[str, str]) -> None:
    dsn, schema = postgres
    store = PostgresStore(dsn, schema=schema)
    await store.start()
    admin = await asyncpg.connect(dsn)
    names = await admin.fetch(
        "SELECT application_name FROM pg_stat_activity WHERE application_name LIKE $1",
        f"antiphon % {schema}",
    )
    await admin.close()
    await store.aclose()
    assert {name for (name,) in names} >= {f"antiphon requests {schema}"}
