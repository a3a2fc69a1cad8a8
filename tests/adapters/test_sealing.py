"""Sealed reasoning: only this server reads it, for the tenant it was sealed for."""

from __future__ import annotations

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


def test_a_broken_key_is_told(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"short")
    with pytest.raises(SettingsError, match="does not hold 32 bytes"):
        Sealer(tmp_path / "key").seal("t", "x")
