"""A TOML file of API keys, written by the server or by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from antiphon.adapters.keys.file import KeysFile, append
from antiphon.application.ports import ApiKey
from antiphon.domain.access.limits import KeyPolicy
from antiphon.domain.errors import SettingsError

HASH = "ab" * 32


def make_key(number: int = 1, *, name: str = "laptop") -> ApiKey:
    return ApiKey(
        id=f"key_{number}", hash=bytes([number]) * 32, name=name, tenant="t", created_at=7
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.toml"


def write(path: Path, content: str) -> None:
    path.write_text(content)


def remove(path: Path) -> None:
    path.unlink()


def content_of(path: Path) -> str:
    return path.read_text()


async def open_file(path: Path) -> KeysFile:
    file = KeysFile(path)
    await file.start()
    return file


async def test_appended_keys_are_read(path: Path) -> None:
    keys = [make_key(1), make_key(2, name='a "quoted" \\ name ✓')]
    for key in keys:
        append(path, key)
    file = await open_file(path)
    assert await file.keys() == keys
    assert await file.key(keys[1].hash) == keys[1]
    assert await file.key(b"\0" * 32) is None


async def test_a_handwritten_entry_needs_an_id_and_a_hash(path: Path) -> None:
    write(path, f'# ours\n[[keys]]\nid = "ci"\nsha256 = "{HASH}"\n')
    [key] = await (await open_file(path)).keys()
    assert (key.id, key.tenant, key.hash.hex()) == ("ci", "default", HASH)


async def test_a_changed_file_is_read_again(path: Path) -> None:
    append(path, make_key(1))
    file = await open_file(path)
    append(path, make_key(2))
    assert await file.key(make_key(2).hash) == make_key(2)
    remove(path)
    append(path, make_key(2))
    assert await file.key(make_key(1).hash) is None


async def test_a_mistake_in_a_changed_file_locks_nobody_out_and_is_logged(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    append(path, make_key(1))
    file = await open_file(path)
    write(path, "[[keys]]\nid = ")
    assert await file.key(make_key(1).hash) == make_key(1)
    assert "keys that were in it before work for 60 seconds more" in caplog.text
    remove(path)
    append(path, make_key(2))
    assert await file.keys() == [make_key(2)]


async def test_the_keys_of_a_file_with_a_mistake_end_after_a_minute(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = 0.0
    append(path, make_key(1))
    file = KeysFile(path, clock=lambda: now)
    await file.start()
    write(path, "[[keys]]\nid = ")
    assert await file.keys() == [make_key(1)]
    now = 30
    write(path, "[[keys]]\nid =  ")  # another mistake does not start the minute again
    assert await file.keys() == [make_key(1)]
    now = 60
    assert await file.keys() == []
    assert "no key in it works" in caplog.text
    remove(path)
    append(path, make_key(2))
    now = 1000
    assert await file.keys() == [make_key(2)]


async def test_the_keys_of_a_deleted_file_are_gone(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    append(path, make_key(1))
    file = await open_file(path)
    remove(path)
    assert await file.key(make_key(1).hash) is None
    assert "is gone" in caplog.text


async def test_what_a_key_may_do_is_in_its_entry(path: Path) -> None:
    policy = KeyPolicy(
        limits={"requests/min": 60, "runs": 4},
        models=("org/m",),
        tools=("mcp",),
        hosts=("example.org",),
        scopes=("read",),
        service_tier="flex",
        expires_at=1_790_000_000,
    )
    append(path, replace(make_key(1), policy=policy))
    append(path, make_key(2))
    file = await open_file(path)
    assert [key.policy for key in await file.keys()] == [policy, KeyPolicy()]


async def test_a_handwritten_policy_may_have_a_date_and_a_wildcard(path: Path) -> None:
    entry = 'expires_at = 2026-09-21T13:33:20Z\nhosts = ["*.Example.org"]\n'
    write(path, f'[[keys]]\nid = "ci"\nsha256 = "{HASH}"\n{entry}')
    [key] = await (await open_file(path)).keys()
    assert (key.policy.expires_at, key.policy.hosts) == (1_789_997_600, ("example.org",))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[[keys]]\nid = ", "Invalid value"),
        ('[[keys]]\nid = "a"', "sha256"),
        ('[[keys]]\nid = "a"\nsha256 = "ABC"', "sha256"),
        ('[[keys]]\nid = "a"\nkey = "ak-secret"', "key"),
        ("keys = 1", "array"),
        (f'[[keys]]\nid = "a"\nsha256 = "{HASH}"\nlimits = {{"rpm" = 1}}', "no limit 'rpm'"),
        (f'[[keys]]\nid = "a"\nsha256 = "{HASH}"\nlimits = {{"runs" = 0}}', "runs|>= 1"),
        (f'[[keys]]\nid = "a"\nsha256 = "{HASH}"\nhosts = ["a/b"]', "A host is a name"),
        (f'[[keys]]\nid = "a"\nsha256 = "{HASH}"\n' * 2, "'a' 2 times"),
        ("".join(f'[[keys]]\nid = "{i}"\nsha256 = "{HASH}"\n' for i in "ab"), "2 times"),
    ],
)
async def test_an_invalid_file_is_an_error(path: Path, content: str, reason: str) -> None:
    write(path, content)
    with pytest.raises(SettingsError, match=reason) as raised:
        await open_file(path)
    assert "ak-secret" not in str(raised.value)
    with pytest.raises(SettingsError, match=reason):
        append(path, make_key())
    assert content_of(path) == content


async def test_a_missing_file_is_an_error(path: Path) -> None:
    with pytest.raises(SettingsError, match=r"keys\.toml' cannot be used"):
        await open_file(path)


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be written"):
        append(tmp_path / "no" / "keys.toml", make_key())
