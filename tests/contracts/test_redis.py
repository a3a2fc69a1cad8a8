"""What the Redis store promises besides the contract: whole changes or none, no surprise at the
start, no waiting without end."""

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

from antiphon.adapters.stores.redis import RedisStore
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
    finished,
    item,
    lease,
    logged,
    running,
    turns,
)
from antiphon.testing.store_calls import (
    context_of,
    converse,
    input_of,
    is_gone,
    items_of,
    keep,
    log_of,
    say,
    unknown,
    until,
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


# --- a Redis of the test's own --------------------------------------------------------------------


class OwnRedis:
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

    def tell(self, *command: str) -> object:
        with Redis.from_url(self.url) as client:
            return client.execute_command(*command)

    async def is_up(self) -> bool:
        async with aio.Redis.from_url(self.url, retry=None) as client:
            try:
                return bool(await client.ping())
            except (RedisError, OSError):
                return False


@pytest.fixture
async def own(tmp_path: Path) -> AsyncIterator[OwnRedis]:
    if shutil.which("redis-server") is None:
        pytest.skip("no redis-server is installed")
    own = OwnRedis(tmp_path)
    own.start()
    await until(own.is_up)
    yield own
    own.stop()


@pytest.fixture
async def ours(own: OwnRedis) -> AsyncIterator[RedisStore]:
    """A store on it that does not wait for long."""
    ours = RedisStore(own.url, connect_timeout_s=0.3, timeout_s=0.5)
    await ours.start()
    yield ours
    await ours.aclose()


# --- starting -------------------------------------------------------------------------------------


async def refusal(url: str, **options: float) -> str:
    """Return why the store does not start: one sentence."""
    store = RedisStore(url, **options)  # type: ignore[arg-type]
    with pytest.raises(SettingsError) as caught:
        await store.start()
    with pytest.raises(StoreError, match="not open"):
        await store.get(US, "resp_a")
    await store.aclose()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("options", "told"),
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
    own: OwnRedis, options: tuple[str, ...], told: str
) -> None:
    own.stop()
    own.start(*options)
    await until(own.is_up)
    store = RedisStore(own.url)
    await store.start()
    assert told in store.durability
    await store.aclose()


@pytest.mark.parametrize("hidden", [(), ("--rename-command", "CONFIG", "")])
async def test_a_redis_that_evicts_is_refused(own: OwnRedis, hidden: tuple[str, ...]) -> None:
    own.stop()
    own.start("--maxmemory-policy", "allkeys-lru", *hidden)
    await until(own.is_up)
    told = await refusal(own.url)
    assert "maxmemory-policy allkeys-lru" in told
    assert "set maxmemory-policy to noeviction" in told


async def test_a_cluster_is_refused(own: OwnRedis) -> None:
    own.stop()
    own.start("--cluster-enabled", "yes")
    await until(own.is_up)
    assert "is a cluster" in await refusal(own.url)


async def test_a_replica_is_refused(own: OwnRedis) -> None:
    own.tell("REPLICAOF", "127.0.0.1", "1")
    assert "it is a replica, which is read-only" in await refusal(own.url)


async def test_a_redis_that_is_not_there_is_refused(own: OwnRedis) -> None:
    own.stop()
    assert "cannot be reached" in await refusal(own.url)


async def test_a_redis_that_does_not_answer_is_refused(own: OwnRedis) -> None:
    own.send(signal.SIGSTOP)
    assert "did not answer in time" in await refusal(own.url, timeout_s=0.2)


@pytest.mark.parametrize("account", ["", ":wrong-secret@", "nobody:wrong-secret@"])
async def test_a_wrong_password_is_refused_and_not_told(own: OwnRedis, account: str) -> None:
    own.tell("CONFIG", "SET", "requirepass", "right")
    told = await refusal(own.url.replace("//", f"//{account}"))
    assert "password" in told
    assert "secret" not in told
    store = RedisStore(own.url.replace("//", "//:right@"))
    await store.start()
    await store.aclose()


async def test_few_rights_are_enough(own: OwnRedis) -> None:
    rights = "+@read +@write +@scripting +publish +subscribe +unsubscribe +ping +time"
    account = "antiphon on >secret ~antiphon:* &antiphon:*"
    own.tell("ACL", "SETUSER", *f"{account} {rights}".split())
    store = RedisStore(own.url.replace("//", "//antiphon:secret@"))
    await store.start()
    assert "is unknown" in store.durability
    await keep(store, "a")
    await store.create(US, logged("b"))
    waiting = asyncio.create_task(store.wait_for_events(US, "resp_b", after=1, limit_s=10))
    await store.check()
    store.beat(OWNER, 15)
    assert await store.append(lease("b"), chunk(2))
    async with asyncio.timeout(10):
        await waiting
    await store.aclose()


async def test_a_url_of_something_else_is_refused() -> None:
    with pytest.raises(SettingsError, match="The Redis URL cannot be read"):
        RedisStore("http://127.0.0.1:6379/0")


async def test_the_proof_at_the_start_leaves_no_response(store: RedisStore, prefix: str) -> None:
    async with aio.Redis.from_url(REDIS) as client:
        kept = [key async for key in client.scan_iter(f"{prefix}*")]
    assert not any(b"proof" in key for key in kept)


def test_a_missing_package_is_named() -> None:
    code = """
import sys
sys.modules["redis"] = None
from antiphon.domain.errors import SettingsError
try:
    import antiphon.adapters.stores.redis
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
    await store.create(
        US, running(name, secret, within=within, run=run, instructions=SECRET, expires_at=1.0)
    )
    assert await store.append(lease(name), EventChunk(first=2, count=1, body=SECRET.encode()))
    said = Message(id=f"msg_{SECRET}", role="assistant", content=SECRET)
    done = finished(name, within=within, instructions=SECRET, output=(said,))
    assert await store.finish(lease(name), done, events=chunk(3, 1, SECRET.encode()))


@pytest.mark.parametrize("how", ["delete", "sweep"])
async def test_what_goes_leaves_no_trace(store: RedisStore, prefix: str, how: str) -> None:
    async with aio.Redis.from_url(REDIS) as client:
        await keep_secrets(store, "a")
        assert await traces(client, prefix) != []
        if how == "delete":
            await store.delete(US, "resp_a")
        else:
            await store.sweep(keep_events_s=3600)
        assert await traces(client, prefix) == []


async def test_deleted_conversations_leave_no_trace(store: RedisStore, prefix: str) -> None:
    async with aio.Redis.from_url(REDIS) as client:
        await converse(store, "a")
        await store.add_items(US, "conv_a", [item(SECRET)])
        await store.claim(US, "conv_a", "resp_a", owner=OWNER)
        await keep_secrets(store, "a", within="a")
        await store.delete(US, "resp_a")
        assert await traces(client, prefix) != []
        await store.delete_conversation(US, "conv_a")
        assert await traces(client, prefix) == []


async def test_when_all_is_gone_only_counters_are_left(store: RedisStore, prefix: str) -> None:
    await converse(store, "a", "x")
    await say(store, "a", "one")
    delivery = WebhookDelivery(id="evt_a", tenant=US, endpoint="main", body=b"{}")
    for name, after in (("a", None), ("b", "a"), ("c", "b")):
        await store.reserve(
            US, name, response_id=f"resp_{name}", fingerprint=b"", owner=OWNER, expires_at=1.0
        )
        run = NewRun(owner=OWNER, job=b"job", events=chunk(0, 2))
        await store.create(US, running(name, after=after, run=run))
        assert await store.finish(
            lease(name), finished(name, after=after), events=chunk(2), deliveries=[delivery]
        )
    await store.create(US, running("waits", run=NewRun(job=b"job")))
    for name in ("one", "a", "b", "c", "waits"):
        await store.delete(US, f"resp_{name}")
    await store.delete_conversation(US, "conv_a")
    await store.remove("evt_a")
    await store.lease_runs(OWNER, limit=1)
    await store.leave(OWNER)
    assert await store.usage(US) == StorageUsage()
    async with aio.Redis.from_url(REDIS) as client:
        left = {key.decode()[len(prefix) :] async for key in client.scan_iter(f"{prefix}*")}
    assert left == {"items", "responses", "use:", f"use:{US}"}


async def test_many_expired_responses_are_swept_in_several_steps(store: RedisStore) -> None:
    for number in range(230):
        await store.create(US, running(str(number), expires_at=1.0, status="completed"))
    assert await store.sweep(keep_events_s=0, limit=150) == 150
    assert (await store.usage(US)).responses == 80
    assert await store.sweep(keep_events_s=0) == 80
    assert await store.sweep(keep_events_s=0) == 0


# --- connections ----------------------------------------------------------------------------------


async def subscribers(own: OwnRedis) -> int:
    return str(own.tell("CLIENT", "LIST", "TYPE", "pubsub")).count(" addr=")


async def test_many_who_wait_take_one_connection(own: OwnRedis, ours: RedisStore) -> None:
    for number in range(100):
        await ours.create(US, logged(str(number)))
    waiting = [
        asyncio.create_task(ours.wait_for_events(US, f"resp_{number}", after=1, limit_s=30))
        for number in range(100)
    ]
    await ours.create(US, logged("last"))
    await ours.wait_for_events(US, "resp_last", after=1, limit_s=0.2)
    assert await subscribers(own) == 1
    for number in range(100):
        assert await ours.append(lease(str(number)), chunk(2))
    async with asyncio.timeout(10):
        await asyncio.gather(*waiting)


async def test_channels_that_nobody_waits_for_are_left(own: OwnRedis, ours: RedisStore) -> None:
    await ours.create(US, logged("a"))
    await ours.wait_for_events(US, "resp_a", after=1, limit_s=0.1)
    assert own.tell("PUBSUB", "CHANNELS") != []
    await ours.delete(US, "resp_a")

    async def is_left() -> bool:
        return own.tell("PUBSUB", "CHANNELS") == []

    await until(is_left)


async def test_a_killed_listener_misses_nothing(own: OwnRedis, ours: RedisStore) -> None:
    await ours.create(US, logged("a"))
    found = await log_of(ours, "a")

    async def follow() -> None:
        while found[-1].first < 40:
            await ours.wait_for_events(US, "resp_a", after=found[-1].first, limit_s=5)
            found.extend(await log_of(ours, "a", after=found[-1].first))

    async def is_following() -> bool:
        return await subscribers(own) == 1

    found[-1] = chunk(1)
    reader = asyncio.create_task(follow())
    for number in range(2, 41):
        if number % 5 == 0:
            await until(is_following)
            own.tell("CLIENT", "KILL", "TYPE", "pubsub")
        assert await ours.append(lease("a"), chunk(number))
    async with asyncio.timeout(10):
        await reader
    assert [one.first for one in found] == list(range(1, 41))


async def test_reads_and_events_survive_killed_connections(own: OwnRedis, ours: RedisStore) -> None:
    await keep(ours, "a")
    await ours.create(US, logged("b"))

    async def work(number: int) -> None:
        assert await context_of(ours, "a") == turns("a")
        assert (await ours.get(US, "resp_a")).status == "completed"

    kill = ("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    for number in range(2, 22):
        await asyncio.gather(*map(work, range(8)), asyncio.to_thread(own.tell, *kill))
        assert await ours.append(lease("b"), chunk(number))
    assert [one.first for one in await log_of(ours, "b")] == [0, *range(2, 22)]


async def test_a_redis_without_the_scripts_is_given_them(own: OwnRedis, ours: RedisStore) -> None:
    await keep(ours, "a")
    own.tell("SCRIPT", "FLUSH")
    await keep(ours, "b", after="a")
    assert await context_of(ours, "b") == turns("a", "b")


async def test_what_was_confirmed_survives_the_death_of_redis(
    own: OwnRedis, ours: RedisStore
) -> None:
    own.stop()
    own.start("--appendonly", "yes", "--appendfsync", "always")
    await until(own.is_up)
    await keep(ours, "a")
    await ours.create(US, logged("b"))
    assert await ours.append(lease("b"), chunk(2))
    own.stop(signal.SIGKILL)
    with pytest.raises(StoreError, match="cannot be reached"):
        await ours.get(US, "resp_a")
    with pytest.raises(StoreError):
        await ours.check()
    own.start()
    await until(own.is_up)
    await ours.check()
    assert await context_of(ours, "a") == turns("a")
    assert await log_of(ours, "b") == [chunk(0, 2), chunk(2)]
    assert [one.lease for one in await ours.lease_runs("srv_b", limit=5)] == [lease("b", 2)]


async def test_a_redis_that_stops_answering_fails_in_time(own: OwnRedis, ours: RedisStore) -> None:
    own.send(signal.SIGSTOP)
    async with asyncio.timeout(10):
        with pytest.raises(StoreError, match="did not answer in time"):
            await ours.create(US, running("a"))
        with pytest.raises(StoreError):
            await asyncio.to_thread(ours.beat, OWNER, 15)
        failed = await asyncio.gather(
            *[ours.get(US, "resp_a") for _ in range(100)], return_exceptions=True
        )
    assert {type(one) for one in failed} == {StoreError}
    assert "all connections to it are in use" in " ".join(map(str, failed))
    own.send(signal.SIGCONT)
    await keep(ours, "b")
    assert await context_of(ours, "b") == turns("b")


# --- a Redis that is full -------------------------------------------------------------------------


async def test_a_full_memory_refuses_changes_as_a_whole_and_lets_go(
    own: OwnRedis, ours: RedisStore
) -> None:
    await ours.create(US, logged("a"))
    await keep(ours, "old")
    large = item("large", raw=b'"%b"' % (b"x" * 100_000))
    await ours.create(US, running("b", large, after="old"))
    before = await ours.usage(US)
    own.tell("CONFIG", "SET", "maxmemory", "1mb")
    for change in (
        ours.create(US, running("new", large)),
        ours.append(lease("a"), chunk(2)),
        ours.finish(lease("a"), finished("a"), events=chunk(2)),
        converse(ours, "new"),
        ours.check(),
    ):
        with pytest.raises(StoreError, match="its memory is full"):
            await change
    assert await ours.usage(US) == before
    assert await log_of(ours, "a") == [chunk(0, 2)]
    assert await input_of(ours, "b") == [*turns("old"), "large"]
    ours.beat(OWNER, 15)
    await ours.delete(US, "resp_b")
    assert await unknown(ours.get(US, "resp_b"))
    own.tell("CONFIG", "SET", "maxmemory", "0")
    assert await ours.finish(lease("a"), finished("a"), events=chunk(2))


# --- several stores -------------------------------------------------------------------------------


async def test_stores_of_other_prefixes_share_nothing(store: RedisStore, prefix: str) -> None:
    other = RedisStore(REDIS, prefix=f"{prefix}other:")
    await other.start()
    await keep(store, "a")
    await converse(store, "a", "x")
    assert await is_gone(other, "a")
    await keep(other, "a")
    await other.delete(US, "resp_a")
    assert await context_of(store, "a") == turns("a")
    assert await items_of(store, "a") == ["x"]
    assert await other.lease_runs("srv_b", limit=5) == []
    await other.aclose()


@pytest.mark.parametrize(("us", "them"), [("a:b", "a"), ("a%3Ab", "a:b"), ("é", "%C3%A9")])
async def test_tenants_of_similar_names_share_nothing(
    store: RedisStore, us: str, them: str
) -> None:
    await store.create(us, logged("a"))
    await store.create(them, logged("a"))
    await store.create(them, StoredResponse(response=running("b").response))
    leases = [one.lease for one in await store.lease_runs("srv_b", limit=5)]
    assert [one.tenant for one in leases] == [us, them, them]
    await store.delete(them, "resp_a")
    assert (await store.get(us, "resp_a")).id == "resp_a"
    assert (await store.usage(us)).responses == 1


# --- closing --------------------------------------------------------------------------------------


async def test_a_closed_store_says_so(store: RedisStore) -> None:
    await store.create(US, logged("a"))
    store.beat(OWNER, 15)
    await store.aclose()
    await store.aclose()
    for call in (
        store.check(),
        store.create(US, running("b")),
        store.finish(lease("a"), finished("a")),
        store.get(US, "resp_a"),
        store.events(US, "resp_a"),
        store.lease_runs(OWNER, limit=1),
        store.wait_for_events(US, "resp_a", after=1, limit_s=5),
        store.claim_due(limit=1, claim_s=1),
        store.keys(),
        store.conversation(US, "conv_a"),
    ):
        with pytest.raises(StoreError, match="not open"):
            await call
    with pytest.raises(StoreError, match="not open"):
        store.beat(OWNER, 15)


async def test_closing_wakes_those_who_wait(store: RedisStore) -> None:
    await store.create(US, logged("a"))
    waiting = asyncio.create_task(store.wait_for_events(US, "resp_a", after=1, limit_s=30))
    await store.create(US, logged("b"))
    await store.wait_for_events(US, "resp_b", after=1, limit_s=0.1)
    await store.aclose()
    async with asyncio.timeout(10):
        await asyncio.wait([waiting])
