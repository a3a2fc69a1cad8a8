"""What the server's key seals and salts: for one tenant, by servers that share the key."""

from __future__ import annotations

import os
import re
from base64 import urlsafe_b64encode
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest

from antiphon.adapters.sealing import KEY_BYTES, Sealer
from antiphon.domain.errors import SettingsError


def test_what_was_sealed_is_read_again_by_any_server_with_the_key(tmp_path: Path) -> None:
    sealed = Sealer(tmp_path / "key").seal("t", "a thought ✓")
    assert "thought" not in sealed
    assert Sealer(tmp_path / "key").unseal("t", sealed) == "a thought ✓"


@pytest.mark.parametrize("spoiled", ["", "nonsense", "ä", "AAAA", "A" * 100])
def test_what_is_not_ours_is_nothing(tmp_path: Path, spoiled: str) -> None:
    assert Sealer(tmp_path / "key").unseal("t", spoiled) is None


def test_another_tenant_or_key_reads_nothing(tmp_path: Path) -> None:
    sealed = Sealer(tmp_path / "key").seal("t", "a thought")
    assert Sealer(tmp_path / "key").unseal("u", sealed) is None
    assert Sealer(tmp_path / "other").unseal("t", sealed) is None


def test_the_key_is_for_its_owner_alone(tmp_path: Path) -> None:
    key = tmp_path / "deep" / "key"
    Sealer(key).seal("t", "x")
    assert key.stat().st_mode & 0o777 == 0o600
    assert len(key.read_bytes()) == KEY_BYTES
    assert list(key.parent.iterdir()) == [key]


def test_what_another_process_left_half_done_is_not_touched(tmp_path: Path) -> None:
    # Two containers of one volume are both process 1: a name that holds the number is no one's own.
    left = tmp_path / f"key.{os.getpid()}"
    left.write_bytes(b"k" * KEY_BYTES)
    left.chmod(0o644)
    Sealer(tmp_path / "key").start()
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert left.read_bytes() == b"k" * KEY_BYTES


def test_servers_that_start_at_once_have_one_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        salts = set(threads.map(lambda _: Sealer(tmp_path / "key").salt("t", ""), range(64)))
    assert len(salts) == 1
    assert list(tmp_path.iterdir()) == [tmp_path / "key"]


def test_a_broken_key_is_told(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"short")
    with pytest.raises(SettingsError, match="does not hold 32 bytes"):
        Sealer(tmp_path / "key").seal("t", "x")


def test_a_key_that_cannot_be_made_is_told_at_the_start() -> None:
    with pytest.raises(SettingsError, match=r"cannot be made: .* --seal-key-file or --data-dir"):
        Sealer(Path("/proc/no folder/key")).start()


def test_a_salt_is_a_tenants_and_a_texts_own(tmp_path: Path) -> None:
    sealer = Sealer(tmp_path / "key")
    pairs = [("t", None), ("t", ""), ("t", "None"), ("t", "a"), ("u", "a"), ("ta", None)]
    salts = {sealer.salt(tenant, text) for tenant, text in pairs}
    assert len(salts) == len(pairs)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{43}", salt) for salt in salts)


def test_a_salt_is_the_same_for_all_servers_of_a_key_and_no_others(tmp_path: Path) -> None:
    salt = Sealer(tmp_path / "key").salt("t", "a")
    assert Sealer(tmp_path / "key").salt("t", "a") == salt
    assert Sealer(tmp_path / "other").salt("t", "a") != salt


def test_servers_know_a_key_by_what_tells_nothing_of_it(tmp_path: Path) -> None:
    sealer = Sealer(tmp_path / "key")
    fingerprint = sealer.fingerprint()
    assert Sealer(tmp_path / "key").fingerprint() == fingerprint
    assert Sealer(tmp_path / "other").fingerprint() != fingerprint
    key = (tmp_path / "key").read_bytes()
    assert fingerprint not in (key, sha256(key).digest())
    assert urlsafe_b64encode(fingerprint).decode().rstrip("=") != sealer.salt("", None)
