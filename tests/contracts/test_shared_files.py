"""The file stores that servers share pass the contract, at one server and at another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest
from tests.support.object_store import CREDENTIALS, delete_bucket, keys_in, new_bucket, s3_server

from antiphon.adapters.stores.files.contents import ContentKey
from antiphon.adapters.stores.files.object_contents import ObjectContents
from antiphon.adapters.stores.postgres.files import PostgresFileStore
from antiphon.application.ports import FilePageQuery, FileUsage
from antiphon.domain.errors import FilesFull, NotFound, SettingsError, StoreError
from antiphon.testing.file_store import CONTENT, THEM, US, FileStoreContract, a_file

pytestmark = pytest.mark.slow

NewFiles = Callable[[], PostgresFileStore]
LONG = CONTENT * 2000
SEVERAL_PARTS = a_file(bytes=len(LONG))


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture(params=["postgres", "s3", "folder"])
def new_files(
    request: pytest.FixtureRequest,
    postgres: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> NewFiles:
    """Return what makes the file store of one more server."""
    dsn, schema = postgres
    if request.param == "postgres":
        return lambda: PostgresFileStore(dsn, schema=schema)
    if request.param == "folder":
        url = (tmp_path / "mounted").as_uri()
        return lambda: PostgresFileStore(dsn, schema=schema, contents=ObjectContents(url))
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    s3: str = request.getfixturevalue("s3")
    url = f"s3://{new_bucket(s3)}/some/folder"
    return lambda: PostgresFileStore(dsn, schema=schema, contents=ObjectContents(url, endpoint=s3))


@asynccontextmanager
async def started(new_files: NewFiles) -> AsyncIterator[PostgresFileStore]:
    store = new_files()
    await store.start()
    try:
        yield store
    finally:
        await store.aclose()


@pytest.fixture
async def pair(new_files: NewFiles) -> AsyncIterator[tuple[PostgresFileStore, PostgresFileStore]]:
    async with started(new_files) as one, started(new_files) as other:
        yield one, other


@pytest.fixture
async def rows(postgres: tuple[str, str]) -> AsyncIterator[asyncpg.Connection]:
    dsn, schema = postgres
    connection = await asyncpg.connect(dsn, server_settings={"search_path": schema})
    yield connection
    await connection.close()


class TestSharedFiles(FileStoreContract):
    @pytest.fixture
    async def files(self, new_files: NewFiles) -> AsyncIterator[PostgresFileStore]:
        async with started(new_files) as store:
            yield store


Pair = tuple[PostgresFileStore, PostgresFileStore]


async def test_another_server_sees_each_change_at_once(pair: Pair) -> None:
    one, other = pair
    await one.create_file(US, SEVERAL_PARTS, LONG)
    assert await other.get_file(US, SEVERAL_PARTS.id) == SEVERAL_PARTS
    assert await other.get_content(US, SEVERAL_PARTS.id) == LONG
    assert b"".join([piece async for piece in other.stream_content(US, SEVERAL_PARTS.id)]) == LONG
    await other.create_file(US, a_file(2), CONTENT)
    assert await one.list_files(US, FilePageQuery(limit=9, after=SEVERAL_PARTS.id)) == [a_file(2)]
    assert await one.get_usage(US) == FileUsage(files=2, bytes=len(LONG) + len(CONTENT))
    await other.delete_file(US, SEVERAL_PARTS.id)
    with pytest.raises(NotFound):
        await one.get_content(US, SEVERAL_PARTS.id)
    assert (
        await one.get_usage(US)
        == await other.get_usage(US)
        == FileUsage(files=1, bytes=len(CONTENT))
    )


async def test_two_servers_together_keep_the_limit(pair: Pair) -> None:
    limit = FileUsage(files=5, bytes=10**6)
    results = await asyncio.gather(
        *(
            pair[number % 2].create_file(US, a_file(number), CONTENT, limit=limit)
            for number in range(20)
        ),
        return_exceptions=True,
    )
    assert [type(result) for result in results].count(FilesFull) == 15
    assert len(await pair[1].list_all_files(US)) == 5


async def test_a_deleted_file_leaves_no_row_and_no_content(
    pair: Pair, rows: asyncpg.Connection
) -> None:
    one, other = pair
    await one.create_file(US, SEVERAL_PARTS, LONG)
    await other.delete_file(US, SEVERAL_PARTS.id)
    await one.sweep()
    for table in ("files", "file_parts", "file_usage"):
        assert await rows.fetchval(f"SELECT count(*) FROM {table}") == 0, table
    with pytest.raises(NotFound):
        await read_content(one, number=1)


async def test_an_upload_that_a_killed_server_left_is_never_seen_and_is_swept(
    pair: Pair, rows: asyncpg.Connection
) -> None:
    one, other = pair
    for number in (1, 2):
        await one.create_file(US, a_file(number), CONTENT)
    # As if the server had died between the content and its last statement.
    await rows.execute("UPDATE files SET state = 'writing'")
    await rows.execute("UPDATE file_usage SET files = 0, bytes = 0")
    await rows.execute("UPDATE files SET changed_at = '2000-01-01' WHERE id = 'file-0001'")
    assert await other.list_all_files(US) == []
    with pytest.raises(NotFound):
        await other.get_content(US, "file-0001")
    await other.sweep()
    assert await rows.fetchval("SELECT array_agg(id) FROM files") == ["file-0002"], "it is recent"
    with pytest.raises(NotFound):
        await read_content(other, number=1)
    assert await read_content(other, number=2) == CONTENT
    assert await other.get_usage(US) == FileUsage()


async def test_a_file_deleted_while_it_is_read_ends_the_reading(pair: Pair) -> None:
    """The reader gets the whole content or an error, and never less without one."""
    one, other = pair
    await one.create_file(US, SEVERAL_PARTS, LONG)
    received = b""
    try:
        async with asyncio.timeout(10):
            async for piece in one.stream_content(US, SEVERAL_PARTS.id):
                if not received:
                    await other.delete_file(US, SEVERAL_PARTS.id)
                received += piece
    except StoreError as error:
        assert SEVERAL_PARTS.id in str(error)
    else:
        assert received == LONG


async def test_tenants_have_their_own_files_of_the_same_id(pair: Pair) -> None:
    one, other = pair
    await one.create_file(US, a_file(), CONTENT)
    await one.create_file(THEM, a_file(), CONTENT[::-1])
    await other.delete_file(US, a_file().id)
    assert await other.get_content(THEM, a_file().id) == CONTENT[::-1]


async def read_content(store: PostgresFileStore, *, number: int) -> bytes:
    """Return a content, whatever the rows say about it."""
    key = ContentKey(number=number, tenant=US, file_id=a_file(number).id, bytes=len(CONTENT))
    return b"".join([piece async for piece in store._contents.read(key)])


# --- object stores --------------------------------------------------------------------------------


async def test_a_content_that_vanished_from_the_bucket_is_a_failure_and_not_an_unknown_file(
    postgres: tuple[str, str], tmp_path: Path
) -> None:
    dsn, schema = postgres
    contents = ObjectContents((tmp_path / "mounted").as_uri())
    async with started(lambda: PostgresFileStore(dsn, schema=schema, contents=contents)) as files:
        await files.create_file(US, a_file(), CONTENT)
        [path] = [path for path in (tmp_path / "mounted").rglob("*") if path.is_file()]
        path.unlink()
        with pytest.raises(StoreError, match="is missing from file://"):
            await files.get_content(US, a_file().id)
        await files.delete_file(US, a_file().id)
        assert await files.list_all_files(US) == []


async def test_keys_in_the_bucket_name_no_tenant_and_no_file(
    postgres: tuple[str, str], s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    dsn, schema = postgres
    bucket = new_bucket(s3)
    contents = ObjectContents(f"s3://{bucket}/ours", endpoint=s3)
    async with started(lambda: PostgresFileStore(dsn, schema=schema, contents=contents)) as files:
        await files.create_file("anna", a_file(filename="owl.txt"), CONTENT)
        [key] = keys_in(s3, bucket)
    assert key.startswith("ours/")
    assert key.endswith(f"/{a_file().id}")
    assert not any(word in key for word in ("anna", "owl"))


@pytest.mark.parametrize(
    ("url", "endpoint", "reason"),
    [
        ("s3://no-such-bucket", "", "the bucket does not exist"),
        ("s3://bucket", "http://127.0.0.1:1", "cannot be used: .*127.0.0.1:1"),
        ("gs://bucket", "http://127.0.0.1:1", "file_store_endpoint is for a file_store at s3://"),
    ],
)
async def test_an_unusable_object_store_stops_the_start(
    url: str, endpoint: str, reason: str, s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=reason) as refused:
        await ObjectContents(url, endpoint=endpoint or s3).start()
    assert len(str(refused.value).splitlines()) == 1
    assert len(str(refused.value)) < 400


async def test_a_bucket_that_fails_later_is_a_store_error(
    postgres: tuple[str, str], s3: str, monkeypatch: pytest.MonkeyPatch, rows: asyncpg.Connection
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    dsn, schema = postgres
    bucket = new_bucket(s3)
    contents = ObjectContents(f"s3://{bucket}", endpoint=s3)
    async with started(lambda: PostgresFileStore(dsn, schema=schema, contents=contents)) as files:
        delete_bucket(s3, bucket)
        with pytest.raises(StoreError, match="the bucket does not exist"):
            await files.create_file(US, a_file(), CONTENT)
        assert await files.list_all_files(US) == []
        assert await files.get_usage(US) == FileUsage()
