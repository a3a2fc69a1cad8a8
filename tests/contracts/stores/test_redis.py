"""The Redis store beyond the contract: atomic changes, checks at startup and time limits."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis.asyncio as aio
from msgspec import Raw
from redis import Redis
from redis.exceptions import RedisError
from tests.contracts.conftest import REDIS, redis_prefix

from antiphon.adapters.stores.redis.store import RedisStore
from antiphon.application.ports import (
    EventChunk,
    NewRun,
    StorageUsage,
    StoredItem,
    StoredResponse,
    WebhookDelivery,
)
from antiphon.domain.errors import SettingsError, StoreError
from antiphon.domain.items import Message
from antiphon.testing.samples import (
    OWNER,
    US,
    chunk,
    finished_response,
    item,
    lease,
    new_response,
    response_with_log,
    turn_item_names,
)
from antiphon.testing.stores.calls import (
    context_of,
    create_and_finish,
    create_conversation,
    input_of,
    is_gone,
    is_unknown,
    items_of,
    log_of,
    run_in_conversation,
    wait_until,
)

SECRET = "the-owl-flies-at-midnight"


@pytest.fixture
async def prefix() -> AsyncIterator[str]:
    async with redis_prefix() as prefix:
        yield prefix


@pytest.fixture
async def store(prefix: str) -> AsyncIterator[RedisStore]:
    store = RedisStore(REDIS, prefix=prefix)
    await store.start()
    yield store
    await store.aclose()


# --- a Redis for one test -------------------------------------------------------------------------


class RedisProcess:
    """A redis-server that a test may configure, stop and kill."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._folder = folder
        self._options: tuple[str, ...] = ()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        self._options = options or self._options
        place = ("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder))
        self._process = subprocess.Popen(
            ["redis-server", *place, "--save", "", *self._options], stdout=subprocess.DEVNULL
        )

    def send(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self, number: int = signal.SIGKILL) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(timeout=30)
            self._process = None

    def execute(self, *command: str) -> object:
        with Redis.from_url(self.url) as client:
            return client.execute_command(*command)

    async def is_up(self) -> bool:
        async with aio.Redis.from_url(self.url, retry=None) as client:
            try:
                return bool(await client.ping())
            except (RedisError, OSError):
                return False


@pytest.fixture
async def redis_process(tmp_path: Path) -> AsyncIterator[RedisProcess]:
    if shutil.which("redis-server") is None:
        pytest.skip("no redis-server is installed")
    redis_process = RedisProcess(tmp_path)
    redis_process.start()
    await wait_until(redis_process.is_up)
    yield redis_process
    redis_process.stop()


@pytest.fixture
async def impatient_store(redis_process: RedisProcess) -> AsyncIterator[RedisStore]:
    """A store on that Redis with short timeouts."""
    impatient_store = RedisStore(redis_process.url, connect_timeout_s=0.3, timeout_s=0.5)
    await impatient_store.start()
    yield impatient_store
    await impatient_store.aclose()


# --- starting -------------------------------------------------------------------------------------


async def refusal_of(url: str, **options: float) -> str:
    """Return the reason why the store does not start."""
    store = RedisStore(url, **options)  # type: ignore[arg-type]
    with pytest.raises(SettingsError) as caught:
        await store.start()
    with pytest.raises(StoreError, match="not open"):
        await store.get_response(US, "resp_a")
    await store.aclose()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--appendonly", "no"), "Warning: all stored data may be lost"),
        (("--appendonly", "yes", "--appendfsync", "always"), "survive a power cut"),
        (("--appendonly", "yes", "--appendfsync", "everysec"), "the last second"),
        (("--appendonly", "yes", "--appendfsync", "no"), "the last half minute"),
        (("--rename-command", "CONFIG", ""), "Warning: all stored data may be lost"),
        (("--appendonly", "yes", "--rename-command", "CONFIG", ""), "is unknown"),
    ],
)
async def test_a_started_store_says_what_may_be_lost(
    redis_process: RedisProcess, options: tuple[str, ...], expected: str
) -> None:
    redis_process.stop()
    redis_process.start(*options)
    await wait_until(redis_process.is_up)
    store = RedisStore(redis_process.url)
    await store.start()
    assert expected in store.durability
    await store.aclose()


@pytest.mark.parametrize("hidden", [(), ("--rename-command", "CONFIG", "")])
async def test_a_redis_that_evicts_is_refused(
    redis_process: RedisProcess, hidden: tuple[str, ...]
) -> None:
    redis_process.stop()
    redis_process.start("--maxmemory-policy", "allkeys-lru", *hidden)
    await wait_until(redis_process.is_up)
    message = await refusal_of(redis_process.url)
    assert "maxmemory-policy allkeys-lru" in message
    assert "set maxmemory-policy to noeviction" in message


async def test_a_cluster_is_refused(redis_process: RedisProcess) -> None:
    redis_process.stop()
    redis_process.start("--cluster-enabled", "yes")
    await wait_until(redis_process.is_up)
    assert "is a cluster" in await refusal_of(redis_process.url)


async def test_a_replica_is_refused(redis_process: RedisProcess) -> None:
    redis_process.execute("REPLICAOF", "127.0.0.1", "1")
    assert "it is a replica, which is read-only" in await refusal_of(redis_process.url)


async def test_an_unreachable_redis_is_refused(redis_process: RedisProcess) -> None:
    redis_process.stop()
    assert "cannot be reached" in await refusal_of(redis_process.url)


async def test_a_redis_that_does_not_answer_is_refused(redis_process: RedisProcess) -> None:
    redis_process.send(signal.SIGSTOP)
    assert "did not answer in time" in await refusal_of(redis_process.url, timeout_s=0.2)


@pytest.mark.parametrize("account", ["", ":wrong-secret@", "nobody:wrong-secret@"])
async def test_a_wrong_password_is_refused_and_not_repeated(
    redis_process: RedisProcess, account: str
) -> None:
    redis_process.execute("CONFIG", "SET", "requirepass", "right")
    message = await refusal_of(redis_process.url.replace("//", f"//{account}"))
    assert "password" in message
    assert "secret" not in message
    store = RedisStore(redis_process.url.replace("//", "//:right@"))
    await store.start()
    await store.aclose()


async def test_few_permissions_are_enough(redis_process: RedisProcess) -> None:
    rights = "+@read +@write +@scripting +publish +subscribe +unsubscribe +ping +time"
    account = "antiphon on >secret ~antiphon:* &antiphon:*"
    redis_process.execute("ACL", "SETUSER", *f"{account} {rights}".split())
    store = RedisStore(redis_process.url.replace("//", "//antiphon:secret@"))
    await store.start()
    assert "is unknown" in store.durability
    await create_and_finish(store, "a")
    await store.create_response(US, response_with_log("b"))
    waiting = asyncio.create_task(store.wait_for_events(US, "resp_b", after=1, limit_s=10))
    await store.check()
    store.record_heartbeat(OWNER, 15)
    assert await store.append_events(lease("b"), chunk(2))
    async with asyncio.timeout(10):
        await waiting
    await store.aclose()


async def test_a_url_that_is_not_for_redis_is_refused() -> None:
    with pytest.raises(SettingsError, match="The Redis URL cannot be read"):
        RedisStore("http://127.0.0.1:6379/0")


async def test_the_self_test_leaves_no_response(store: RedisStore, prefix: str) -> None:
    async with aio.Redis.from_url(REDIS) as client:
        keys = [key async for key in client.scan_iter(f"{prefix}*")]
    assert not any(b"proof" in key for key in keys)


def test_a_missing_package_is_named() -> None:
    code = """
import sys
sys.modules["redis"] = None
from antiphon.domain.errors import SettingsError
try:
    import antiphon.adapters.stores.redis.store
except SettingsError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "-m pip install 'redis[hiredis]>=" in done.stdout


# --- what goes ------------------------------------------------------------------------------------


async def traces(client: aio.Redis, prefix: str) -> list[bytes]:
    """Return the keys that have the secret in their name or their value."""
    return [
        key
        async for key in client.scan_iter(f"{prefix}*", count=1000)
        if SECRET.encode() in key + (await client.dump(key) or b"")
    ]


async def keep_secrets(store: RedisStore, name: str, *, within: str | None = None) -> None:
    # No two bytes alike in a row: what Redis dumps is compressed.
    secret = StoredItem(id=f"msg_{SECRET}", raw=Raw(b'"%b"' % SECRET.encode()))
    run = NewRun(owner=OWNER, job=SECRET.encode(), events=chunk(0, 2, SECRET.encode()))
    await store.create_response(
        US, new_response(name, secret, within=within, run=run, instructions=SECRET, expires_at=1.0)
    )
    assert await store.append_events(
        lease(name), EventChunk(first=2, count=1, body=SECRET.encode())
    )
    message = Message(id=f"msg_{SECRET}", role="assistant", content=SECRET)
    done = finished_response(name, within=within, instructions=SECRET, output=(message,))
    assert await store.finish_response(lease(name), done, events=chunk(3, 1, SECRET.encode()))


@pytest.mark.parametrize("how", ["delete", "sweep"])
async def test_deleted_and_swept_responses_leave_no_trace(
    store: RedisStore, prefix: str, how: str
) -> None:
    async with aio.Redis.from_url(REDIS) as client:
        await keep_secrets(store, "a")
        assert await traces(client, prefix) != []
        if how == "delete":
            await store.delete_response(US, "resp_a")
        else:
            await store.sweep(keep_events_s=3600)
        assert await traces(client, prefix) == []


async def test_deleted_conversations_leave_no_trace(store: RedisStore, prefix: str) -> None:
    async with aio.Redis.from_url(REDIS) as client:
        await create_conversation(store, "a")
        await store.create_conversation_items(US, "conv_a", [item(SECRET)])
        await store.claim_conversation(US, "conv_a", "resp_a", owner=OWNER)
        await keep_secrets(store, "a", within="a")
        await store.delete_response(US, "resp_a")
        assert await traces(client, prefix) != []
        await store.delete_conversation(US, "conv_a")
        assert await traces(client, prefix) == []


async def test_only_counters_remain_when_everything_is_deleted(
    store: RedisStore, prefix: str
) -> None:
    await create_conversation(store, "a", "x")
    await run_in_conversation(store, "a", "one")
    delivery = WebhookDelivery(id="evt_a", tenant=US, endpoint="main", body=b"{}")
    for name, after in (("a", None), ("b", "a"), ("c", "b")):
        await store.reserve_idempotency_key(
            US, name, response_id=f"resp_{name}", fingerprint=b"", owner=OWNER, expires_at=1.0
        )
        run = NewRun(owner=OWNER, job=b"job", events=chunk(0, 2))
        await store.create_response(US, new_response(name, after=after, run=run))
        assert await store.finish_response(
            lease(name),
            finished_response(name, after=after),
            events=chunk(2),
            deliveries=[delivery],
        )
    await store.create_response(US, new_response("waits", run=NewRun(job=b"job")))
    for name in ("one", "a", "b", "c", "waits"):
        await store.delete_response(US, f"resp_{name}")
    await store.delete_conversation(US, "conv_a")
    await store.delete_delivery("evt_a")
    await store.lease_runs(OWNER, limit=1)
    await store.end_heartbeat(OWNER)
    assert await store.get_storage_usage(US) == StorageUsage()
    async with aio.Redis.from_url(REDIS) as client:
        remaining = {key.decode()[len(prefix) :] async for key in client.scan_iter(f"{prefix}*")}
    counters = {"items", "responses", "conversations", "storage_usage:", f"storage_usage:{US}"}
    assert remaining == counters | {"schema_version", "listed", "owners"}


async def test_many_expired_responses_are_swept_in_several_steps(store: RedisStore) -> None:
    for number in range(230):
        await store.create_response(
            US, new_response(str(number), expires_at=1.0, status="completed")
        )
    assert await store.sweep(keep_events_s=0, limit=150) == 150
    assert (await store.get_storage_usage(US)).responses == 80
    assert await store.sweep(keep_events_s=0) == 80
    assert await store.sweep(keep_events_s=0) == 0


# --- connections ----------------------------------------------------------------------------------


async def subscribers(redis_process: RedisProcess) -> int:
    return str(redis_process.execute("CLIENT", "LIST", "TYPE", "pubsub")).count(" addr=")


async def test_many_waiting_readers_share_one_connection(
    redis_process: RedisProcess, impatient_store: RedisStore
) -> None:
    for number in range(100):
        await impatient_store.create_response(US, response_with_log(str(number)))
    waiting = [
        asyncio.create_task(
            impatient_store.wait_for_events(US, f"resp_{number}", after=1, limit_s=30)
        )
        for number in range(100)
    ]
    await impatient_store.create_response(US, response_with_log("last"))
    await impatient_store.wait_for_events(US, "resp_last", after=1, limit_s=0.2)
    assert await subscribers(redis_process) == 1
    for number in range(100):
        assert await impatient_store.append_events(lease(str(number)), chunk(2))
    async with asyncio.timeout(10):
        await asyncio.gather(*waiting)


async def test_channels_without_waiting_readers_are_unsubscribed(
    redis_process: RedisProcess, impatient_store: RedisStore
) -> None:
    await impatient_store.create_response(US, response_with_log("a"))
    await impatient_store.wait_for_events(US, "resp_a", after=1, limit_s=0.1)
    assert redis_process.execute("PUBSUB", "CHANNELS") != []
    await impatient_store.delete_response(US, "resp_a")

    async def is_left() -> bool:
        return redis_process.execute("PUBSUB", "CHANNELS") == []

    await wait_until(is_left)


async def test_readers_miss_nothing_when_their_connection_is_killed(
    redis_process: RedisProcess, impatient_store: RedisStore
) -> None:
    await impatient_store.create_response(US, response_with_log("a"))
    chunks = await log_of(impatient_store, "a")

    async def follow() -> None:
        while chunks[-1].first < 40:
            await impatient_store.wait_for_events(US, "resp_a", after=chunks[-1].first, limit_s=5)
            chunks.extend(await log_of(impatient_store, "a", after=chunks[-1].first))

    async def is_following() -> bool:
        return await subscribers(redis_process) == 1

    chunks[-1] = chunk(1)
    reader = asyncio.create_task(follow())
    for number in range(2, 41):
        if number % 5 == 0:
            await wait_until(is_following)
            redis_process.execute("CLIENT", "KILL", "TYPE", "pubsub")
        assert await impatient_store.append_events(lease("a"), chunk(number))
    async with asyncio.timeout(10):
        await reader
    assert [one.first for one in chunks] == list(range(1, 41))


async def test_reads_and_events_survive_killed_connections(
    redis_process: RedisProcess, impatient_store: RedisStore
) -> None:
    await create_and_finish(impatient_store, "a")
    await impatient_store.create_response(US, response_with_log("b"))

    async def work(number: int) -> None:
        assert await context_of(impatient_store, "a") == turn_item_names("a")
        assert (await impatient_store.get_response(US, "resp_a")).status == "completed"

    kill = ("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    for number in range(2, 22):
        await asyncio.gather(*map(work, range(8)), asyncio.to_thread(redis_process.execute, *kill))
        assert await impatient_store.append_events(lease("b"), chunk(number))
    assert [one.first for one in await log_of(impatient_store, "b")] == [0, *range(2, 22)]


async def test_a_redis_that_lost_the_scripts_gets_them_again(
    redis_process: RedisProcess, impatient_store: RedisStore
) -> None:
    await create_and_finish(impatient_store, "a")
    redis_process.execute("SCRIPT", "FLUSH")
    await create_and_finish(impatient_store, "b", after="a")
    assert await context_of(impatient_store, "b") == turn_item_names("a", "b")


async def test_confirmed_writes_survive_the_death_of_redis(
    redis_process: RedisProcess, impatient_store: RedisStore
) -> None:
    redis_process.stop()
    redis_process.start("--appendonly", "yes", "--appendfsync", "always")
    await wait_until(redis_process.is_up)
    await create_and_finish(impatient_store, "a")
    await impatient_store.create_response(US, response_with_log("b"))
    assert await impatient_store.append_events(lease("b"), chunk(2))
    redis_process.stop(signal.SIGKILL)
    with pytest.raises(StoreError, match="cannot be reached"):
        await impatient_store.get_response(US, "resp_a")
    with pytest.raises(StoreError):
        await impatient_store.check()
    redis_process.start()
    await wait_until(redis_process.is_up)
    await impatient_store.check()
    assert await context_of(impatient_store, "a") == turn_item_names("a")
    assert await log_of(impatient_store, "b") == [chunk(0, 2), chunk(2)]
    assert [one.lease for one in await impatient_store.lease_runs("srv_b", limit=5)] == [
        lease("b", 2)
    ]


async def test_a_redis_that_stops_answering_fails_in_time(
    redis_process: RedisProcess, impatient_store: RedisStore
) -> None:
    redis_process.send(signal.SIGSTOP)
    async with asyncio.timeout(10):
        with pytest.raises(StoreError, match="did not answer in time"):
            await impatient_store.create_response(US, new_response("a"))
        with pytest.raises(StoreError):
            await asyncio.to_thread(impatient_store.record_heartbeat, OWNER, 15)
        failed = await asyncio.gather(
            *[impatient_store.get_response(US, "resp_a") for _ in range(100)],
            return_exceptions=True,
        )
    assert {type(one) for one in failed} == {StoreError}
    assert "all connections to it are in use" in " ".join(map(str, failed))
    redis_process.send(signal.SIGCONT)
    await create_and_finish(impatient_store, "b")
    assert await context_of(impatient_store, "b") == turn_item_names("b")


# --- a Redis that is full -------------------------------------------------------------------------


async def test_a_full_memory_rejects_whole_changes_and_allows_deletions(
    redis_process: RedisProcess, impatient_store: RedisStore
) -> None:
    await impatient_store.create_response(US, response_with_log("a"))
    await create_and_finish(impatient_store, "old")
    large = item("large", raw=b'"%b"' % (b"x" * 100_000))
    await impatient_store.create_response(US, new_response("b", large, after="old"))
    before = await impatient_store.get_storage_usage(US)
    redis_process.execute("CONFIG", "SET", "maxmemory", "1mb")
    for change in (
        impatient_store.create_response(US, new_response("new", large)),
        impatient_store.append_events(lease("a"), chunk(2)),
        impatient_store.finish_response(lease("a"), finished_response("a"), events=chunk(2)),
        create_conversation(impatient_store, "new"),
        impatient_store.check(),
    ):
        with pytest.raises(StoreError, match="its memory is full"):
            await change
    assert await impatient_store.get_storage_usage(US) == before
    assert await log_of(impatient_store, "a") == [chunk(0, 2)]
    assert await input_of(impatient_store, "b") == [*turn_item_names("old"), "large"]
    impatient_store.record_heartbeat(OWNER, 15)
    await impatient_store.delete_response(US, "resp_b")
    assert await is_unknown(impatient_store.get_response(US, "resp_b"))
    async with aio.Redis.from_url(redis_process.url) as client:
        room = (await client.info("memory"))["used_memory"] + 40_000
    redis_process.execute("CONFIG", "SET", "maxmemory", str(room))
    with pytest.raises(StoreError, match="its memory is full"):  # a check asks for some room
        await impatient_store.check()
    redis_process.execute("CONFIG", "SET", "maxmemory", "0")
    await impatient_store.check()
    assert await impatient_store.finish_response(
        lease("a"), finished_response("a"), events=chunk(2)
    )


# --- several stores -------------------------------------------------------------------------------


async def test_stores_with_different_prefixes_share_nothing(store: RedisStore, prefix: str) -> None:
    other = RedisStore(REDIS, prefix=f"{prefix}other:")
    await other.start()
    await create_and_finish(store, "a")
    await create_conversation(store, "a", "x")
    assert await is_gone(other, "a")
    await create_and_finish(other, "a")
    await other.delete_response(US, "resp_a")
    assert await context_of(store, "a") == turn_item_names("a")
    assert await items_of(store, "a") == ["x"]
    assert await other.lease_runs("srv_b", limit=5) == []
    await other.aclose()


@pytest.mark.parametrize(("us", "them"), [("a:b", "a"), ("a%3Ab", "a:b"), ("é", "%C3%A9")])
async def test_tenants_with_similar_names_share_nothing(
    store: RedisStore, us: str, them: str
) -> None:
    await store.create_response(us, response_with_log("a"))
    await store.create_response(them, response_with_log("a"))
    await store.create_response(them, StoredResponse(response=new_response("b").response))
    leases = [one.lease for one in await store.lease_runs("srv_b", limit=5)]
    assert [one.tenant for one in leases] == [us, them, them]
    await store.delete_response(them, "resp_a")
    assert (await store.get_response(us, "resp_a")).id == "resp_a"
    assert (await store.get_storage_usage(us)).responses == 1


# --- closing --------------------------------------------------------------------------------------


async def test_a_closed_store_says_so(store: RedisStore) -> None:
    await store.create_response(US, response_with_log("a"))
    store.record_heartbeat(OWNER, 15)
    await store.aclose()
    await store.aclose()
    for call in (
        store.check(),
        store.create_response(US, new_response("b")),
        store.finish_response(lease("a"), finished_response("a")),
        store.get_response(US, "resp_a"),
        store.read_events(US, "resp_a"),
        store.lease_runs(OWNER, limit=1),
        store.wait_for_events(US, "resp_a", after=1, limit_s=5),
        store.claim_due_deliveries(limit=1, claim_s=1),
        store.list_api_keys(),
        store.get_conversation(US, "conv_a"),
    ):
        with pytest.raises(StoreError, match="not open"):
            await call
    with pytest.raises(StoreError, match="not open"):
        store.record_heartbeat(OWNER, 15)


async def test_closing_wakes_waiting_readers(store: RedisStore) -> None:
    await store.create_response(US, response_with_log("a"))
    waiting = asyncio.create_task(store.wait_for_events(US, "resp_a", after=1, limit_s=30))
    await store.create_response(US, response_with_log("b"))
    await store.wait_for_events(US, "resp_b", after=1, limit_s=0.1)
    await store.aclose()
    async with asyncio.timeout(10):
        await asyncio.wait([waiting])
