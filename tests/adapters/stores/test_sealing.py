"""Encryption for a tenant, cache salts, and the key that servers share."""

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


def test_every_server_with_the_key_can_unseal(tmp_path: Path) -> None:
    sealed = Sealer(tmp_path / "key").seal("t", "a thought ✓")
    assert "thought" not in sealed
    assert Sealer(tmp_path / "key").unseal("t", sealed) == "a thought ✓"


@pytest.mark.parametrize("text", ["", "nonsense", "ä", "AAAA", "A" * 100])
def test_other_text_is_not_unsealed(tmp_path: Path, text: str) -> None:
    assert Sealer(tmp_path / "key").unseal("t", text) is None


def test_another_tenant_or_key_cannot_unseal(tmp_path: Path) -> None:
    sealed = Sealer(tmp_path / "key").seal("t", "a thought")
    assert Sealer(tmp_path / "key").unseal("u", sealed) is None
    assert Sealer(tmp_path / "other").unseal("t", sealed) is None


def test_only_the_owner_can_read_the_key_file(tmp_path: Path) -> None:
    key = tmp_path / "deep" / "key"
    Sealer(key).seal("t", "x")
    assert key.stat().st_mode & 0o777 == 0o600
    assert len(key.read_bytes()) == KEY_BYTES
    assert list(key.parent.iterdir()) == [key]


def test_the_temporary_file_of_another_process_is_not_touched(tmp_path: Path) -> None:
    # Two containers that share a volume can both be process 1, so a process id is not unique.
    other_file = tmp_path / f"key.{os.getpid()}"
    other_file.write_bytes(b"k" * KEY_BYTES)
    other_file.chmod(0o644)
    Sealer(tmp_path / "key").start()
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert other_file.read_bytes() == b"k" * KEY_BYTES


def test_servers_that_start_at_the_same_time_share_one_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        salts = set(threads.map(lambda _: Sealer(tmp_path / "key").salt("t", ""), range(64)))
    assert len(salts) == 1
    assert list(tmp_path.iterdir()) == [tmp_path / "key"]


def test_an_invalid_key_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"short")
    with pytest.raises(SettingsError, match="does not have 32 bytes"):
        Sealer(tmp_path / "key").seal("t", "x")


def test_a_key_file_that_cannot_be_created_is_an_error_at_the_start() -> None:
    with pytest.raises(SettingsError, match=r"cannot be created: .* --seal-key-file or --data-dir"):
        Sealer(Path("/proc/no folder/key")).start()


def test_every_tenant_and_text_has_its_own_salt(tmp_path: Path) -> None:
    sealer = Sealer(tmp_path / "key")
    pairs = [("t", None), ("t", ""), ("t", "None"), ("t", "a"), ("u", "a"), ("ta", None)]
    salts = {sealer.salt(tenant, text) for tenant, text in pairs}
    assert len(salts) == len(pairs)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{43}", salt) for salt in salts)


def test_only_servers_with_the_same_key_have_the_same_salt(tmp_path: Path) -> None:
    salt = Sealer(tmp_path / "key").salt("t", "a")
    assert Sealer(tmp_path / "key").salt("t", "a") == salt
    assert Sealer(tmp_path / "other").salt("t", "a") != salt


def test_a_fingerprint_identifies_the_key_and_does_not_reveal_it(tmp_path: Path) -> None:
    sealer = Sealer(tmp_path / "key")
    fingerprint = sealer.fingerprint()
    assert Sealer(tmp_path / "key").fingerprint() == fingerprint
    assert Sealer(tmp_path / "other").fingerprint() != fingerprint
    key = (tmp_path / "key").read_bytes()
    assert fingerprint not in (key, sha256(key).digest())
    assert urlsafe_b64encode(fingerprint).decode().rstrip("=") != sealer.salt("", None)
